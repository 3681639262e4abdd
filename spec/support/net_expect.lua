-- What a net case expects of a step against what came of it. An outcome is that of ops.lua, and
-- has, where it applies:
--
--   took_ms                        how long the call took; of many calls, the longest
--   list                           the outcomes of a call made many times, or of many keys
--   background                     { runs, seen, longest_ms, calls }: see net_client.lua
--   restored_ms                    when the fault was over, on the clock of those runs
--   alive, sockets, connections    the client: whether it runs, its open sockets, new ones
--   attempts                       the most attempts to connect in any second
--
--   local wrong = net_expect.mismatch(expected, outcome)      --> nil, or a sentence

local base64 = require "spec.support.base64"
local expect = require "spec.support.expect"

local M = {}

local function member(list, value)
  for _, entry in ipairs(list) do
    if entry == value then return true end
  end
  return false
end

-- Every single outcome that this one holds.
local function singles(outcome)
  if outcome.background then return outcome.background.seen end
  return outcome.list or { outcome }
end

local function is_named(outcome, name)
  return outcome[name] == true or outcome.error ~= nil and outcome.error.kind == name
end

-- -------------------------------------------------------------- background

-- How long it took, after the fault was over, until each task had been answered; in ms. Where
-- there was no fault, since the load began. Infinite where one never was.
local function recovery_ms(outcome)
  local report, first, since = outcome.background, {}, outcome.restored_ms
  for _, run in ipairs(report.runs) do since = since or run.from end
  for _, run in ipairs(report.runs) do
    local answered = not report.seen[run.what].error and run.to >= since
    local at = answered and math.max(run.from, since) or math.huge
    first[run.task] = math.min(first[run.task] or math.huge, at)
  end
  local last = 0
  for _, at in pairs(first) do last = math.max(last, at - since) end
  return last
end

local function recovers(want, outcome)
  local report = outcome.background
  return report ~= nil and #report.runs > 0 and recovery_ms(outcome) <= want
end

-- ------------------------------------------------------------------ checks

-- Of one outcome; of each, where there are many.
local OF_ONE = {
  never = function(want, got)
    for _, name in ipairs(want) do
      if is_named(got, name) then return false end
    end
    return true
  end,
  never_b64 = function(want, got)
    for _, text in ipairs(want) do
      if got.value and got.value:find(base64.decode(text), 1, true) then return false end
    end
    return true
  end,
  errors_only = function(want, got) return not got.error or member(want, got.error.kind) end,
  errors_typed = function(want, got)
    return want == true and (not got.error or got.error.typed)
  end,
  sent = function(want, got) return got.error ~= nil and got.error.sent == want end,
  phase = function(want, got) return got.error ~= nil and got.error.phase == want end,
}

-- Of a whole step.
local OF_STEP = {
  within_ms = function(want, got) return got.took_ms <= want end,
  max_latency_ms = function(want, got)
    return (got.took_ms or got.background.longest_ms) <= want
  end,
  recovers_within_ms = recovers,
  process_alive = function(want, got) return got.alive == want end,
  client_open_sockets_max = function(want, got) return got.sockets <= want end,
  new_connections = function(want, got) return got.connections == want end,
  connect_attempts_per_second_max = function(want, got)
    return got.attempts ~= nil and got.attempts <= want
  end,
}

-- These are expect.lua's own, and speak of a list.
local OF_LIST = { all = true, count = true }

local function split(expected)
  local of_one, of_step = {}, {}
  for name, want in pairs(expected) do
    if name == "all_value_b64" then
      of_step.all = { value_b64 = want }
    elseif OF_STEP[name] or OF_LIST[name] then
      of_step[name] = want
    elseif not (name == "any" and want == true) then -- which says that whatever came is fine
      of_one[name] = want
    end
  end
  return of_one, of_step
end

-- Where a step did nothing the number of times it should have, that is no success of each.
local function mismatch_of_each(expected, outcome)
  local list = singles(outcome)
  if #list == 0 and next(expected) then return "there were no results" end
  for i, one in ipairs(list) do
    -- What was thrown, or is no error of ours, is never right.
    local thrown = one.error and not one.error.typed and tostring(one.error)
    local wrong = thrown or expect.mismatch(expected, one, OF_ONE)
    if wrong then return #list == 1 and wrong or ("result %d: %s"):format(i, wrong) end
  end
end

-- A whole step in one line, for the message of a failed spec.
local function describe(outcome)
  local parts, report = {}, outcome.background
  local function add(text, ...) parts[#parts + 1] = text:format(...) end
  if outcome.took_ms then add("took %.1f ms", outcome.took_ms) end
  if report then
    add("%d calls of up to %.1f ms", report.calls, report.longest_ms)
    add("all answered after %.1f ms", recovery_ms(outcome))
  end
  for _, one in ipairs(singles(outcome)) do
    if #parts < 10 then add("%s", expect.describe(one)) end
  end
  for _, name in ipairs { "alive", "sockets", "connections", "attempts" } do
    add("%s: %s", name, tostring(outcome[name]))
  end
  return table.concat(parts, "; ")
end

local function mismatch_of_step(expected, outcome)
  for name, want in pairs(expected) do
    if OF_LIST[name] then
      local wrong = expect.mismatch({ [name] = want }, outcome)
      if wrong then return wrong end
    elseif not OF_STEP[name](want, outcome) then
      return ("expected %s = %s; %s"):format(name, tostring(want), describe(outcome))
    end
  end
end

function M.mismatch(expected, outcome)
  local of_one, of_step = split(expected)
  return mismatch_of_step(of_step, outcome) or mismatch_of_each(of_one, outcome)
end

return M
