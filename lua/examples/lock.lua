-- lock.lua: cache-aside without a stampede. Of all that miss the same key at once, one asks the
-- source; the others wait for what it finds.
--
--   moonjay run --memcached lua/examples/lock.lua [READERS]
--
-- `add` is the lock: it stores only where nothing is, so one of many wins. The lock expires by
-- itself, should its holder die.

local mj = require "moonjay"

local LOCK_TTL, PATIENCE, PAUSE = 5, 2, 0.01 -- seconds

local readers = tonumber(arg[1] or 50)
if not (readers and readers >= 1) then
  io.stderr:write("usage: moonjay lock.lua [READERS]; a number of at least 1\n")
  os.exit(2)
end

local url = os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"
local conn = mj.check(mj.connect(url))
local asked = 0

local function ask_source(key)
  asked = asked + 1
  mj.sleep(0.1)
  return "what the source says of " .. key
end

-- Gives the lock back if it is still ours: cas puts an item in its place that has expired.
local function release(lock, token)
  local item = mj.check(conn:item(lock))
  if item and item.value == token then
    mj.check(conn:cas(lock, token, item.cas, { ttl = -1 }))
  end
end

-- What the holder of the lock does.
local function load_and_store(key, load, ttl)
  local value = mj.check(conn:get(key)) -- perhaps stored since we missed it
  if value == nil then
    value = load(key)
    mj.check(conn:set(key, value, { ttl = ttl }))
  end
  return value
end

-- The value of a key, from the cache or by load(key). Throws a failure of the cache, and what
-- load throws.
local function fetch(key, load, ttl)
  local lock, token = "lock:" .. key, tostring(math.random(2 ^ 52))
  local give_up = mj.now() + PATIENCE
  repeat
    local value = mj.check(conn:get(key))
    if value ~= nil then return value end
    if mj.check(conn:add(lock, token, { ttl = LOCK_TTL })) then
      local ok, loaded = pcall(load_and_store, key, load, ttl)
      release(lock, token)
      if not ok then error(loaded, 0) end
      return loaded
    end
    mj.sleep(PAUSE)
  until mj.now() > give_up
  return load(key) -- the holder is slower than we are patient
end

math.randomseed(os.time())
mj.check(conn:delete_many { "report", "lock:report" })

local tasks, right = {}, 0
for i = 1, readers do tasks[i] = mj.spawn(fetch, "report", ask_source, 60) end
for _, result in ipairs(mj.check(mj.all(tasks))) do
  if result[1] == "what the source says of report" then right = right + 1 end
end
print(("%d of %d readers have the report; the source was asked %d time(s)"):format(
  right, readers, asked))
print("the lock is " .. (mj.check(conn:get("lock:report")) and "still held" or "free"))
