-- The oracle of a key that one task alone writes: which versions may be there now.
--
--   possible   what is there for all that is known: versions, and 0 for "nothing". After an
--              answer this is one of them; never an older one again.
--   pending    writes whose fate is unknown: they may still be carried out, at any time until
--              their connection's fence has passed them (lane.lua). 0 stands for a delete.
--   open       writes under way, of which readers must know
--   never      writes that are known not to have been carried out: refused by the server, or
--              reported as sent = "no". They must never be seen.
--
-- A server that is lossy (it evicts, flushes or is killed) may lose a value at any time; on the
-- others a value that was acknowledged must be there.

local Lane = require "spec.torture.lane"
local values = require "spec.torture.values"

local M = {}
M.__index = M

local NOTHING = 0
local PENDING = 4 -- more doubts than this, and the key is given up

-- server: name, lossy. report: where wrong answers go.
function M.new(key, server, report)
  return setmetatable({
    key = key, server = server, report = report, last = 0, sizes = {}, flags = {},
    possible = { [0] = true }, pending = {}, open = {}, never = {}, writes = 0,
  }, M)
end

-- ---- versions ----

-- A version that no value had before, and that value. flags: what it is written with, where
-- that is not M.flags_of(version).
function M:create(size, flags)
  self.last = self.last + 1
  self.writes = self.writes + 1
  self.sizes[self.last] = size
  self.flags[self.last] = flags or M.flags_of(self.last)
  self.open[self.last] = true
  return self.last, values.make(self.key, self.last, size)
end

function M.flags_of(version) return version * 7 % 65536 end

local function is_pending(self, version)
  for _, doubt in ipairs(self.pending) do
    if doubt.version == version then return true end
  end
  return false
end

function M:allows(version)
  return self.possible[version] or is_pending(self, version)
end

function M:may_miss()
  return self.server.lossy or self:allows(NOTHING)
end

-- Whether some value may be there.
function M:may_hit()
  for version in pairs(self.possible) do
    if version ~= NOTHING then return true end
  end
  for _, doubt in ipairs(self.pending) do
    if doubt.version ~= NOTHING then return true end
  end
  return false
end

-- Whether the key is better left alone from now on.
function M:is_spent()
  return #self.pending > PENDING or self.writes > 400
end

local function describe(self)
  local words = {}
  for version in pairs(self.possible) do
    words[#words + 1] = version == NOTHING and "nothing" or "version " .. version
  end
  for _, doubt in ipairs(self.pending) do
    words[#words + 1] = (doubt.version == NOTHING and "a delete" or "version " .. doubt.version)
      .. " that may be carried out"
  end
  if self.server.lossy then words[#words + 1] = "a miss (the server may lose it)" end
  return table.concat(words, ", ")
end

function M:wrong(out, came)
  self.report:wrong {
    op = out.op, key = self.key, lane = out.lane.url, came = came, allowed = describe(self),
  }
end

-- ---- what is known now ----

-- There may have been nothing, up to now.
local function may_be_gone(self)
  self.open[NOTHING] = nil
  self.gone_at = Lane.stamp()
end

-- A doubt came true, or never will.
local function become_past(self, doubt)
  self.possible[doubt.version] = true
  if doubt.version == NOTHING then may_be_gone(self) end
end

-- To be called before a call begins: doubts behind a fence are in the past.
function M:settle()
  local rest = {}
  for _, doubt in ipairs(self.pending) do
    if doubt.link.fence > doubt.at then
      become_past(self, doubt)
    else
      rest[#rest + 1] = doubt
    end
  end
  self.pending = rest
end

-- The call was answered: doubts on the same connection that are older than it, or stand before
-- it in the same pipeline, lie before it.
local function order(self, out)
  local rest = {}
  for _, doubt in ipairs(self.pending) do
    if doubt.link == out.link and (out.started > doubt.at or doubt.out == out) then
      become_past(self, doubt)
    else
      rest[#rest + 1] = doubt
    end
  end
  self.pending = rest
end

local function unpend(self, version)
  for i, doubt in ipairs(self.pending) do
    if doubt.version == version then
      table.remove(self.pending, i)
      return
    end
  end
end

local function is(self, version, value)
  return self.sizes[version] == #value and values.make(self.key, version, #value) == value
end

-- The versions that a value may be: all that could be there and look so (values too short for
-- their name may be alike).
local function recognize(self, value, flags)
  local found = {}
  local function try(version)
    if version ~= NOTHING and is(self, version, value)
      and (not flags or flags == self.flags[version]) then
      found[version] = true
    end
  end
  for version in pairs(self.possible) do try(version) end
  for _, doubt in ipairs(self.pending) do try(doubt.version) end
  return found
end

-- What a value that must not be there is, for the report.
local function explain(self, value, flags)
  local key, version = values.name_of(value)
  if key ~= self.key or not self.sizes[version] or not is(self, version, value) then
    return values.show(value)
  end
  local why = self.never[version]
  return ("version %d, whole, with flags %s%s"):format(version, tostring(flags or "not asked"),
    why and "; its write had ended with: " .. why or "")
end

-- A value came. Returns its version, or nil where it is wrong or may be several. flags, size:
-- those of an item.
function M:saw(out, value, flags, size)
  order(self, out)
  local found = recognize(self, value, flags)
  local version = next(found)
  if not version or size and size ~= #value then
    self:wrong(out, ("%s, size %s"):format(explain(self, value, flags), tostring(size)))
    return nil
  end
  local alone = next(found, version) == nil
  if alone and not self.possible[version] then unpend(self, version) end
  self.possible = found
  return alone and version or nil
end

function M:missed(out)
  order(self, out)
  if not self:may_miss() then self:wrong(out, "a miss") end
  self.possible = { [NOTHING] = true }
end

-- The server says that there is something, without showing it.
function M:exists(out)
  order(self, out)
  if not self:may_hit() then
    self:wrong(out, "an answer that the key exists")
    return
  end
  for _, doubt in ipairs(self.pending) do self.possible[doubt.version] = true end
  self.possible[NOTHING] = nil
end

-- The server says that there is something other than this version.
function M:differs(out, version)
  order(self, out)
  self.possible[version] = nil
  self:exists(out)
end

-- What was there may be gone: an error of the server's removed it.
function M:lost(out)
  order(self, out)
  self.possible[NOTHING] = true
  may_be_gone(self)
end

-- A write was acknowledged. wants: "hit" or "miss", where it may only succeed on one of them.
function M:wrote(out, version, wants)
  order(self, out)
  if wants == "hit" and not self:may_hit() or wants == "miss" and not self:may_miss() then
    self:wrong(out, "done, though it needs a " .. wants)
  end
  self.possible = { [version] = true }
  self.open[version] = nil
end

-- The server did not carry out a write, by its own words or by an error of sent = "no".
function M:refused(version, why)
  self.open[version] = nil
  if version ~= NOTHING then self.never[version] = tostring(why) end
end

-- A write may have been carried out, or may be later.
function M:doubted(out, version)
  self.open[version] = nil
  self.pending[#self.pending + 1] = {
    version = version, link = out.link, at = out.ended, out = out,
  }
end

-- A write failed with an error. What a server refuses for its size it also removes.
function M:failed(out, version, err)
  if err.sent == "no" then
    self:refused(version, err)
  elseif err.sent == "yes" and (err.kind == "server_error" or err.kind == "client_error") then
    self:lost(out)
    self:refused(version, err)
  else
    self:doubted(out, version)
  end
end

function M:begin_delete() self.open[NOTHING] = true end

-- A delete was acknowledged: `found`, there had been something; nil: that is not known.
function M:deleted(out, found)
  order(self, out)
  if found == nil then -- luacheck: ignore 542
    -- one of a delete_many
  elseif found and not self:may_hit() or not found and not self:may_miss() then
    self:wrong(out, found and "deleted" or "nothing to delete")
  end
  self.possible = { [NOTHING] = true }
  may_be_gone(self)
end

-- Quiet writes: their answer would have come before that of the call `fenced`, and no failure
-- was told.
function M:wrote_quietly(fenced, version)
  for _, doubt in ipairs(self.pending) do
    if doubt.version == version and doubt.link == fenced.link and fenced.started > doubt.at then
      unpend(self, version)
      self:wrote(fenced, version)
      return
    end
  end
end

-- ---- readers of other tasks' keys ----

-- What a read that begins now may find.
function M:snapshot()
  local allowed = {}
  for version in pairs(self.possible) do allowed[version] = true end
  for _, doubt in ipairs(self.pending) do allowed[doubt.version] = true end
  for version in pairs(self.open) do allowed[version] = true end
  return { allowed = allowed, last = self.last, at = Lane.stamp() }
end

-- Judges what a reader got: a value, or nil for a miss.
function M:check(out, snapshot, value)
  if value == nil then
    if not (self.server.lossy or snapshot.allowed[NOTHING] or self:allows(NOTHING)
      or self.open[NOTHING] or (self.gone_at or 0) > snapshot.at) then
      self:wrong(out, "a miss, for a reader")
    end
    return
  end
  local key, version = values.name_of(value)
  if not key then -- too short for a name: one of those it may be, if it is still known
    for candidate = 1, self.last do
      local size = self.sizes[candidate]
      if size == #value and values.make(self.key, candidate, size) == value then return end
    end
    self:wrong(out, "for a reader: " .. values.show(value))
  elseif key ~= self.key or not self.sizes[version]
    or values.make(key, version, self.sizes[version]) ~= value then
    self:wrong(out, "for a reader: " .. values.show(value))
  elseif self.never[version] then
    self:wrong(out, ("for a reader: version %d, whose write ended with: %s"):format(
      version, self.never[version]))
  elseif not snapshot.allowed[version] and version <= snapshot.last then
    self:wrong(out, ("for a reader: version %d, which was gone before"):format(version))
  end
end

return M
