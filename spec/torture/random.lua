-- Random choices that a seed decides: each task of a torture run has a stream of its own.
--
--   local random = Random.new(seed, "reader 7")
--   random:below(10)  random:between(3, 5)  random:span(0.1, 0.2)  random:chance(0.5)
--   random:pick { "a", "b" }   random:weighted { { 3, "often" }, { 1, "seldom" } }

local bit = require "bit"

local M = {}
M.__index = M

local bxor, lshift, rshift, band = bit.bxor, bit.lshift, bit.rshift, bit.band

-- The FNV-1a hash of a string, as a number below 2^31. Also what values place their noise by.
function M.hash(text)
  local hash = 0x811c9dc5
  for i = 1, #text do
    hash = bxor(hash, text:byte(i))
    hash = bit.tobit(band(hash, 0xffff) * 16777619
      + lshift(band(rshift(hash, 16) * 16777619, 0xffff), 16))
  end
  return band(hash, 0x7fffffff)
end

-- name: what tells this stream from the others of the seed.
function M.new(seed, name)
  local state = M.hash(("%d %s"):format(seed, name))
  return setmetatable({ state = state == 0 and 1 or state }, M)
end

-- 0 .. 2^31 - 1 (xorshift).
function M:next()
  local state = self.state
  state = bxor(state, lshift(state, 13))
  state = bxor(state, rshift(state, 17))
  state = bxor(state, lshift(state, 5))
  self.state = state
  return band(state, 0x7fffffff)
end

function M:below(limit) return self:next() % limit end

function M:between(low, high) return low + self:next() % (high - low + 1) end

function M:span(low, high) return low + (high - low) * (self:next() / 2 ^ 31) end

function M:chance(share) return self:next() < share * 2 ^ 31 end

function M:pick(list) return list[1 + self:below(#list)] end

-- list: { weight, value } each.
function M:weighted(list)
  local all = 0
  for _, entry in ipairs(list) do all = all + entry[1] end
  local at = self:below(all)
  for _, entry in ipairs(list) do
    at = at - entry[1]
    if at < 0 then return entry[2] end
  end
end

-- Puts a list into a random order, and returns it.
function M:shuffle(list)
  for i = #list, 2, -1 do
    local j = 1 + self:below(i)
    list[i], list[j] = list[j], list[i]
  end
  return list
end

return M
