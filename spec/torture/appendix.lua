-- The oracle of a key that one task appends to and prepends to: its value is a row of records,
-- each of which names itself (values.lua).
--
--   row        the records that are there, in order; nil when nothing is
--   root       the one of them that was set
--   pending    records that may be there, at their end of the row, or come later
--   never      records that were refused, or never sent
--
-- A write of the whole value whose fate is unknown makes the key useless: it is given up.

local values = require "spec.torture.values"

local M = {}
M.__index = M

local PENDING = 4
local RECORDS = 60

function M.new(key, server, report)
  return setmetatable({
    key = key, server = server, report = report, last = 0, sizes = {}, pending = {}, never = {},
    writes = 0,
  }, M)
end

function M:create(random)
  self.last = self.last + 1
  self.writes = self.writes + 1
  local least = values.least(self.key)
  local size = random:chance(0.1) and random:between(1000, 20000)
    or random:between(least, least + 200)
  self.sizes[self.last] = size
  return self.last, values.make(self.key, self.last, size)
end

function M:is_spent()
  return self.spent or #self.pending > PENDING or self.writes > RECORDS
end

local function describe(self)
  local words = { self.row and "the records " .. table.concat(self.row, ",") or "nothing" }
  for _, doubt in ipairs(self.pending) do
    words[#words + 1] = ("%s of %d that may be carried out"):format(doubt.op, doubt.record)
  end
  return table.concat(words, ", ")
end

function M:wrong(out, came)
  self.report:wrong {
    op = out.op, key = self.key, lane = out.lane.url, came = came, allowed = describe(self),
  }
  self.spent = true
end

-- The records of a value, or nil where it is not made of whole ones.
local function parse(self, value)
  local records, at = {}, 1
  while at <= #value do
    local key, version, size = values.name_of(value:sub(at, at + 280))
    if key ~= self.key or size ~= self.sizes[version]
      or value:sub(at, at + size - 1) ~= values.make(key, version, size) then
      return nil, at
    end
    records[#records + 1] = version
    at = at + size
  end
  return records
end

local function find(self, record)
  for i, doubt in ipairs(self.pending) do
    if doubt.record == record then return i, doubt end
  end
end

-- Whether these records are the row and some of the pending ones, each on its side of the
-- record that was set; takes those out of the pending.
local function explain(self, records)
  local rest, seen, behind = 0, {}, false
  for _, record in ipairs(records) do
    if record == self.row[rest + 1] then
      rest = rest + 1
      behind = behind or record == self.root
    else
      local _, doubt = find(self, record)
      if not doubt or seen[record] or (doubt.op == "append") ~= behind then return false end
      seen[record] = true
    end
  end
  if rest < #self.row then return false end
  for record in pairs(seen) do table.remove(self.pending, (find(self, record))) end
  return true
end

-- Takes out the doubts that lie before this call: what they left is seen, or there is nothing.
local function forget_past(self, out)
  for i = #self.pending, 1, -1 do
    local doubt = self.pending[i]
    if doubt.passed or doubt.link == out.link and out.started > doubt.at then
      table.remove(self.pending, i)
    end
  end
end

function M:saw(out, value)
  local records, at = parse(self, value)
  if not records then
    self:wrong(out, ("from byte %d on: %s"):format(at, values.show(value:sub(at))))
    return
  end
  if not self.row or not explain(self, records) then
    local why = ""
    for _, record in ipairs(records) do
      if self.never[record] then
        why = (" (of record %d it was said: %s)"):format(record, self.never[record])
      end
    end
    self:wrong(out, "the records " .. table.concat(records, ",") .. why)
    return
  end
  self.row = records
  forget_past(self, out)
end

function M:missed(out)
  if self.row and not self.server.lossy then self:wrong(out, "a miss") end
  self.row = nil
  forget_past(self, out)
end

-- Before a call begins.
function M:settle()
  for _, doubt in ipairs(self.pending) do
    if doubt.link.fence > doubt.at then doubt.passed = true end
  end
end

-- A set was acknowledged.
function M:wrote(out, record)
  self.row, self.root = { record }, record
  forget_past(self, out)
end

-- An append or prepend was acknowledged.
function M:grew(out, op, record)
  if not self.row then
    self:wrong(out, "done, but there was nothing")
  elseif op == "append" then
    self.row[#self.row + 1] = record
  else
    table.insert(self.row, 1, record)
  end
end

function M:failed(out, op, record, err)
  if err.sent == "no" or err.kind == "server_error" then
    self.never[record] = tostring(err)
    -- A server that cannot hold more may have lost it all.
    if err.kind == "server_error" then self.spent = true end
  elseif op == "set" then
    self.spent = true
  else
    self.pending[#self.pending + 1] = {
      record = record, op = op, link = out.link, at = out.ended,
    }
  end
end

return M
