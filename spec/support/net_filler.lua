-- Prepares a real memcached for a net case, as a client that shares no line with moonjay.
--
--   luajit spec/support/net_filler.lua PLAN
--
-- PLAN is a file with one JSON object: host and port, or path; preload = { key = value };
-- preload_fill = { key = size }; connections = how many to open, if the server takes them;
-- fill_until = a text: open more until the server says that. When all is done it prints
-- "READY", and holds the connections open until its standard input ends.

package.path = "./?.lua;" .. package.path

local cjson = require "cjson"
local posix = require "spec.support.posix"

local SECONDS, CONNECTIONS_MOST = 10, 2000
local FULL = 0.3 -- seconds; a server that takes none for so long is full

local plan = cjson.decode(assert(posix.read_file(arg[1])))
local stop = posix.now() + SECONDS

local function connect()
  return assert(posix.connect { host = plan.host, port = plan.port, unix = plan.path })
end

local function ready(fd, events, seconds)
  return next(posix.poll({ { fd, events } }, seconds)) ~= nil
end

local function send_all(fd, data)
  local from = 0
  while from < #data do
    assert(posix.now() < stop, "the server takes nothing")
    if ready(fd, posix.POLLOUT, 0.1) then from = from + assert(posix.send(fd, data, from)) end
  end
end

local function read_line(fd)
  local text = ""
  while not text:find("\n", 1, true) do
    assert(posix.now() < stop, "the server says nothing")
    if ready(fd, posix.POLLIN, 0.1) then
      local data = assert(posix.recv(fd))
      assert(data ~= "", "the server has closed")
      text = text .. data
    end
  end
  return text
end

local function store(fd, key, value)
  send_all(fd, ("set %s 0 0 %d\r\n%s\r\n"):format(key, #value, value))
  local line = read_line(fd)
  assert(line == "STORED\r\n", line)
end

local function preload()
  local fd = connect()
  for key, value in pairs(plan.preload or {}) do store(fd, key, value) end
  for key, size in pairs(plan.preload_fill or {}) do store(fd, key, ("x"):rep(size)) end
  posix.close(fd)
end

-- Opens connections, each of which says what it was told on the way in.
local function fill_until(text)
  for _ = 1, CONNECTIONS_MOST do
    local fd = connect()
    send_all(fd, "version\r\n")
    if read_line(fd):find(text, 1, true) then return end
  end
  error("the server never said: " .. text)
end

preload()
for _ = 1, plan.connections or 0 do
  if not ready(connect(), posix.POLLOUT, FULL) then break end
end
if plan.fill_until then fill_until(plan.fill_until) end
print "READY"
io.stdout:flush()
while posix.read(0) ~= "" do posix.sleep(0.01) end
