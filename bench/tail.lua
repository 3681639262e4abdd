-- bench/tail.lua: how long a get takes while another task computes.
--
--   moonjay bench/tail.lua [SECONDS]       (5 seconds for each row)
--
-- One task gets a value of 100 bytes, one get at a time, and notes how long each took. Beside
-- it another computes in slices of 1 ms and makes garbage; the collector is on, and its pauses
-- are in the figures. A slice cannot be interrupted, so a reply that comes meanwhile waits for
-- its end: what is to be seen is whether it waits for more than that. The first row is a bare
-- socket in a loop of its own, with nothing of moonjay's: the least that the machine allows.
--
-- The server has a processor of its own where there are two.

local ffi = require "ffi"
local mj = require "moonjay"
local child = require "bench.child"
local cjson = require "cjson"
local machine = require "bench.machine"
local memcached = require "spec.support.memcached"
local posix = require "spec.support.posix"
local process = require "spec.support.process"

local SLICE = 0.001
local F_SETFL = 4
local KEY = "bench:tail"
local VALUE = KEY .. ("x"):rep(100 - #KEY)

-- ---- the side that is measured: prints a line of JSON ----

-- The percentiles of a list of seconds, in microseconds.
local function summary(list)
  table.sort(list)
  local function at(part) return list[math.max(1, math.ceil(#list * part))] * 1e6 end
  return { count = #list, p50 = at(0.5), p99 = at(0.99), p999 = at(0.999), most = at(1) }
end

-- Calls operation() again and again, and returns how long each call took.
local function time_each(seconds, operation)
  local list, count = {}, 0
  local last = mj.now()
  local stop = last + seconds
  while last < stop do
    operation()
    local now = mj.now()
    count = count + 1
    list[count] = now - last
    last = now
  end
  return list
end

-- Strings and tables for a slice of time.
local function compute()
  local stop = mj.now() + SLICE
  repeat
    local kept = {}
    for i = 1, 20 do kept[i] = { text = tostring(i * stop), before = kept[i - 1] } end
  until mj.now() >= stop
end

-- What the other task does: `pause` is how long it waits between slices; nil, it does nothing.
local function beside(pause)
  return function(seconds, conn)
    local going, slices = true, 0
    local task = mj.spawn(function()
      while pause and going do
        compute()
        slices = slices + 1
        mj.sleep(pause)
      end
    end)
    local function get()
      if conn:get(KEY) ~= VALUE then error("a wrong answer came", 0) end
    end
    time_each(seconds / 10, get) -- warm up
    local said = summary(time_each(seconds, get))
    going = false
    mj.check(mj.all { task })
    said.slices = slices
    return said
  end
end

local function bare(seconds, conn)
  local fd = posix.connect { unix = conn:server():match "//(.*)" }
  local request = "mg " .. KEY .. " v\r\n"
  local reply = ("VA %d\r\n%s\r\n"):format(#VALUE, VALUE)
  ffi.C.fcntl(fd, F_SETFL, ffi.cast("int", 0)) -- a receive waits
  return summary(time_each(seconds, function()
    assert(posix.send(fd, request, 0) == #request)
    local got = assert(posix.recv(fd))
    while #got < #reply do got = got .. assert(posix.recv(fd)) end
    if got ~= reply then error("a wrong answer came", 0) end
  end))
end

local ROWS = {
  { "a bare socket, nothing beside", "bare", bare },
  { "P1, nothing beside", "alone", beside(nil) },
  { "P1, 1 ms of computing, 9 ms of sleep", "tenth", beside(0.009) },
  { "P1, computing 1 ms in each turn", "always", beside(0) },
}

if arg[1] == "play" then
  local conn = mj.check(mj.connect(arg[4]))
  mj.check(conn:set(KEY, VALUE))
  for _, row in ipairs(ROWS) do
    if row[2] == arg[2] then print(cjson.encode(row[3](tonumber(arg[3]), conn))) end
  end
  return
end

-- ---- the side that asks ----

local seconds = tonumber(arg[1] or 5)
if not seconds or seconds <= 0 then error("usage: moonjay bench/tail.lua [SECONDS]", 0) end

local function pin(pid, core)
  process.start { "taskset", "-acp", tostring(core), tostring(pid) }:finish(10)
end

local server = memcached.start { unix = true, args = { "-t", "1" } }
local cores = machine.cores()
pin(server.pid, cores[1])
local words = { "taskset", "-c", tostring(cores[#cores]) }

local fine, err = pcall(function()
  print(("%-38s %8s %8s %8s %8s %8s %7s"):format(
    "microseconds", "gets", "p50", "p99", "p99.9", "most", "slices"))
  for _, row in ipairs(ROWS) do
    local said = child.run {
      "bench/tail.lua", "play", row[2], seconds, server.url, before = words,
      seconds = 2 * seconds + 30,
    }
    print(("%-38s %8d %8.0f %8.0f %8.0f %8.0f %7d"):format(
      row[1], said.count, said.p50, said.p99, said.p999, said.most, said.slices or 0))
    io.flush()
  end
end)
memcached.stop_all()
if not fine then error(err, 0) end
