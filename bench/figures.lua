-- bench.figures: what the rounds of a table come to.
--
--   local rows = figures.rows(measured)
--   rows[1].rate.median, rows[1].of_floor, rows[1].cpu_of_floor
--
-- Ratios are taken round by round, each with its neighbour in time, and their median is shown:
-- so a machine that is slower for a while makes both slower.

local M = {}

-- median, least and most of a list of numbers; nil of an empty one.
function M.spread(list)
  if #list == 0 then return nil end
  local sorted = { unpack(list) }
  table.sort(sorted)
  local half = #sorted / 2
  return {
    median = (sorted[math.floor(half + 0.5)] + sorted[math.floor(half) + 1]) / 2,
    least = sorted[1], most = sorted[#sorted],
  }
end

local function each(rounds, fn)
  local out = {}
  for _, round in ipairs(rounds) do out[#out + 1] = fn(round) end
  return out
end

local function rate(round) return round.operations / round.seconds end
local function cpu(round) return (round.user + round.system) / round.operations end
local function calls(round) return round.calls and round.calls / round.operations end

M.rate, M.cpu = rate, cpu

local function ratio(rounds, others, fn)
  local by_number = {}
  for _, other in ipairs(others) do by_number[other.round] = other end
  return M.spread(each(rounds, function(round)
    local other = by_number[round.round]
    return other and fn(round) / fn(other)
  end))
end

-- How often a row was disturbed, and the first reason: "2 of 5: others 12%"; nil: never.
local function disturbance(rounds)
  local count, first = 0, nil
  for _, round in ipairs(rounds) do
    if #round.disturbed > 0 then
      count, first = count + 1, first or table.concat(round.disturbed, ", ")
    end
  end
  return first and ("%d of %d: %s"):format(count, #rounds, first)
end

-- measured: a list of { name = , rounds = { result, ... } }, the floor first where it is there.
-- Adds to each what its rounds come to.
function M.add(measured)
  local floor = measured[1] and measured[1].name == "floor" and measured[1].rounds
  for _, row in ipairs(measured) do
    row.rate, row.cpu = M.spread(each(row.rounds, rate)), M.spread(each(row.rounds, cpu))
    row.calls = M.spread(each(row.rounds, calls))
    row.disturbed = disturbance(row.rounds)
    if floor then
      row.of_floor = ratio(row.rounds, floor, rate)
      row.cpu_of_floor = ratio(row.rounds, floor, cpu)
    end
  end
end

return M
