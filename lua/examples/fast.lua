-- fast.lua: the same gets asked in four ways, and what each costs.
--
--   moonjay run --memcached lua/examples/fast.lua [GETS]     20,000 gets each
--
-- What makes a script fast is how many requests share a write, a wait and a read.

local mj = require "moonjay"

local KEYS = 100 -- and so many requests at once
local total = tonumber(arg[1] or 20000)
if not (total and total >= KEYS) then
  io.stderr:write("usage: moonjay fast.lua [GETS]; at least ", KEYS, "\n")
  os.exit(2)
end
local rounds = math.floor(total / KEYS)

local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"))
local keys, expected = {}, {}
for i = 1, KEYS do
  keys[i] = ("fast:%03d"):format(i)
  expected[keys[i]] = ("%03d"):format(i):rep(33)
end
mj.check(conn:set_many(expected))

local function look(key, value)
  if value ~= expected[key] then error("a wrong value for " .. key) end
end

local function one_by_one()
  for _ = 1, rounds do
    for _, key in ipairs(keys) do look(key, mj.check(conn:get(key))) end
  end
end

-- Many tasks on one connection: what all of them ask in one turn leaves in one write.
local function many_tasks()
  local tasks = {}
  for i, key in ipairs(keys) do
    tasks[i] = mj.spawn(function()
      for _ = 1, rounds do look(key, mj.check(conn:get(key))) end
    end)
  end
  mj.check(mj.all(tasks))
end

-- A pipeline: one task asks for many things at once.
local function one_pipeline()
  local pipe = conn:pipeline()
  for _ = 1, rounds do
    for _, key in ipairs(keys) do pipe:get(key) end
    local replies = mj.check(pipe:run())
    for i, key in ipairs(keys) do look(key, replies[i]) end
  end
end

-- get_many: many keys in one request.
local function many_keys()
  for _ = 1, rounds do
    local values = mj.check(conn:get_many(keys))
    for _, key in ipairs(keys) do look(key, values[key]) end
  end
end

local WAYS = {
  { "one get at a time", one_by_one },
  { "100 tasks on one connection", many_tasks },
  { "pipelines of 100", one_pipeline },
  { "get_many of 100 keys", many_keys },
}

print(("%d gets of %d bytes each way"):format(rounds * KEYS, #expected[keys[1]]))
print(("%-30s %10s %14s %10s"):format("", "us a get", "times as fast", "writes"))
local slowest
for _, way in ipairs(WAYS) do
  local before, start = conn:counters().writes, mj.now()
  way[2]()
  local took = (mj.now() - start) / (rounds * KEYS)
  slowest = slowest or took
  print(("%-30s %10.2f %14.1f %10d"):format(way[1], took * 1e6, slowest / took,
    conn:counters().writes - before))
end
conn:close()
