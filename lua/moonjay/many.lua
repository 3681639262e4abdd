-- moonjay.many: commands over many keys at once, on one connection.
--
--   conn:get_many { "a", "b" }            --> { a = "1" }
--   conn:set_many({ a = "1", b = "2" })   --> 2
--   conn:delete_many { "a", "nothing" }   --> 1
--
-- get_many asks with the classic multi-get, which servers answer in one write; keys that only
-- binary_keys allows are asked for one by one. All of them are sent at once and waited for
-- together, in chunks, so that memory stays bounded whatever the length of the list.

local batch = require "moonjay.batch"
local core = require "moonjay.core"

local M = {}

local new_table = core.new_table
local commands, record, run = core.commands, batch.record, batch.run

local function check_list(name, keys)
  if type(keys) ~= "table" then
    core.misuse("conn:" .. name, "keys must be a list of strings, got " .. type(keys))
  elseif keys[1] == nil and next(keys) ~= nil then
    core.misuse("conn:" .. name, "keys must be a list of strings, got a table without keys[1]")
  end
end

-- Throws unless keys is a list of strings.
function M.check_keys(name, keys)
  check_list(name, keys)
  for i = 1, #keys do
    if type(keys[i]) ~= "string" then
      core.misuse("conn:" .. name, ("key %d must be a string, got %s"):format(i, type(keys[i])))
    end
  end
end

-- ---- get ----

-- A value of length 0 may be a lease's stub: mg tells. Takes the stubs out of values. empty:
-- their keys, and .begun, when the call began.
local function ask_again(conn, values, errors, empty)
  local calls, asked = batch.new(), {}
  for _, key in ipairs(empty) do
    if values[key] == "" and not asked[key] then
      asked[key] = true
      asked[#asked + 1] = key
      record(calls, commands.get, key)
    end
  end
  if calls.count == 0 then return errors end
  local replies, err = run(conn, calls, "get_many", empty.begun)
  for i, key in ipairs(asked) do
    values[key] = replies and replies[i] or nil
    local failure = replies == nil and err or replies.errors[i]
    if failure then
      errors = errors or {}
      errors[key] = failure
    end
  end
  return errors
end

-- Keys of a chunk that failed, as far as no value came for them.
local function blame(keys, from, last, values, errors, err)
  errors = errors or {}
  for i = from, last do
    if values[keys[i]] == nil then errors[keys[i]] = err end
  end
  return errors
end

-- One multi-get a chunk, all into one table.
local function fold_chunks(plan, conn, failures, first, empty)
  local keys, values, errors, from = plan.keys, plan.values, nil, 1
  for i = 1, #plan / 2 do
    local last, err = plan[2 * i], failures[first + i - 1]
    if err then errors = blame(keys, from, last, values, errors, err) end
    from = last + 1
  end
  if empty[1] and conn:protocol() == "meta" then
    errors = ask_again(conn, values, errors, empty)
  end
  return values, errors
end

-- One get a key.
local function fold_gets(plan, replies, failures, first)
  local values, errors = {}, nil
  for i, key in ipairs(plan.keys) do
    values[key] = replies[first + i - 1]
    if failures[first + i - 1] then
      errors = errors or {}
      errors[key] = failures[first + i - 1]
    end
  end
  return values, errors
end

-- How to get these keys: a multi-get a chunk, each as its text and the place of its last key;
-- or plan.separate, a get for each. nil and an error when a key is bad. Throws where keys is no
-- list of strings.
function M.plan_get(conn, keys)
  check_list("get_many", keys)
  local values = new_table(0, #keys) -- most are found: it need not grow
  local plan, from, size = { keys = keys, values = values, separate = false }, 1, 0
  while rawget(keys, from) ~= nil do -- as join_keys reads them, or it would not end
    local text, behind = core.join_keys(conn, keys, from)
    if text == nil then return nil, behind end
    if text == false then
      plan.separate = true
    else
      plan[size + 1], plan[size + 2] = text, behind - 1
      size = size + 2
    end
    from = behind
  end
  return plan
end

-- Records its calls.
function M.record_get(calls, plan)
  if plan.separate then
    for _, key in ipairs(plan.keys) do record(calls, commands.get, key) end
  else
    for i = 1, #plan, 2 do record(calls, commands.get_many, plan[i], plan.values) end
  end
end

-- What became of them, where the reply to the first is replies[first]: values by key, and, if
-- some failed, errors by key. empty: keys whose value has length 0.
function M.fold_get(plan, conn, replies, failures, first, empty)
  if plan.separate then return fold_gets(plan, replies, failures, first) end
  return fold_chunks(plan, conn, failures, first, empty)
end

function M.get(conn, keys)
  local plan, err = M.plan_get(conn, keys)
  if plan == nil then return nil, err end
  local calls, begun = batch.new(), core.now()
  M.record_get(calls, plan)
  if calls.count == 0 then return plan.values end
  local replies, empty = run(conn, calls, "get_many")
  if replies == nil then return nil, empty end
  if empty[1] then empty.begun = begun end
  return M.fold_get(plan, conn, replies, replies.errors, 1, empty)
end

-- ---- set, delete ----

-- The keys of a table of values, sorted so that runs are alike. Throws a misuse.
function M.check_set(values, options)
  if type(values) ~= "table" then
    core.misuse("conn:set_many", "values must be a table of key = value, got " .. type(values))
  end
  local keys = {}
  core.check.set("", "", options)
  for key, value in pairs(values) do
    if type(key) ~= "string" or type(value) ~= "string" then
      core.misuse("conn:set_many", ("keys and values must be strings, got [%s] = %s"):format(
        type(key) == "string" and ("%q"):format(key) or type(key), type(value)))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  return keys
end

-- How many of the calls were answered with yes.
function M.fold_count(keys)
  return function(_, replies, failures, _, first)
    local count, errors = 0, nil
    for i, key in ipairs(keys) do
      local at = first + i - 1
      if replies[at] then count = count + 1 end
      if failures[at] then
        errors = errors or {}
        errors[key] = failures[at]
      end
    end
    return count, nil, errors
  end
end

local function run_each(conn, keys, op, values, options)
  local calls = batch.new()
  for _, key in ipairs(keys) do
    if values then
      record(calls, commands.set, key, values[key], options)
    else
      record(calls, commands.delete, key)
    end
  end
  if calls.count == 0 then return 0 end
  local replies, err = run(conn, calls, op)
  if replies == nil then return nil, err end
  local yes, _, errors = M.fold_count(keys)(conn, replies, replies.errors, nil, 1)
  return yes, errors
end

function M.set(conn, values, options)
  return run_each(conn, M.check_set(values, options), "set_many", values, options)
end

function M.delete(conn, keys)
  M.check_keys("delete_many", keys)
  return run_each(conn, keys, "delete_many")
end

-- ---- counters ----

local function digits(number)
  return type(number) == "string" and number or ("%.0f"):format(number)
end

-- A counter that is missing, over ascii: add it, and count when somebody was faster. Returns
-- the number (above 2^53 its digits, exact), or nil and an error.
function M.create_counter(conn, name, key, delta, options)
  local initial = digits(options.initial):gsub("^0+(%d)", "%1")
  local added, err = conn:add(key, initial, { ttl = options.ttl })
  if added == nil then return nil, err end
  if added then
    local number = tonumber(initial)
    return number <= 2 ^ 53 and digits(number) == initial and number or initial
  end
  return conn[name](conn, key, delta)
end

return M
