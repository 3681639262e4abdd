-- A server that the spec plays itself, by hand: nothing is sent, read or closed before the spec
-- says so, and a spec that does not wait in between does it all within one turn.
--
--   local peer = hand.listen()
--   local conn = peer:connect("timeout=1s")      -- over meta, which needs no greeting
--   local task = mj.spawn(function() return conn:get("key") end)
--   local line = peer:line()                     --> "mg key v O..."
--   peer:send("VA 1", hand.token(line), "\r\nx\r\n")
--   peer:close()                                 -- the connection; finish() closes all

local mj = require "moonjay"
local posix = require "spec.support.posix"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local SECONDS = 10 -- for anything the client is to do

local live = {}

-- options: of posix.listen.
function M.listen(options)
  local listener, port = assert(posix.listen(options or {}))
  local self = setmetatable({
    listener = listener, text = "", url = "memcache://127.0.0.1:" .. port,
  }, M)
  live[self] = true
  return self
end

-- Connects with these options and takes the connection; over meta unless they say otherwise.
function M:connect(options, ...)
  if not options:find("protocol=", 1, true) then options = "protocol=meta&" .. options end
  local conn = assert(mj.connect(self.url .. "?" .. options:gsub("&$", ""), ...))
  self.fd = wait.until_true(SECONDS, "the client to connect", function()
    return posix.accept(self.listener)
  end)
  posix.setsockopt(self.fd, posix.IPPROTO_TCP, posix.TCP_NODELAY, 1)
  return conn
end

-- All that has come and was not taken as a line, and whether the client has ended. What is
-- read stays for the next call.
function M:received()
  while true do
    local bytes, _, code = posix.recv(self.fd)
    if not bytes or bytes == "" then return self.text, code ~= posix.EAGAIN end
    self.text = self.text .. bytes
  end
end

-- The same, once the client has ended.
function M:received_to_end()
  wait.until_true(SECONDS, "the client to end", function()
    local _, ended = self:received()
    return ended
  end)
  return self.text
end

-- The next line that the client sends, without its end.
function M:line()
  return wait.until_true(SECONDS, "a line of the client", function()
    self.text = self.text .. (posix.recv(self.fd) or "")
    local line, rest = self.text:match("^([^\r]*)\r\n(.*)$")
    self.text = rest or self.text
    return line
  end)
end

-- The next `count` lines.
function M:lines(count)
  local lines = {}
  for i = 1, count do lines[i] = self:line() end
  return lines
end

-- The opaque token of a request as a reply repeats it: " O..."; "" where it has none.
function M.token(line)
  return line:match(" O%S+") or ""
end

-- Sends all of it, which must fit the buffers of a socket.
function M:send(...)
  local bytes = table.concat { ... }
  assert(posix.send(self.fd, bytes, 0) == #bytes, "sent in part")
end

-- Ends the connection, with a reset if so told.
function M:close(reset)
  if not self.fd then return end
  if reset then posix.linger_zero(self.fd) end
  posix.close(self.fd)
  self.fd = nil
end

function M:finish()
  self:close()
  posix.close(self.listener)
  live[self] = nil
end

function M.finish_all()
  for peer in pairs(live) do peer:finish() end
end

return M
