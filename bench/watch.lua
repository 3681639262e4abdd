-- bench.watch: whether anything else used the processors of a measurement while it ran.
--
--   local before = watch.read(server.pid, { 0 })
--   ... a contender runs on processor 0, and is reaped ...
--   local reasons = watch.compare(before, watch.read(server.pid, { 0 }), result)
--
-- What client and server do on the same processor they do to each other: one stops where the
-- other goes on. What is left was somebody else: CPU of the processor that neither of them
-- used, CPU that the machine's host took (steal), switches away from the client that were not
-- to the server, and a load that those two do not make.

local lfs = require "lfs"
local posix = require "spec.support.posix"
local usage = require "bench.usage"

local M = {}

local TICKS = 100 -- of /proc/stat, per second

-- Above these a measurement is marked: shares of a processor, switches per second, and
-- processes that are ready to run beyond one for each processor.
local OTHERS, STEAL, SWITCHES, LOAD = 0.05, 0.01, 50, 1

-- Seconds that a processor was busy, and those that the host took.
local function processor(text, core)
  local line = assert(text:match("\ncpu" .. core .. " ([^\n]*)"), "no such processor")
  local t = {}
  for ticks in line:gmatch("%d+") do t[#t + 1] = tonumber(ticks) / TICKS end
  -- user, nice, system, idle, iowait, irq, softirq, steal
  return t[1] + t[2] + t[3] + t[6] + t[7], t[8]
end

-- CPU seconds and context switches of all threads of a process.
local function threads(pid)
  local cpu, switches = 0, 0
  local folder = ("/proc/%d/task/"):format(pid)
  for name in lfs.dir(folder) do
    local ran = (posix.read_file(folder .. name .. "/schedstat") or ""):match("^%d+")
    cpu = cpu + (tonumber(ran) or 0) / 1e9
    local status = posix.read_file(folder .. name .. "/status") or ""
    for count in status:gmatch("_ctxt_switches:%s*(%d+)") do switches = switches + count end
  end
  return cpu, switches
end

-- What has been used until now. cores: those of server and client, one of them or two.
function M.read(server_pid, cores)
  local text, out = posix.read_file("/proc/stat"), { busy = 0, steal = 0, cores = #cores }
  for _, core in ipairs(cores) do
    local busy, steal = processor(text, core)
    out.busy, out.steal = out.busy + busy, out.steal + steal
  end
  out.at = posix.now()
  out.server, out.switches = threads(server_pid)
  local children = usage.of_children()
  out.client = children.user + children.system
  out.load = tonumber(posix.read_file("/proc/loadavg"):match("^%S+"))
  return out
end

local processors
local function processor_count()
  if not processors then
    local _, count = posix.read_file("/proc/stat"):gsub("\ncpu%d", "")
    processors = count
  end
  return processors
end

-- What disturbed a measurement, as a list of words; empty: nothing did. result: what the client
-- said of itself.
function M.compare(before, after, result)
  local reasons = {}
  local function add(bound, value, words, ...)
    if value > bound then reasons[#reasons + 1] = words:format(...) end
  end
  local passed = (after.at - before.at) * after.cores
  local steal = (after.steal - before.steal) / passed
  local others = (after.busy - before.busy - (after.server - before.server)
    - (after.client - before.client)) / passed
  -- On a processor of its own nothing of ours stops the client.
  local ours = after.cores == 1 and after.switches - before.switches or 0
  local switches = (result.involuntary - ours) / result.seconds
  add(OTHERS, others, "others %.0f%%", others * 100)
  add(STEAL, steal, "steal %.0f%%", steal * 100)
  add(SWITCHES, switches, "switches %.0f/s", switches)
  add(processor_count() + LOAD, before.load, "load %.1f", before.load)
  return reasons
end

return M
