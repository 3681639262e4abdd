-- Peers that are no memcached, or an odd one: a scripted fake from steps given in the spec.
--
--   local peer = peers.start { { after_line = true, send = "HTTP/1.1 400 Bad Request\r\n" } }
--   mj.connect(peer.url)
--   local report = peer:finish()     -- what each connection received, as wirefake reports it

local base64 = require "spec.support.base64"
local cjson = require "cjson"
local posix = require "spec.support.posix"
local process = require "spec.support.process"

local M = {}
M.__index = M

local function with_bytes(step)
  local out = {}
  for name, value in pairs(step) do out[name] = value end
  out.send, out.bytes_b64 = nil, step.send and base64.encode(step.send)
  return out
end

local function write_case(connections)
  local list = {}
  for i, steps in ipairs(connections) do
    local chunks = {}
    for j, step in ipairs(steps) do chunks[j] = with_bytes(step) end
    list[i] = { chunks = chunks }
  end
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(cjson.encode { id = "peer", kind = "wire", connections = list }, "\n")
  file:close()
  return name
end

-- Each argument is a list of steps (wire_script.lua; `send` is text), for one connection each.
function M.start(...)
  local name = write_case { ... }
  local child = process.start {
    "luajit", "spec/support/wirefake.lua", "--case", name, "--id", "peer",
    "--linger-ms", "5000", "--max-seconds", "30", input = true,
  }
  local port = tonumber(child:read_line(10):match("^READY %S+ (%d+)$"))
  os.remove(name)
  return setmetatable({
    process = child, port = port, url = "memcache://127.0.0.1:" .. port,
  }, M)
end

function M:with(options)
  return self.url .. "?" .. options
end

-- Ends the peer. { connections = { { received = bytes, requests = n }, ... } }
function M:finish()
  local report = cjson.decode((self.process:finish(30)))
  for _, conn in ipairs(report.connections) do
    conn.received = base64.decode(conn.received_b64)
  end
  return report
end

-- A listener that takes no connection: its queue is full. Call close() when done.
function M.blackhole()
  local listener, port = assert(posix.listen { backlog = 0 })
  local held = { listener }
  for _ = 1, 4 do held[#held + 1] = posix.connect { port = port } end
  return {
    port = port, url = "memcache://127.0.0.1:" .. port,
    close = function()
      for _, fd in ipairs(held) do posix.close(fd) end
    end,
  }
end

return M
