-- A real memcached for specs, on a private unix socket or a free port of 127.0.0.1.
--
--   local server = memcached.start { unix = true }
--   mj.connect(server.url)
--   server:pause()  server:resume()  server:kill()
--   memcached.stop_all()             -- in a teardown: also after a failed spec

local posix = require "spec.support.posix"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local live = {}
local START_SECONDS = 10

-- Below the ports that the kernel gives to connections, so that none of these is in the way of
-- a server that comes later, or comes back.
local FIRST_PORT, PORTS = 12000, 20000
local next_port

-- A port that was free a moment ago; a new one each time.
function M.free_port()
  next_port = next_port or posix.getpid() * 7919 + math.floor(posix.now() * 1e6)
  for _ = 1, PORTS do
    next_port = next_port + 1
    local fd, port = posix.listen { port = FIRST_PORT + next_port % PORTS }
    if fd then
      posix.close(fd)
      return port
    end
  end
  error("no port is free")
end

-- Whether something takes connections there.
local function answers(where)
  local fd = posix.connect(where)
  if not fd then return false end
  local ready = posix.poll({ { fd, posix.POLLOUT } }, 1)[fd]
  local fine = ready and posix.getsockopt(fd, posix.SOL_SOCKET, 4) == 0
  posix.close(fd)
  return fine
end

-- Whether memcached itself (not what starts it) listens on this port or path, in whatever
-- network namespace it is. Reading /proc needs no connection, which would count.
function M.listens(pid, where)
  local function has(name, text)
    local sockets = posix.read_file(("/proc/%d/net/%s"):format(pid, name)) or ""
    return sockets:find(text) ~= nil
  end
  if posix.read_file(("/proc/%d/comm"):format(pid)) ~= "memcached\n" then return false end
  if type(where) == "string" then return has("unix", where:gsub("%p", "%%%0") .. "\n") end
  local listening = (":%04X 0+:0000 0A "):format(where)
  return has("tcp", listening) or has("tcp6", listening)
end

local function command(self, args)
  local words = {}
  for _, word in ipairs(self.inside or {}) do words[#words + 1] = word end
  words[#words + 1] = "memcached"
  if posix.is_root() then
    words[#words + 1] = "-u"
    words[#words + 1] = "root"
  end
  if self.path then
    words[#words + 1] = "-s"
    words[#words + 1] = self.path
  else
    for _, word in ipairs { "-l", self.host, "-p", tostring(self.port), "-U", "0" } do
      words[#words + 1] = word
    end
  end
  for _, word in ipairs(args) do words[#words + 1] = word end
  return words
end

local function launch(self)
  local words = command(self, self.args)
  words.errors = true
  self.process = process.start(words)
  wait.until_true(START_SECONDS, "memcached to answer", function()
    if not self.process:running() then
      local _, status, errors = self.process:finish(1)
      error(("memcached ended with status %d: %s"):format(status, errors), 0)
    end
    if self.inside then return M.listens(self.process.pid, self.port) end
    return answers(self.path and { unix = self.path } or { port = self.port })
  end)
end

-- options (all optional): unix = true for a socket file, args = more words for memcached, port,
-- host; inside = words that go before the command, to enter a network namespace (see link).
-- Returns a server that answers: url, host and port or path, pid.
function M.start(options)
  options = options or {}
  local self = setmetatable({ args = options.args or {}, inside = options.inside }, M)
  if options.unix then
    self.directory = posix.make_directory()
    self.path = self.directory .. "/mc.sock"
    self.url = "memcache://" .. self.path
  else
    self.host, self.port = options.host or "127.0.0.1", options.port or M.free_port()
    self.url = ("memcache://%s:%d"):format(self.host, self.port)
  end
  live[self] = true
  launch(self)
  self.pid = self.process.pid
  return self
end

-- The URL with options: server:with("timeout=250ms&protocol=meta").
function M:with(options)
  return self.url .. "?" .. options
end

-- Stops the whole process: it answers nothing, but the kernel still takes connections.
function M:pause()
  self.process:signal(posix.SIGSTOP)
  wait.until_true(5, "memcached to stop", function()
    local file = assert(io.open(("/proc/%d/stat"):format(self.pid)))
    local state = file:read("*a"):match("^.*%) (%a)")
    file:close()
    return state == "T"
  end)
end

function M:resume()
  self.process:signal(posix.SIGCONT)
end

-- Ends it as a crash would, and waits until it is gone.
function M:kill()
  self.process:stop()
end

-- Starts it again at the same place, with nothing in it.
function M:restart()
  self:kill()
  if self.path then posix.remove_file(self.path) end
  launch(self)
  self.pid = self.process.pid
end

function M:stop()
  self:kill()
  if self.directory then
    posix.remove_file(self.path)
    posix.remove_directory(self.directory)
  end
  live[self] = nil
end

function M.stop_all()
  for server in pairs(live) do server:stop() end
end

return M
