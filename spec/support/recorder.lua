-- A proxy on loopback that keeps what the client sends.
--
--   luajit spec/support/recorder.lua --to-port N | --to-unix PATH
--
-- Prints "READY 127.0.0.1 <port>"; when its standard input ends, one JSON object:
-- { connections = n, sent_b64 = ... }, the bytes of all connections in the order they came.

package.path = "./?.lua;" .. package.path

local base64 = require "spec.support.base64"
local cjson = require "cjson"
local loop = require "spec.support.loop"
local posix = require "spec.support.posix"

local target = { port = tonumber(arg[2]) }
if arg[1] == "--to-unix" then target = { unix = arg[2] } end

local sent, connections, over = {}, 0, false

local function send_all(fd, data)
  local from = 0
  while from < #data do
    local count, _, code = posix.send(fd, data, from)
    if count then
      from = from + count
    elseif code == posix.EAGAIN then
      loop.writable(fd, 0.1)
    else
      return false
    end
  end
  return true
end

-- Copies until `from` ends, then ends the other way's output; keeps the bytes in `record`.
local function pump(from, to, record)
  while not over do
    if loop.readable(from, 0.05) then
      local data, _, code = posix.recv(from)
      if data == "" or not data and code ~= posix.EAGAIN then break end
      if data then
        if record then record[#record + 1] = data end
        if not send_all(to, data) then break end
      end
    end
  end
  posix.shutdown_write(to)
end

local function join(client)
  connections = connections + 1
  local server = assert(posix.connect(target))
  loop.start(pump, client, server, sent)
  loop.start(pump, server, client)
end

local listener, port = assert(posix.listen { backlog = 512 })
print("READY 127.0.0.1 " .. port)
io.stdout:flush()

loop.start(function()
  while not over do
    if loop.readable(listener, 0.05) then
      local client = posix.accept(listener)
      if client then join(client) end
    end
  end
end)
loop.start(function()
  while not (loop.readable(0, 1) and posix.read(0) == "") do end
  -- What the client wrote last may still be on its way through the kernel.
  loop.sleep(0.01)
  over = true
end)
loop.run()
print(cjson.encode { connections = connections, sent_b64 = base64.encode(table.concat(sent)) })
