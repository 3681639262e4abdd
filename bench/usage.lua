-- bench.usage: what this process has used so far, for the workloads.
--
--   local before = usage.now()
--   ...
--   print(usage.between(before, usage.now()).user)      --> CPU seconds

local ffi = require "ffi"

ffi.cdef [[
  typedef struct { long sec, usec; } bench_time;
  typedef struct {
    bench_time user, system;
    long rest[12], voluntary, involuntary;
  } bench_usage;
  int getrusage(int who, bench_usage *usage);
]]

local M = {}

local SELF, CHILDREN = 0, -1
local room = ffi.new "bench_usage"

local function seconds(time) return tonumber(time.sec) + tonumber(time.usec) / 1e6 end

local function read(who)
  ffi.C.getrusage(who, room)
  return {
    user = seconds(room.user),
    system = seconds(room.system),
    voluntary = tonumber(room.voluntary),
    involuntary = tonumber(room.involuntary),
  }
end

-- CPU seconds (user, system) and context switches (voluntary, involuntary) of this process.
function M.now() return read(SELF) end

-- The same of its children that have ended and been reaped.
function M.of_children() return read(CHILDREN) end

-- What was used between two readings.
function M.between(before, after)
  local out = {}
  for name, value in pairs(after) do out[name] = value - before[name] end
  return out
end

return M
