-- A server that sends without end, or what no server would: a process of its own, in plain
-- LuaJIT.
--
--   luajit spec/support/flood.lua
--
-- The first line of its standard input is a JSON object with, all optional:
--
--   wait    how many lines to read before it begins
--   head    sent first; $O becomes " O" and the token of the first line, $K its key
--   chunk   sent again and again; each %d in it becomes a running number
--   count   how often; else until the client leaves
--   deaf    true: it reads nothing
--
-- It takes any number of connections, and plays the same on each. Prints "READY 127.0.0.1
-- <port>"; when its input ends, one JSON object: { connections, sent }, sent being the bytes
-- that the system took.

package.path = "./?.lua;" .. package.path

local cjson = require "cjson"
local loop = require "spec.support.loop"
local posix = require "spec.support.posix"

local play = cjson.decode(io.read("*l"))
local PIECE = 65536

local connections, sent, over = 0, 0, false

-- False once the client is gone.
local function send_all(fd, data)
  local from = 0
  while from < #data do
    local count, _, code = posix.send(fd, data, from)
    if count then
      from, sent = from + count, sent + count
    elseif code ~= posix.EAGAIN then
      return false
    elseif over then
      return false
    else
      loop.writable(fd, 0.1)
    end
  end
  return true
end

-- Reads `count` lines. The first of them, or nil when the client is gone.
local function read_lines(fd, count)
  if count == 0 then return "" end
  local text = ""
  while true do
    loop.readable(fd, 0.1)
    local data, _, code = posix.recv(fd)
    if data == "" or over or not data and code ~= posix.EAGAIN then return nil end
    text = text .. (data or "")
    if select(2, text:gsub("\n", "")) >= count then return text:match("^[^\r]*") end
  end
end

local function head_for(line)
  local words = { O = line:match(" O%S+") or "", K = line:match("^%S+ (%S+)") or "" }
  return (play.head:gsub("%$([OK])", words))
end

-- Chunks, as many in one string as make it worth a send.
local function next_piece(state, left)
  local each = math.max(1, math.floor(PIECE / #play.chunk))
  each = math.min(each, left)
  if not play.chunk:find("%d", 1, true) then
    if state.size ~= each then state.size, state.piece = each, play.chunk:rep(each) end
    return state.piece, each
  end
  local list = {}
  for i = 1, each do
    state.number = state.number + 1
    list[i] = play.chunk:gsub("%%d", state.number)
  end
  return table.concat(list), each
end

local function flood(fd)
  local left, state = play.count or math.huge, { number = 0 }
  while left > 0 and not over do
    local piece, each = next_piece(state, left)
    if not send_all(fd, piece) then return end
    left = left - each
    loop.sleep(0) -- the other connections
  end
end

-- Until the client leaves.
local function swallow(fd)
  while not over do
    loop.readable(fd, 0.1)
    local data, _, code = posix.recv(fd)
    if data == "" or not data and code ~= posix.EAGAIN then return end
  end
end

local function serve(fd)
  connections = connections + 1
  local line = read_lines(fd, play.wait or 0)
  if line then
    if play.head then send_all(fd, head_for(line)) end
    if play.chunk then flood(fd) end
    while play.deaf and not over do loop.sleep(0.05) end
    swallow(fd)
  end
  posix.close(fd)
end

local listener, port = assert(posix.listen { backlog = 512 })
print("READY 127.0.0.1 " .. port)
io.stdout:flush()

loop.start(function()
  while not over do
    if loop.readable(listener, 0.05) then
      local fd = posix.accept(listener)
      if fd then loop.start(serve, fd) end
    end
  end
end)
loop.start(function()
  while not (loop.readable(0, 1) and posix.read(0) == "") do end
  over = true
end)
loop.run()
print(cjson.encode { connections = connections, sent = sent })
