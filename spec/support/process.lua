-- Child processes of a spec. None outlives the runner: each dies with it (setpriv --pdeathsig),
-- and process.stop_all() ends what a spec left.
--
--   local child = process.start { "luajit", "fake.lua" }
--   child:read_line(5)       --> "READY 127.0.0.1 4711"
--   child:finish(5)          --> all it still printed, its exit status

local posix = require "spec.support.posix"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local live = {}

-- options: the words of the command; env = { NAME = value }; input = true for a pipe to its
-- standard input (else /dev/null); errors = true to read its standard error too (else it is
-- ours).
function M.start(options)
  local argv = { "setpriv", "--pdeathsig", "KILL", "--", "env" }
  for name, value in pairs(options.env or {}) do argv[#argv + 1] = name .. "=" .. value end
  for _, word in ipairs(options) do argv[#argv + 1] = word end
  local self = setmetatable({ text = "", error_text = "", command = options[1] }, M)
  local files, theirs = { [0] = "/dev/null" }, {}
  self.out, files[1] = posix.pipe()
  theirs[1] = files[1]
  if options.errors then
    self.err, files[2] = posix.pipe()
    posix.nonblocking(self.err)
    theirs[#theirs + 1] = files[2]
  end
  if options.input then
    files[0], self.input = posix.pipe()
    theirs[#theirs + 1] = files[0]
  end
  posix.nonblocking(self.out)
  local pid, reason = posix.spawn(argv, files)
  for _, fd in ipairs(theirs) do posix.close(fd) end
  if not pid then
    self:close_pipes()
    error(reason, 2)
  end
  self.pid = pid
  live[self] = true
  return self
end

-- Reads what is there. False once both ends are closed.
local function pull(self)
  for fd_name, text_name in pairs { out = "text", err = "error_text" } do
    while self[fd_name] do
      local data = posix.read(self[fd_name])
      if not data then break end
      if data == "" then
        posix.close(self[fd_name])
        self[fd_name] = nil
      else
        self[text_name] = self[text_name] .. data
      end
    end
  end
  return self.out ~= nil or self.err ~= nil
end

-- The next line it prints; throws when none comes in time.
function M:read_line(seconds)
  local line, rest
  wait.until_true(seconds, "a line from " .. self.command, function()
    local more = pull(self)
    line, rest = self.text:match("^([^\n]*)\n(.*)$")
    if not line and not more then
      error(("%s ended without a line; status %s"):format(self.command, self:wait(1)), 0)
    end
    return line
  end)
  self.text = rest
  return line
end

function M:write(text)
  posix.write(self.input, text)
end

function M:close_input()
  if self.input then posix.close(self.input) end
  self.input = nil
end

function M:close_pipes()
  self:close_input()
  for _, name in ipairs { "out", "err" } do
    if self[name] then posix.close(self[name]) end
    self[name] = nil
  end
end

-- True while the process has not been reaped and has not ended.
function M:running()
  if not self.status then self.status = posix.reap(self.pid) end
  return self.status == nil
end

function M:signal(number)
  if self:running() then posix.kill(self.pid, number) end
end

-- Its exit status, 128 + n when a signal ended it; throws when it does not end in time.
function M:wait(seconds)
  wait.until_true(seconds, self.command .. " to end", function() return not self:running() end)
  return self.status
end

-- Ends its input, reads to the end of its output: all it printed, its exit status, its errors.
function M:finish(seconds)
  self:close_input()
  wait.until_true(seconds, self.command .. " to end", function()
    return not pull(self) and not self:running()
  end)
  live[self] = nil
  return self.text, self.status, self.error_text
end

-- Ends it now, whatever it does. Harmless on one that has ended.
function M:stop()
  if self:running() then
    posix.kill(self.pid, posix.SIGKILL)
    self:wait(5)
  end
  self:close_pipes()
  live[self] = nil
end

function M.stop_all()
  for child in pairs(live) do child:stop() end
end

return M
