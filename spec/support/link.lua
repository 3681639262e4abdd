-- Two network namespaces joined by a wire that is as slow and as bad as asked for (link.c).
--
--   local reason = link.lacks()               --> nil, or "needs root"
--   local wire = link.start { delay_ms = 10 } -- also jitter_ms, loss_percent, rate_kbit, seed
--   local server = memcached.start { inside = wire:server(), host = wire.server_host }
--   process.start(wire:client { "moonjay", "script.lua", server.url })
--   wire:order "down"  wire:order "delay-ms 50"
--   wire:stop()                               -- link.stop_all(), in a teardown
--
-- The figures hold for each direction. No packet leaves the two namespaces.

local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"

local M = {}
M.__index = M

local SECONDS = 10 -- for anything that link is to do
local NOT_ALLOWED = 77

local live = {}

M.path = program.path:match("^(.*)/") .. "/spec/link"

local function status_of_trial()
  local child = process.start { M.path, errors = true }
  local _, status, errors = child:finish(SECONDS)
  return status, errors
end

local reason

-- Why there can be no link here, or nil. Where it should work and does not, it throws.
function M.lacks()
  if reason == nil then
    local status, errors = 0, nil
    reason = false
    if not posix.is_root() then
      reason = "needs root"
    elseif not posix.exists("/dev/net/tun") then
      reason = "needs /dev/net/tun"
    else
      status, errors = status_of_trial()
    end
    if status == NOT_ALLOWED then reason = "needs the rights of root" end
    assert(status == 0 or status == NOT_ALLOWED, errors)
  end
  return reason or nil
end

-- options: delay_ms, jitter_ms, loss_percent, rate_kbit, seed. Ends with the runner.
function M.start(options)
  local words = { M.path, input = true }
  for name, value in pairs(options or {}) do
    words[#words + 1] = "--" .. name:gsub("_", "-")
    words[#words + 1] = tostring(value)
  end
  local child = process.start(words)
  local client, server = child:read_line(SECONDS):match("^READY (%S+) (%S+)$")
  local self = setmetatable({
    process = child, client_space = client, server_space = server,
    client_host = "10.77.0.1", server_host = "10.77.0.2",
  }, M)
  live[self] = true
  return self
end

local function enter(space, words)
  local all = { "nsenter", "--net=" .. space, "--" }
  for name, value in pairs(words) do
    if type(name) == "string" then all[name] = value end
  end
  for _, word in ipairs(words) do all[#all + 1] = word end
  return all
end

-- The words of a command (with its options, for process.start) that runs it on that side; by
-- default of no command, to be put before one.
function M:client(words) return enter(self.client_space, words or {}) end
function M:server(words) return enter(self.server_space, words or {}) end

-- Changes the wire while it is in use: "down", "up", "delay-ms N", "loss-percent N", ...
function M:order(text)
  self.process:write(text .. "\n")
  local answer = self.process:read_line(SECONDS)
  assert(answer == "OK", text .. ": " .. answer)
end

function M:stop()
  self.process:stop()
  live[self] = nil
end

function M.stop_all()
  for wire in pairs(live) do wire:stop() end
end

return M
