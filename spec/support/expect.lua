-- What a case expects of one request against what came of it (see ops.lua for an outcome).
--
--   local wrong = expect.mismatch({ value_b64 = "YQ==" }, outcome)   --> nil, or a sentence

local base64 = require "spec.support.base64"
local cjson = require "cjson"

local M = {}

local function shown(value)
  if type(value) == "table" then return cjson.encode(value) end
  local text = tostring(value)
  if #text > 60 then text = ("%s... (%d bytes)"):format(text:sub(1, 60), #text) end
  return ("%q"):format(text)
end

-- An outcome in one line, for the message of a failed spec.
function M.describe(outcome)
  if outcome.error then
    local err = outcome.error
    return ("error %s: %s"):format(tostring(err.kind), tostring(err))
  end
  local parts = {}
  for name, value in pairs(outcome) do
    local text = shown(value)
    if name == "meta" then
      text = ("%s [%s] %s"):format(value.rc, table.concat(value.flags or {}, " "),
                                   shown(value.value))
    elseif name == "list" then
      text = #value .. " results"
    end
    parts[#parts + 1] = name .. " = " .. text
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

local function member(list, value)
  for _, entry in ipairs(list) do
    if entry == value then return true end
  end
  return false
end

local function same_list(want, got)
  return table.concat(want, " ") == table.concat(got or {}, " ")
end

local function has_all(want, got)
  for _, token in ipairs(want) do
    if not member(got or {}, token) then return false end
  end
  return true
end

local function meta_matches(want, got)
  return got and (want.rc == nil or want.rc == got.rc)
    and (want.value_b64 == nil or base64.decode(want.value_b64) == got.value)
    and (want.flags == nil or same_list(want.flags, got.flags))
    and (want.flags_have == nil or has_all(want.flags_have, got.flags))
end

local function values_match(want, got)
  if not got then return false end
  for key, entry in pairs(want) do
    if M.mismatch(entry, { value = got[key] }) then return false end
  end
  for key in pairs(got) do
    if want[key] == nil then return false end
  end
  return true
end

local function stats_match(want, got)
  for name, value in pairs(want) do
    if not got or tostring(got[name]) ~= value then return false end
  end
  return true
end

-- The error that a partial result is marked with: the second table of get_many.
local function partial_matches(want, got)
  for _, err in pairs(got.partial or {}) do
    if err.kind == want then return true end
  end
  return false
end

local function kind_of(got)
  return got.error and got.error.kind
end

-- A flag that is there or not: "miss", "stored".
local function has(name)
  return function(want, got) return want == (got[name] == true) end
end

-- Each takes what is wanted, the outcome, and the whole expectation. True: as wanted.
local CHECKS = {
  value_b64 = function(want, got) return got.value == base64.decode(want) end,
  value_len = function(want, got) return got.value ~= nil and #got.value == want end,
  value_fill = function(want, got, all)
    if type(want) == "table" then return got.value == string.char(want.byte):rep(want.len) end
    return got.value == string.char(want):rep(all.value_len)
  end,
  flags = function(want, got) return tonumber(got.flags) == tonumber(want) end,
  cas = function(want, got) return tostring(got.cas) == tostring(want) end,
  number = function(want, got) return got.number == want end,
  values = function(want, got) return values_match(want, got.values) end,
  partial_error = partial_matches,
  meta = function(want, got) return meta_matches(want, got.meta) end,
  rc = function(want, got) return want == "HD" and (got.stored or got.ok) end,
  version = function(want, got) return got.version == want end,
  stats = function(want, got) return stats_match(want, got.stats) end,
  error_kind = function(want, got) return kind_of(got) == want end,
  error_kind_any = function(want, got) return member(want, kind_of(got)) end,
  count = function(want, got) return got.list ~= nil and #got.list == want end,
}
for _, name in ipairs { "miss", "stored", "not_stored", "exists", "not_found", "deleted",
                        "touched", "ok" } do
  CHECKS[name] = has(name)
end

local function first_wrong_of(list, wanted, checks)
  for i, outcome in ipairs(list or {}) do
    local wrong = M.mismatch(wanted, outcome, checks)
    if wrong then return ("result %d: %s"):format(i, wrong) end
  end
end

local function any_of(choices, outcome, checks)
  local reasons = {}
  for i, choice in ipairs(choices) do
    reasons[i] = M.mismatch(choice, outcome, checks)
    if not reasons[i] then return nil end
  end
  return "none of " .. table.concat(reasons, "; ")
end

-- nil where the outcome is what is expected, else a sentence. `checks` adds checks of the
-- caller's by name. An expectation that nobody knows is a mismatch, never skipped.
function M.mismatch(expected, outcome, checks)
  for name, want in pairs(expected) do
    local wrong
    local check = checks and checks[name] or CHECKS[name]
    if name == "any" then
      wrong = any_of(want, outcome, checks)
    elseif name == "all" then
      wrong = outcome.list and first_wrong_of(outcome.list, want, checks)
        or not outcome.list and "no list of results" or nil
    elseif not check then
      wrong = ("no check is known for %q"):format(name)
    elseif not check(want, outcome, expected) then
      wrong = ("expected %s = %s, got %s"):format(name, shown(want), M.describe(outcome))
    end
    if wrong then return wrong end
  end
end

return M
