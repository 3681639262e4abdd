-- bench/workloads.lua: moonjay's side of every workload, on the public API alone.
--
--   moonjay bench/workloads.lua WORKLOAD HOST PORT SECONDS     HOST may be the path of a socket
--
-- Stores what it needs, warms up for a tenth of SECONDS, measures for SECONDS, and prints one
-- line of JSON: what bench/run.lua reads. Connections are as they come: verify=true, a timeout
-- of 1 s on every request. Every value that comes back is compared with the one that was stored;
-- a wrong one, or any error, ends the program with status 1 and no figure. Status 3: there is
-- no such workload.

local buffer = require "string.buffer"
local mj = require "moonjay"
local usage = require "bench.usage"

local MIB = 1024 * 1024
local AT_ONCE, CONNECTIONS, KEYS = 100, 50, 100

local workload, host, port, seconds = arg[1], arg[2], arg[3], tonumber(arg[4])
if not (workload and host and port and seconds) or seconds <= 0 then
  error("usage: moonjay bench/workloads.lua WORKLOAD HOST PORT SECONDS", 0)
end

-- ---- what the workloads are made of ----

-- Shared by all tasks: they go on while `going`, and count what was answered and checked.
local going, done = true, 0
local connections, tasks = {}, {}

local function connect(options)
  local place = host:find("^/") and host
    or ("%s:%s"):format(host:find(":", 1, true) and "[" .. host .. "]" or host, port)
  local conn = mj.check(mj.connect(("memcache://%s%s"):format(place, options or ""), {
    on_error = function(err) error(err, 0) end,
  }))
  connections[#connections + 1] = conn
  return conn
end

local function start(fn, ...) tasks[#tasks + 1] = mj.spawn(fn, ...) end

local function wrong(key) error(("%s: a wrong answer for %s"):format(workload, key), 0) end

-- Every key has a value of its own, so that a reply which went to another request is seen.
local function key_of(i) return ("bench:%03d"):format(i) end

local function value_of(i, size)
  local head = ("%03d:"):format(i)
  return head .. ("x"):rep(size - #head)
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

local function get_as_string(conn, key)
  local head = value_of(1, 4)
  while going do
    local value = conn:get(key)
    if #value ~= MIB or value:sub(1, 4) ~= head or value:byte(-1) ~= 120 then wrong(key) end
    done = done + 1
  end
end

function W.P5s()
  local conn = connect()
  start(get_as_string, conn, (stored(conn, 1, MIB)))
end

-- Fifty connections, a task on each.
function W.P6()
  for i = 1, CONNECTIONS do
    local conn = connect()
    start(get_on, conn, stored(conn, i))
  end
end

-- The same, with every tenth request a set, at a different time on each connection; what was set
-- last is what the gets must find.
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

local prepare = W[workload]
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
