-- The fault proxy (spec/proxy): a process between a client and a real server, which delays,
-- slows, stalls, cuts, resets, refuses and lies as it is told.
--
--   local fault = proxy.start()
--   local route = fault:route { to = server }         -- route.url; unix = true: a socket file
--   route:set { piece_down = 1, gap = 0.0001 }        -- one byte per segment
--   route:act("cut_value_down", "all")                -- the next value ends in its middle
--   route:act("reset", "one")   route:links()   fault:counters().resets
--   proxy.stop_all()                                  -- in a teardown
--
-- Settings hold for all links of a route, also those that are open (but for cut_*, which new
-- links take with them):
--
--   accept                  "forward", "mute" (take and say nothing), "reset", "refuse"
--   delay_up, delay_down    seconds that bytes wait, to the server and to the client
--   piece_up, piece_down    bytes in one write; 0: as they come
--   gap                     seconds between two pieces
--   cut_up, cut_down        a link ends after so many bytes; -1: never
--   ending                  how a cut link ends: "close", "reset"
--   lie, lies               "none", "flip" (a byte of a value), "older" (an earlier value of
--                           the same name), "other" (another's value), "stored" ("not stored"
--                           becomes "stored"); how many
--
-- Deeds: "reset", "close", "half_up", "half_down" (the server, or the client, is told that no
-- more comes), "stall" (for some seconds), "cut_value_up", "cut_value_down"; on "all", "one"
-- (any) or "newest" of the links that are open.

local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local Route = {}
Route.__index = Route

local SECONDS = 60 -- for an answer of the proxy: on a busy machine many ask at a time

local live = {}

-- options: seed, of its choices. The proxy of a build stands beside its program.
function M.start(options)
  local words = {
    program.path:match("^(.*)/") .. "/spec/proxy", tostring(options and options.seed or 1),
    input = true,
  }
  local self = setmetatable({ process = process.start(words), count = 0, line = {} }, M)
  self.directory = posix.make_directory()
  live[self] = true
  return self
end

local function take_turn(self, turn)
  wait.until_true(SECONDS, "the proxy to be free", function() return self.line[1] == turn end)
end

local function exchange(self, command)
  self.process:write(command .. "\n")
  return self.process:read_line(SECONDS)
end

local function leave_line(self, turn)
  for i, one in ipairs(self.line) do
    if one == turn then return table.remove(self.line, i) end
  end
end

-- Sends a command and waits for its answer: what stands behind the "ok". Tasks take turns, in
-- the order in which they came.
function M:ask(command)
  local turn = {}
  self.line[#self.line + 1] = turn
  local fine, answer = pcall(take_turn, self, turn)
  if fine then fine, answer = pcall(exchange, self, command) end
  leave_line(self, turn)
  local rest = fine and answer:match("^ok ?(.*)$")
  if not rest then error(("proxy: %s: %s"):format(command, tostring(answer)), 2) end
  return rest
end

-- A way to a server (of spec.support.memcached, or a table with its port or path). options: to,
-- unix, and any settings.
function M:route(options)
  self.count = self.count + 1
  local route = setmetatable({ proxy = self, name = "route" .. self.count }, Route)
  local from = "tcp:0"
  if options.unix then
    route.path = ("%s/%d.sock"):format(self.directory, self.count)
    from = "unix:" .. route.path
  end
  local to = options.to.path and "unix:" .. options.to.path or "tcp:" .. options.to.port
  local port = self:ask(("route %s %s %s"):format(route.name, from, to))
  if not options.unix then route.port = tonumber(port) end
  route.url = "memcache://" .. (route.path or "127.0.0.1:" .. port)
  local settings = {}
  for name, value in pairs(options) do settings[name] = value end
  settings.to, settings.unix = nil, nil
  if next(settings) then route:set(settings) end
  return route
end

-- What was done so far, over all routes, by name.
function M:counters()
  local counters = {}
  for name, count in self:ask("counters"):gmatch("(%S+)=(%d+)") do
    counters[name] = tonumber(count)
  end
  return counters
end

-- Ends every link, and the process.
function M:stop()
  live[self] = nil
  local _, status = self.process:finish(SECONDS)
  assert(status == 0, "the proxy failed")
  posix.remove_directory(self.directory)
end

function M.stop_all()
  for self in pairs(live) do
    if self.process:running() then self:stop() else live[self] = nil end
  end
end

-- The URL with options: route:with("timeout=250ms&protocol=meta").
function Route:with(options)
  return self.url .. "?" .. options
end

local IN_MICROSECONDS = { delay_up = true, delay_down = true, gap = true }

function Route:set(settings)
  local words = { "set", self.name }
  for name, value in pairs(settings) do
    if IN_MICROSECONDS[name] then value = ("%.0f"):format(value * 1e6) end
    words[#words + 1] = name .. "=" .. value
  end
  self.proxy:ask(table.concat(words, " "))
end

-- How many links it was done to.
function Route:act(deed, which, seconds)
  local span = seconds and (" %.0f"):format(seconds * 1e6) or ""
  return tonumber(self.proxy:ask(("do %s %s %s%s"):format(self.name, deed, which, span)))
end

-- How many links are open.
function Route:links()
  return tonumber(self.proxy:ask("links " .. self.name))
end

return M
