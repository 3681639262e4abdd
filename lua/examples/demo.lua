-- demo.lua: a cache in front of a slow database, step by step.
--
--   moonjay run --memcached lua/examples/demo.lua
--
-- Without --memcached it uses $MEMCACHE_URL, and touches keys that begin with "demo:" alone.

local mj = require "moonjay"

local function step(title) print("\n" .. title) end
local function say(format, ...) print("   " .. format:format(...)) end

-- Calls fn and returns how many milliseconds it took, and what it returned.
local function timed(fn, ...)
  local start = mj.now()
  local value, more = fn(...)
  return (mj.now() - start) * 1000, value, more
end

-- ---- 1. a connection ----

-- The script is a task: connect suspends it until the server has answered. check raises a
-- failure, so that what follows has a connection.
step "1. Connect"
local url = os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"
local conn = mj.check(mj.connect(url))
say("memcached %s answers, in the %s protocol", conn:version(), conn:protocol())

local SHELF, VISITS, GUESTS = 100, "demo:visits", "demo:guests"

local function key_of(id) return "demo:product:" .. id end

-- What an earlier run may have left.
local leftovers = { VISITS, GUESTS, "demo:a", "demo:b" }
for id = 1, SHELF do leftovers[#leftovers + 1] = key_of(id) end
mj.check(conn:delete_many(leftovers))

-- What the connection has counted since the last call.
local last = conn:counters()
local function counted()
  local now, since = conn:counters(), {}
  for name, count in pairs(now) do since[name] = count - last[name] end
  last = now
  return since
end

-- ---- 2. cache-aside ----

-- Stands for a database: right, and slow.
local function ask_database(id)
  mj.sleep(0.030)
  return ("jar of moonlight no. %d"):format(id)
end

-- Ask the cache; on a miss ask the database, and leave the answer in the cache for a minute.
local function product(id)
  local value = mj.check(conn:get(key_of(id)))
  if value ~= nil then return value, "hit" end
  value = ask_database(id)
  mj.check(conn:set(key_of(id), value, { ttl = 60 }))
  return value, "miss"
end

step "2. Cache-aside: the same product twice"
for _ = 1, 2 do
  local ms, value, how = timed(product, 7)
  say("%-4s  %6.2f ms  %s", how, ms, value)
end

-- ---- 3. a pipeline ----

step "3. A pipeline: five requests, one write, one wait"
counted()
local replies = mj.check(conn:pipeline()
  :set("demo:a", "1"):get("demo:a"):incr("demo:a", 41):get("demo:b"):add("demo:a", "x"):run())
-- check sees only that it ran: what failed in it is counted, and stands in replies.errors.
if replies.failed > 0 then error(select(2, next(replies.errors)), 0) end
for i, asked in ipairs { "set a 1", "get a", "incr a by 41", "get b", "add a x" } do
  say("%-12s  -->  %s", asked, tostring(replies[i]))
end
local since = counted()
say("requests %d, writes %d", since.requests, since.writes)

-- ---- 4. tasks ----

-- Each task waits alone; what they ask in one turn of the loop leaves together.
local function visit_all()
  local tasks = {}
  for id = 1, SHELF do tasks[id] = mj.spawn(product, id) end
  local hits = 0
  for _, result in ipairs(mj.check(mj.all(tasks))) do
    if result[2] == "hit" then hits = hits + 1 end
  end
  return hits
end

step(("4. %d tasks share the connection"):format(SHELF))
local ms, hits = timed(visit_all)
say("cold:  hits %3d  %6.2f ms (one after the other: %d ms)", hits, ms, (SHELF - 1) * 30)
counted()
ms, hits = timed(visit_all)
since = counted()
say("warm:  hits %3d  %6.2f ms", hits, ms)
say("requests %d, writes %d: a write carries all that the tasks ask in one turn",
  since.requests, since.writes)

-- ---- 5. a counter ----

step "5. A counter: 50 tasks count visits"
local visitors, drawn = {}, {}
for i = 1, 50 do
  visitors[i] = mj.spawn(function() return conn:incr(VISITS, 1, { initial = 1, ttl = 60 }) end)
end
for _, result in ipairs(mj.check(mj.all(visitors))) do drawn[result[1]] = true end
local different = 0
for _ in pairs(drawn) do different = different + 1 end
say("the counter is %s, and the tasks drew %d different numbers", conn:get(VISITS), different)

-- ---- 6. compare and swap ----

-- Adds a name to a list that others change at the same time: read it with its token, and store
-- only if the token still holds. Returns how many attempts that took. Where many clients change
-- one key, a random pause before the next attempt helps.
local function sign(name)
  for attempt = 1, 100 do
    local list = mj.check(conn:item(GUESTS))
    if mj.check(conn:cas(GUESTS, list.value .. " " .. name, list.cas)) then return attempt end
  end
  error("the list changes too fast")
end

step "6. Compare and swap: four tasks change one value"
mj.check(conn:set(GUESTS, "guests:"))
local guests = {}
for i, name in ipairs { "jay", "owl", "wren", "lark" } do guests[i] = mj.spawn(sign, name) end
local attempts = 0
for _, result in ipairs(mj.check(mj.all(guests))) do attempts = attempts + result[1] end
say("%s", conn:get(GUESTS))
say("%d attempts for 4 changes, and none is lost", attempts)

-- ---- 7. failures ----

-- A failure is nil and an error, never a miss.
local function explain(what, value, err)
  if value ~= nil or err == nil then error(what .. " should have failed") end
  say("%-22s  -->  %s (sent: %s, retryable: %s)", what, err.kind, err.sent,
    tostring(err.retryable))
end

step "7. Failures are values"
explain("a key with a blank", conn:get("demo: blank"))
explain("counting on a text", conn:incr(key_of(7)))
explain("a deadline of 10 ms", mj.deadline(0.010, ask_database, 7))
explain("nobody listens there", mj.connect("memcache://127.0.0.1:1"))
say("and the connection is as good as ever: %s", conn:get(key_of(7)))

-- ---- the end ----

local all = conn:counters()
print(("\nIn all: %d requests, %d replies, %d hits, %d misses, %d timeouts."):format(
  all.requests, all.replies, all.hits, all.misses, all.timeouts))
