-- A key for which many tasks race: each reads the item and stores by cas. Of all that use one
-- token exactly one may win; a token always shows the same value; what was replaced never comes
-- back, so the tokens that are read only grow.
--
--   local race = Race.new(key, server, report)
--   race:step(run, random, lane)
--
-- The server must not be one that is killed: the numbers of its tokens would begin anew.

local count = require "spec.torture.owner".count
local Lane = require "spec.torture.lane"
local values = require "spec.torture.values"

local M = {}
M.__index = M

function M.new(key, server, report)
  return setmetatable({
    key = key, server = server, report = report, last = 0, sizes = {}, never = {},
    token_of = {},   -- by version: the token it was written with, while that may have won
    version_of = {}, -- by token: what it showed
    winner = {},     -- by token: the version that replaced it
    tries = {},      -- by token: how many used it
    newest = 0,      -- the highest token of all reads that have ended
    added_at = 0, adding = 0,
  }, M)
end

function M:wrong(out, came, allowed)
  self.report:wrong {
    op = out.op, key = self.key, lane = out.lane.url, came = came, allowed = allowed,
  }
end

local function create(self, random)
  self.last = self.last + 1
  local least = values.least(self.key)
  local size = random:chance(0.1) and random:between(17000, 60000)
    or random:between(least, least + 2000)
  self.sizes[self.last] = size
  return self.last, values.make(self.key, self.last, size)
end

-- A version is seen, or its write acknowledged: if it was written with a token, it has won.
local function won(self, out, version)
  local token = self.token_of[version]
  if not token then return end
  local other = self.winner[token]
  if other and other ~= version then
    self:wrong(out, ("version %d has replaced token %s"):format(version, token),
      ("version %d has"):format(other))
  end
  self.winner[token] = version
end

-- The version of an item, when it may be there.
local function judge_item(self, out, item, newest)
  local key, version = values.name_of(item.value)
  if key ~= self.key or not self.sizes[version]
    or values.make(key, version, self.sizes[version]) ~= item.value then
    return self:wrong(out, values.show(item.value), "a value of this key")
  end
  if self.never[version] then
    return self:wrong(out, "version " .. version, "not this one: " .. self.never[version])
  end
  local before = self.version_of[item.cas]
  if before and before ~= version then
    return self:wrong(out, ("version %d with token %s"):format(version, item.cas),
      "version " .. before)
  end
  if tonumber(item.cas) < newest then
    return self:wrong(out, "token " .. item.cas, ("%.0f or above"):format(newest))
  end
  self.version_of[item.cas] = version
  self.newest = math.max(self.newest, tonumber(item.cas))
  won(self, out, version)
  return version
end

local function add(self, run, random, lane, link)
  local version, value = create(self, random)
  self.adding = self.adding + 1
  local out = lane:call(random, "add", function(conn) return conn:add(self.key, value) end,
    { link = link })
  count(run, out, "add", out.value, out.err)
  self.adding, self.added_at = self.adding - 1, out.ended
  if out.err and out.err.sent == "no" or out.value == false then
    self.never[version] = out.err and tostring(out.err) or "not stored"
  elseif out.value == true then
    self.made = true
  end
end

local function replace(self, run, random, lane, link, item, since)
  local version, value = create(self, random)
  local token = item.cas
  self.token_of[version] = token
  self.tries[token] = (self.tries[token] or 0) + 1
  local out = lane:call(random, "cas", function(conn)
    return conn:cas(self.key, value, token)
  end, { link = link })
  count(run, out, "cas", out.value, out.err)
  if out.value == true then return won(self, out, version) end
  if out.err then
    if out.err.sent == "no" then
      self.never[version] = tostring(out.err)
      self.tries[token] = self.tries[token] - 1
    end
    return
  end
  self.never[version] = tostring(out.more)
  if self.server.lossy then return end
  local undisturbed = self.tries[token] == 1 and self.adding == 0 and self.added_at < since
  if out.more == "exists" and undisturbed then
    self:wrong(out, "exists", "done: nobody else has tried that token")
  elseif out.more == "missing" then
    self:wrong(out, "missing", "an item")
  end
end

-- Reads the item and tries to replace it. False when the lane has no connection now.
function M:step(run, random, lane)
  local link = lane:open()
  if not link then return false end
  local newest, made, since = self.newest, self.made, Lane.stamp()
  local out = lane:call(random, "item", function(conn) return conn:item(self.key) end,
    { link = link })
  count(run, out, "item", out.value, out.err)
  if out.err then return true end
  if out.value == nil then
    if made and not self.server.lossy then self:wrong(out, "a miss", "an item") end
    add(self, run, random, lane, link)
    return true
  end
  if judge_item(self, out, out.value, newest) then
    link = lane:open()
    if link then replace(self, run, random, lane, link, out.value, since) end
  end
  return true
end

return M
