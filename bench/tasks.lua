-- bench/tasks.lua: many tasks on one connection, measured from inside.
--
--   moonjay run --memcached-args "-R 200 -t 1" bench/tasks.lua [tasks [seconds [bytes]]]
--
-- Each task gets the same small value over and over. Prints operations per second, CPU (user
-- and system of this process alone) per operation, and system calls per operation as the
-- runtime counts them: reads, writes and changes of what is watched on the connection, waits
-- (epoll_wait) and timers of the loop.

local ffi = require "ffi"
local mj = require "moonjay"

ffi.cdef [[
  typedef struct { long sec, usec; } bench_time;
  typedef struct { bench_time user, system; long rest[14]; } bench_usage;
  int getrusage(int who, bench_usage *usage);
]]

local function argument(place, default, least, most)
  local number = tonumber(arg[place] or default)
  if not number or number < least or number > most then
    error(("argument %d is %s; it takes %g to %g"):format(place, arg[place], least, most), 0)
  end
  return number
end

local tasks = argument(1, 100, 1, 100000)
local seconds = argument(2, 3, 0.1, 600)
local bytes = argument(3, 100, 0, 1000000)

local function cpu()
  local usage = ffi.new "bench_usage"
  ffi.C.getrusage(0, usage)
  local function of(time) return tonumber(time.sec) + tonumber(time.usec) / 1e6 end
  return of(usage.user) + of(usage.system)
end

local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"))
local value = ("x"):rep(bytes)
mj.check(conn:set("bench:key", value))

local function calls()
  local of_conn, of_loop = conn:counters(), mj.counters()
  return {
    reads = of_conn.reads, writes = of_conn.writes, arms = of_conn.arms,
    waits = of_loop.turns, timers = of_loop.timer_arms, operations = of_conn.replies,
  }
end

-- Runs all tasks for a while; returns operations, seconds, CPU seconds and calls.
local function measure(length)
  local stop, running = false, {}
  for i = 1, tasks do
    running[i] = mj.spawn(function()
      while not stop do
        if conn:get("bench:key") ~= value then error("a wrong value came back", 0) end
      end
    end)
  end
  local before, cpu_before, start = calls(), cpu(), mj.now()
  mj.sleep(length)
  local after, used, elapsed = calls(), cpu() - cpu_before, mj.now() - start
  stop = true
  mj.check(mj.all(running))
  for name, count in pairs(after) do after[name] = count - before[name] end
  return after, elapsed, used
end

measure(seconds / 4) -- warm up
local count, elapsed, used = measure(seconds)
local n = count.operations
local system_calls = count.reads + count.writes + count.arms + count.waits + count.timers

print(("%d tasks on one connection, get of %d bytes, %s"):format(tasks, bytes, conn:server()))
print(("  operations per second      %12.0f"):format(n / elapsed))
print(("  CPU per operation          %12.3f us"):format(used / n * 1e6))
print(("  system calls per operation %12.4f"):format(system_calls / n))
for _, name in ipairs { "reads", "writes", "waits", "timers", "arms" } do
  print(("    %-10s %28.4f"):format(name, count[name] / n))
end
