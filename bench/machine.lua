-- bench.machine: where it was measured, for the tables and for build/bench.json.
--
--   local machine = machine.describe()     --> { cpu = "...", processors = 2, ... }
--   machine.cores()                        --> { 0, 1 }, those this process may use

local contenders = require "bench.contenders"
local posix = require "spec.support.posix"

local M = {}

local function field(path, pattern)
  return (posix.read_file(path) or ""):match(pattern)
end

-- The processors that this process may use, by number.
function M.cores()
  local out = {}
  local list = assert(field("/proc/self/status", "Cpus_allowed_list:%s*(%S+)"))
  for first, last in list:gmatch("(%d+)%-?(%d*)") do
    for core = tonumber(first), tonumber(last) or tonumber(first) do out[#out + 1] = core end
  end
  return out
end

function M.describe()
  return {
    cpu = field("/proc/cpuinfo", "model name%s*:%s*([^\n]*)") or jit.arch,
    processors = #M.cores(),
    memory_mib = math.floor(tonumber(field("/proc/meminfo", "MemTotal:%s*(%d+)")) / 1024),
    kernel = field("/proc/sys/kernel/osrelease", "%S+"),
    system = field("/etc/os-release", 'PRETTY_NAME="([^"]*)"') or "Linux",
    luajit = jit.version,
    memcached = contenders.first_line { "memcached", "--version" },
    commit = contenders.first_line { "git", "describe", "--always", "--dirty" },
    date = os.date "!%Y-%m-%d %H:%M UTC",
  }
end

return M
