-- limit.lua: at most so many actions a user and a span of time, counted in the cache, so that
-- any number of processes share the limit.
--
--   moonjay run --memcached lua/examples/limit.lua [LIMIT [SECONDS]]
--
-- The window begins with a user's first action: the counter is made with it, and expires.

local mj = require "moonjay"

local limit = tonumber(arg[1] or 3)
local seconds = tonumber(arg[2] or 60)
if not (limit and seconds and limit > 0 and seconds > 0) then
  io.stderr:write("usage: moonjay limit.lua [LIMIT [SECONDS]]; both are numbers above 0\n")
  os.exit(2)
end

local url = os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"
local conn = mj.check(mj.connect(url))

-- Whether this user may act now, and how many times more. When the cache does not answer
-- everybody may: a limit is no reason to turn people away because a cache is down.
local function allow(user)
  local count, err = conn:incr("limit:" .. user, 1, { initial = 1, ttl = seconds })
  if err then
    io.stderr:write("limit: ", tostring(err), "\n")
    return true, 0
  end
  return count <= limit, math.max(limit - count, 0)
end

mj.check(conn:delete_many { "limit:jay", "limit:owl" })
for _, user in ipairs { "jay", "jay", "owl", "jay", "jay", "owl", "jay" } do
  local allowed, left = allow(user)
  print(("%s  %-7s  %d left"):format(user, allowed and "allowed" or "refused", left))
end
