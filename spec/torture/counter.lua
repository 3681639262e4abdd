-- The oracle of a counter that one task alone counts: exact, but for counts whose fate is
-- unknown, each of which has happened whole or not at all.
--
--   number     what it is; nil when there is none
--   pending    counts that may have happened, or may yet
--
-- A write of the number whose fate is unknown makes the key useless: it is given up.

local M = {}
M.__index = M

local PENDING = 5
local COUNTS = 300
M.FIRST = 1000000000 -- far from 0, where decr would stop

function M.new(key, server, report)
  return setmetatable({
    key = key, server = server, report = report, pending = {}, writes = 0,
  }, M)
end

function M:is_spent()
  return self.spent or #self.pending > PENDING or self.writes > COUNTS
end

local function describe(self)
  local words = { self.number and ("%.0f"):format(self.number) or "nothing" }
  for _, doubt in ipairs(self.pending) do
    words[#words + 1] = ("%+.0f that may happen"):format(doubt.delta)
  end
  return table.concat(words, ", ")
end

function M:wrong(out, came)
  self.report:wrong {
    op = out.op, key = self.key, lane = out.lane.url, came = came, allowed = describe(self),
  }
  self.spent = true
end

-- The sets of pending counts whose sum this is, as lists of flags; at most two.
local function subsets(self, sum)
  local found, flags = {}, {}
  local function try(at, rest)
    if #found == 2 then return end
    if at > #self.pending then
      if rest == 0 then found[#found + 1] = { unpack(flags, 1, #self.pending) } end
      return
    end
    flags[at] = false
    try(at + 1, rest)
    flags[at] = true
    try(at + 1, rest - self.pending[at].delta)
  end
  try(1, sum)
  return found
end

-- The number is `number` now, after a count of `delta` (0: it was only read) that was begun
-- and answered.
function M:is(out, number, delta)
  if not self.number then
    return self:wrong(out, ("the number %.0f"):format(number))
  end
  local found = subsets(self, number - self.number - delta)
  if #found == 0 then
    return self:wrong(out, ("the number %.0f, after a count of %+.0f"):format(number, delta))
  end
  if #found > 1 then self.spent = true end
  for i = #self.pending, 1, -1 do
    local doubt = self.pending[i]
    if found[1][i] or doubt.passed or doubt.link == out.link and out.started > doubt.at then
      table.remove(self.pending, i)
    end
  end
  self.number = number
end

-- There is none.
function M:missed(out)
  if self.number and not self.server.lossy then return self:wrong(out, "a miss") end
  self.number = nil
  if #self.pending > 0 then self.spent = true end
end

-- It was made, with this number.
function M:made(number)
  self.number = number
end

-- Before a call begins.
function M:settle()
  for _, doubt in ipairs(self.pending) do
    if doubt.link.fence > doubt.at then doubt.passed = true end
  end
end

-- A count failed.
function M:doubted(out, delta, err)
  if err.sent == "no" then return end
  self.pending[#self.pending + 1] = { delta = delta, link = out.link, at = out.ended }
end

return M
