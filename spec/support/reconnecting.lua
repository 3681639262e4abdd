-- A small client for the net cases: connections that are made anew after they have ended, as
-- lua/examples/reconnect.lua does it. moonjay's own client is yet to come; a connection has one
-- life, so somebody has to connect again.
--
--   local client = reconnecting.new("memcache://127.0.0.1:4711?protocol=meta", 0.2, 1)
--   client:call(0.2, function(conn) return conn:get("key") end)   --> what that gives
--
-- Nothing is retried, but what was never sent because its connection had ended. After a failed
-- attempt the next one waits (a pause that doubles, up to a quarter of a second); who calls
-- meanwhile gets that failure at once. A connection is attempted by one task at a time.

local mj = require "moonjay"

local M = {}
M.__index = M

local FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25 -- seconds

-- url: has options already, but no timeout; timeout: of requests, in seconds; connections: how
-- many, used in turn.
function M.new(url, timeout, connections)
  local self = setmetatable({
    url = ("%s&timeout=%gs"):format(url, timeout), timeout = timeout,
    slots = {}, turn = 0, connected = 0,
  }, M)
  for i = 1, connections do self.slots[i] = {} end
  return self
end

local function attempt(self, slot, seconds)
  local url = ("%s&connect_timeout=%gs"):format(self.url, seconds)
  local conn, err = mj.connect(url)
  slot.connecting, slot.conn, slot.failure = nil, conn, err
  if conn then
    self.connected, slot.pause = self.connected + 1, nil
  else
    slot.pause = math.min(LONGEST_PAUSE, slot.pause and 2 * slot.pause or FIRST_PAUSE)
    slot.not_before = mj.now() + slot.pause * (0.5 + math.random() / 2)
  end
  return conn, err
end

-- The open connection of this slot, or nil and an error.
local function open(self, slot, seconds)
  if slot.conn and slot.conn:is_open() then return slot.conn end
  if not slot.connecting then
    if slot.failure and mj.now() < slot.not_before then return nil, slot.failure end
    slot.connecting = mj.spawn(attempt, self, slot, seconds)
  end
  return slot.connecting:wait()
end

local function call_slot(self, slot, seconds, ask)
  local conn, err = open(self, slot, seconds)
  if not conn then return nil, err end
  if seconds >= self.timeout then return ask(conn) end
  return mj.deadline(seconds, ask, conn)
end

-- Calls ask(conn) with an open connection. `seconds` (at most the timeout of requests) bounds
-- the attempt to connect and the call, each by itself.
function M:call(seconds, ask)
  self.turn = self.turn % #self.slots + 1
  local slot = self.slots[self.turn]
  local value, more = call_slot(self, slot, seconds, ask)
  if value == nil and mj.errors.is(more, "closed") and more.sent == "no" then
    return call_slot(self, slot, seconds, ask)
  end
  return value, more
end

function M:close()
  for _, slot in ipairs(self.slots) do
    if slot.conn then slot.conn:close() end
  end
end

return M
