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

local function is_named(outcome, name)
  return outcome[name] == true or outcome.error ~= nil and outcome.error.kind == name
end

-- Every single outcome that this one holds.
local function singles(outcome)
  if outcome.background then return outcome.background.seen end
  return outcome.list or { outcome }
end

local function each(outcome, test)
  for _, one in ipairs(singles(outcome)) do
    if not test(one) then return false end
  end
  return true
end

local function all_values(want, outcome)
  return outcome.list ~= nil and #outcome.list > 0 and each(outcome, function(one)
    return one.value == want
  end)
end

-- -------------------------------------------------------------- background

-- When each task was answered first after the fault; the longest it took, in ms. nil where one
-- never was.
local function recovery_ms(outcome)
  local first, report = {}, outcome.background
  for _, run in ipairs(report.runs) do
    local answered = not report.seen[run.what].error
    local at = math.max(run.from, outcome.restored_ms)
    first[run.task] = first[run.task] or math.huge
    if answered and run.to >= outcome.restored_ms then
      first[run.task] = math.min(first[run.task], at)
    end
  end
  local last = 0
  for _, at in pairs(first) do last = math.max(last, at - outcome.restored_ms) end
  return last
end

local function recovers(want, outcome)
  return outcome.background ~= nil and #outcome.background.runs > 0
    and recovery_ms(outcome) <= want
end

-- ------------------------------------------------------------------ checks

local CHECKS = {
  within_ms = function(want, got) return got.took_ms <= want end,
  max_latency_ms = function(want, got)
    return (got.took_ms or got.background.longest_ms) <= want
  end,
  never = function(want, got)
    return each(got, function(one)
      for _, name in ipairs(want) do
        if is_named(one, name) then return false end
      end
      return true
    end)
  end,
  never_b64 = function(want, got)
    return each(got, function(one)
      for _, text in ipairs(want) do
        if one.value and one.value:find(base64.decode(text), 1, true) then return false end
      end
      return true
    end)
  end,
  errors_only = function(want, got)
    return each(got, function(one) return not one.error or member(want, one.error.kind) end)
  end,
  errors_typed = function(want, got)
    return want == each(got, function(one) return not one.error or one.error.typed end)
  end,
  all_value_b64 = function(want, got) return all_values(base64.decode(want), got) end,
  recovers_within_ms = recovers,
  process_alive = function(want, got) return got.alive == want end,
  client_open_sockets_max = function(want, got) return got.sockets <= want end,
  new_connections = function(want, got) return got.connections == want end,
  new_connections_max = function(want, got) return got.connections <= want end,
  connect_attempts_per_second_max = function(want, got)
    return got.attempts ~= nil and got.attempts <= want
  end,
  sent = function(want, got)
    return each(got, function(one) return one.error ~= nil and one.error.sent == want end)
  end,
  phase = function(want, got)
    return each(got, function(one) return one.error ~= nil and one.error.phase == want end)
  end,
}

-- What a plain expectation says of one outcome must hold for each of many.
local OF_MANY = { all = true, count = true, any = true }

local function mismatch_of_many(expected, outcome)
  local plain, whole = {}, {}
  for name, want in pairs(expected) do
    local to = (CHECKS[name] or OF_MANY[name]) and whole or plain
    to[name] = want
  end
  local wrong = expect.mismatch(whole, outcome, CHECKS)
  for i, one in ipairs(singles(outcome)) do
    if wrong then break end
    wrong = expect.mismatch(plain, one)
    if wrong then wrong = ("result %d: %s"):format(i, wrong) end
  end
  return wrong
end

function M.mismatch(expected, outcome)
  -- "any": true says that whatever came is fine.
  if expected.any == true then
    local rest = {}
    for name, want in pairs(expected) do rest[name] = name ~= "any" and want or nil end
    expected = rest
  end
  if outcome.list or outcome.background then return mismatch_of_many(expected, outcome) end
  return expect.mismatch(expected, outcome, CHECKS)
end

return M
