-- bench/workloads.lua: moonjay's side of every workload, on the public API alone.
--
--   moonjay bench/workloads.lua WORKLOAD HOST PORT SECONDS     HOST may be the path of a socket
--
-- Stores what it needs, warms up for a tenth of SECONDS, measures for SECONDS, and prints one
-- line of JSON: what bench/run.lua reads. Connections are as they come: verify=true, a timeout
-- of 1 s on every request. Every value that comes back is compared with the one that was stored
-- (of large ones: the size, the first bytes and the last); a wrong one, or any error, ends the
-- program with status 1 and no figure. Status 3: there is no such workload.
--
-- LuaJIT keeps each string once. A value that equals one the script still holds costs less than
-- a new one, and where all values are known beforehand, to be compared with, that is every one.
-- So the workloads that end in "-fresh" get values which nobody holds. Those that end in
-- "-gathered" are the same with direct_read=false.

local buffer = require "string.buffer"
local dalli = require "bench.dalli"
local mj = require "moonjay"
local usage = require "bench.usage"

local MIB = 1024 * 1024
local AT_ONCE, CONNECTIONS, KEYS = 100, 50, 100
-- So many values that the first is collected before it comes again.
local POOL, LARGE_POOL = 20000, 32

local workload, host, port, seconds = arg[1], arg[2], arg[3], tonumber(arg[4])
if not (workload and host and port and seconds) or seconds <= 0 then
  error("usage: moonjay bench/workloads.lua WORKLOAD HOST PORT SECONDS", 0)
end
local kind, gathered = workload:gsub("%-gathered$", "")

-- ---- what the workloads are made of ----

-- Shared by all tasks: they go on while `going`, and count what was answered and checked.
local going, done = true, 0
local connections, tasks = {}, {}

-- Ends the program at once, whichever task found it.
local function fail(err)
  io.stderr:write("moonjay: ", tostring(err), "\n")
  os.exit(1)
end

local function connect()
  local place = host:find("^/") and host
    or ("%s:%s"):format(host:find(":", 1, true) and "[" .. host .. "]" or host, port)
  local url = ("memcache://%s%s"):format(place, gathered > 0 and "?direct_read=false" or "")
  local conn = mj.check(mj.connect(url, { on_error = fail }))
  connections[#connections + 1] = conn
  return conn
end

local function start(fn, ...)
  tasks[#tasks + 1] = mj.spawn(function(...)
    local fine, err = pcall(fn, ...)
    if not fine then fail(err) end
  end, ...)
end

local function wrong(key) error(("%s: a wrong answer for %s"):format(workload, key), 0) end

-- Every key has a value of its own, which is made of it, so that a reply which went to another
-- request is seen. They differ in their first bytes and their last: LuaJIT's hash of a string
-- looks there, and many strings of one hash would slow it down as values seldom do.
local function key_of(i) return ("%08x:bench"):format(i * 2654435761 % 2 ^ 32) end

local function value_of(i, size)
  local key = key_of(i)
  return key:rep(math.ceil(size / #key)):sub(1, size)
end

local function stored(conn, i, size)
  local key, value = key_of(i), value_of(i, size or 100)
  mj.check(conn:set(key, value))
  return key, value
end

local function get_on(conn, key, value)
  while going do
    if conn:get(key) ~= value then wrong(key) end
    done = done + 1
  end
end

local function set_on(conn, key, value)
  while going do
    if conn:set(key, value) ~= true then wrong(key) end
    done = done + 1
  end
end

-- ---- the workloads ----

local W = {}

-- One task: one request on the way at a time.
function W.P1()
  local conn = connect()
  start(get_on, conn, stored(conn, 1))
end

-- A hundred tasks on one connection.
function W.P2()
  local conn = connect()
  for i = 1, AT_ONCE do start(get_on, conn, stored(conn, i)) end
end

-- A hundred values into a table, in one call.
function W.P3()
  local conn, keys, values = connect(), {}, {}
  for i = 1, KEYS do keys[i], values[i] = stored(conn, i) end
  start(function()
    while going do
      local got = mj.check(conn:get_many(keys))
      for i = 1, KEYS do
        if got[keys[i]] ~= values[i] then wrong(keys[i]) end
      end
      done = done + KEYS
    end
  end)
end

function W.P4a()
  local conn = connect()
  start(set_on, conn, stored(conn, 1))
end

function W.P4b()
  local conn = connect()
  for i = 1, AT_ONCE do start(set_on, conn, stored(conn, i)) end
end

-- A large value, to where the last one was.
function W.P5()
  local conn, into = connect(), buffer.new(MIB)
  local key, value = stored(conn, 1, MIB)
  local options, first, last = { into = into }, value:byte(1), value:byte(-1)
  start(function()
    while going do
      into:reset()
      mj.check(conn:get(key, options))
      local bytes, size = into:ref()
      if size ~= MIB or bytes[0] ~= first or bytes[MIB - 1] ~= last then wrong(key) end
      done = done + 1
    end
    if into:tostring() ~= value then wrong(key) end
  end)
end

-- The large values, one after another, each as a new string.
local function get_as_strings(conn, keys, tails)
  while going do
    for i = 1, #keys do
      local key, value = keys[i], mj.check(conn:get(keys[i]))
      if #value ~= MIB or value:sub(1, #key) ~= key or value:sub(-4) ~= tails[i] then
        wrong(key)
      end
      done = done + 1
    end
  end
end

local function large_strings(count)
  local conn, keys, tails = connect(), {}, {}
  for i = 1, count do
    keys[i] = stored(conn, i, MIB)
    tails[i] = value_of(i, MIB):sub(-4)
  end
  -- Until the collector keeps pace, each value is memory that the process never had.
  for i = 1, 2 * LARGE_POOL do mj.check(conn:get(keys[i % count + 1])) end
  start(get_as_strings, conn, keys, tails)
end

function W.P5s() large_strings(LARGE_POOL) end

-- One value again and again. Until it is collected, LuaJIT finds that it has this string.
W["P5s-same"] = function() large_strings(1) end

-- Fifty connections, a task on each.
function W.P6()
  for i = 1, CONNECTIONS do
    local conn = connect()
    start(get_on, conn, stored(conn, i))
  end
end

-- The same, with every tenth request a set, at a different time on each connection. What was
-- set last is what the gets must find.
local function get_and_set_on(conn, i)
  local key, value = stored(conn, i)
  local other = value:upper()
  for _ = 1, i % 10 do
    if conn:get(key) ~= value then wrong(key) end
  end
  while going do
    if conn:set(key, other) ~= true then wrong(key) end
    value, other = other, value
    for _ = 1, 9 do
      if conn:get(key) ~= value then wrong(key) end
    end
    done = done + 10
  end
end

function W.P7()
  for i = 1, CONNECTIONS do
    start(get_and_set_on, connect(), i)
  end
end

-- ---- the same work, asked for or answered in another way ----

local function pipelined(record, expected)
  local conn, keys, values = connect(), {}, {}
  for i = 1, AT_ONCE do keys[i], values[i] = stored(conn, i) end
  start(function()
    local pipeline = conn:pipeline()
    while going do
      for i = 1, AT_ONCE do record(pipeline, keys[i], values[i]) end
      local replies = mj.check(pipeline:run())
      for i = 1, AT_ONCE do
        if replies[i] ~= (expected or values[i]) then wrong(keys[i]) end
      end
      done = done + AT_ONCE
    end
  end)
end

W["P2-pipeline"] = function() pipelined(function(pipeline, key) pipeline:get(key) end) end

W["P4b-pipeline"] = function()
  pipelined(function(pipeline, key, value) pipeline:set(key, value) end, true)
end

-- The keys of the pool, whose values are stored and forgotten.
local function stored_pool(conn)
  local keys = {}
  for from = 1, POOL, KEYS do
    local values = {}
    for i = from, from + KEYS - 1 do
      keys[i] = key_of(i)
      values[keys[i]] = value_of(i, 100)
    end
    mj.check(conn:set_many(values))
  end
  return keys
end

local function check_fresh(key, value)
  if not value or #value ~= 100 or value:find(key, 1, true) ~= 1 then wrong(key) end
end

W["P2-fresh"] = function()
  local conn = connect()
  local keys = stored_pool(conn)
  for task = 1, AT_ONCE do
    start(function()
      local at = task * POOL / AT_ONCE
      while going do
        check_fresh(keys[at], (conn:get(keys[at])))
        at = at % POOL + 1
        done = done + 1
      end
    end)
  end
end

W["P3-fresh"] = function()
  local conn, lists = connect(), {}
  local keys = stored_pool(conn)
  for from = 1, POOL, KEYS do lists[#lists + 1] = { unpack(keys, from, from + KEYS - 1) } end
  start(function()
    while going do
      for _, list in ipairs(lists) do
        local got = mj.check(conn:get_many(list))
        for i = 1, KEYS do check_fresh(list[i], got[list[i]]) end
        done = done + KEYS
        if not going then break end
      end
    end
  end)
end

-- The rows of Dalli's benchmark.
for name, row in pairs(dalli.rows) do
  W[name] = function()
    local round = row(connect())
    start(function()
      while going do done = done + round() end
    end)
  end
end

-- ---- measuring ----

-- System calls since the start, as the runtime counts them: reads, writes and changes of what
-- is watched on the connections, waits (epoll_wait) and timers of the loop.
local function calls()
  local of_loop = mj.counters()
  local sum = of_loop.turns + of_loop.timer_arms
  for _, conn in ipairs(connections) do
    local counted = conn:counters()
    sum = sum + counted.reads + counted.writes + counted.arms
  end
  return sum
end

local function measure()
  local first = { done = done, calls = calls(), now = mj.now(), usage = usage.now() }
  mj.sleep(seconds)
  local used = usage.between(first.usage, usage.now())
  return {
    operations = done - first.done, seconds = mj.now() - first.now,
    calls = calls() - first.calls, used = used,
  }
end

local prepare = W[kind]
if not prepare then os.exit(3) end
prepare()
mj.sleep(seconds / 10)
local found = measure()
going = false
mj.check(mj.all(tasks))

print(([[{"workload":"%s","operations":%d,"seconds":%.6f,"user":%.6f,"system":%.6f,]]
  .. [["voluntary":%d,"involuntary":%d,"calls":%d}]]):format(
  workload, found.operations, found.seconds, found.used.user, found.used.system,
  found.used.voluntary, found.used.involuntary, found.calls))
