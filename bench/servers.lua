-- bench.servers: the memcached that contenders talk to, bound to one processor.
--
--   local server = servers.get("default", 0)      --> host, port, pid
--   servers.stop()

local memcached = require "spec.support.memcached"

local M = {}

-- One worker thread; room for all that the workloads store; values a little above 1 MiB.
local COMMON = { "-t", "1", "-m", "512", "-I", "2m" }

-- `long` answers 200 requests of a connection before it turns to the next, not 20.
local MORE = { default = {}, long = { "-R", "200" } }

local running = {}

-- Started when it is first asked for. Ends with this program at the latest.
function M.get(kind, core)
  if not running[kind] then
    local args = { unpack(COMMON) }
    for _, word in ipairs(MORE[kind]) do args[#args + 1] = word end
    running[kind] = memcached.start {
      args = args, inside = { "taskset", "-c", tostring(core) }, host = "127.0.0.1",
    }
  end
  return running[kind]
end

function M.stop()
  memcached.stop_all()
  running = {}
end

return M
