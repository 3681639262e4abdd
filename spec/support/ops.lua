-- The requests of the case files as calls of the public API, and what came of them.
--
--   local value, more = ops.submit(conn, { op = "get", key = "a" })
--   ops.outcome({ op = "get" }, value, more)      --> { miss = true }
--
-- An outcome is { error = err } or some of: value, flags, cas, miss, stored, not_stored,
-- exists, not_found, deleted, touched, ok, number, values and partial, meta, version, stats.

local base64 = require "spec.support.base64"
local errors = require "moonjay.errors"
local rows = require "spec.support.sent_rows"

local M = {}

local SPECIAL = { nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge }

-- A number, or text that stands for one that JSON cannot say.
function M.number(value)
  return SPECIAL[value] or value
end

function M.key(request)
  return request.key or request.key_b64 and base64.decode(request.key_b64)
end

function M.keys(request)
  if request.keys then return request.keys end
  local out = {}
  for i, text in ipairs(request.keys_b64) do out[i] = base64.decode(text) end
  return out
end

function M.value(request, default)
  local fill = request.value_fill
  if fill then return string.char(fill.byte):rep(fill.len) end
  return request.value_b64 and base64.decode(request.value_b64) or default
end

-- The options table of a storing command; nil where the request asks for none.
local function options_of(request)
  local options = { ttl = M.number(request.ttl), flags = request.flags,
                    initial = request.initial }
  if request.noreply then options.quiet = true end
  return next(options) and options or nil
end

local SUBMIT = {
  gets = function(to, r) return to:item(M.key(r)) end,
  gat = function(to, r) return to:gat(M.key(r), M.number(r.ttl)) end,
  gats = function(to, r) return to:item(M.key(r), { touch = M.number(r.ttl) }) end,
  get_multi = function(to, r) return to:get_many(M.keys(r)) end,
  cas = function(to, r) return to:cas(M.key(r), M.value(r, "x"), r.cas, options_of(r)) end,
  delete = function(to, r) return to:delete(M.key(r), options_of(r)) end,
  touch = function(to, r) return to:touch(M.key(r), M.number(r.ttl)) end,
  version = function(to) return to:version() end,
  noop = function(to) return to:noop() end,
  flush_all = function(to) return to:flush_all() end,
  stats = function(to) return to:stats() end,
  meta = function(to, r) return to:meta(r.cmd, M.key(r), r.flags, M.value(r)) end,
}

function SUBMIT.get(to, request)
  if request.want then return to:item(M.key(request)) end
  return to:get(M.key(request))
end

for _, op in ipairs { "set", "add", "replace", "append", "prepend" } do
  SUBMIT[op] = function(to, r) return to[op](to, M.key(r), M.value(r, "x"), options_of(r)) end
end

for _, op in ipairs { "incr", "decr" } do
  SUBMIT[op] = function(to, r) return to[op](to, M.key(r), M.number(r.delta), options_of(r)) end
end

-- Whether this op is known here.
function M.knows(op)
  return SUBMIT[op] ~= nil
end

-- Calls the method of a connection or a pipeline.
function M.submit(carrier, request)
  return SUBMIT[request.op](carrier, request)
end

-- ------------------------------------------------------------------ outcomes

local function value_outcome(value)
  if value == nil then return { miss = true } end
  return { value = value }
end

local function item_outcome(item)
  if item == nil then return { miss = true } end
  return { value = item.value, flags = item.flags, cas = item.cas }
end

local function either(yes, no)
  return function(value) return { [value and yes or no] = true } end
end

-- The exact digits of a counter, which is a number up to 2^53 and a string above.
function M.digits(number)
  return type(number) == "number" and ("%.0f"):format(number) or tostring(number)
end

local function counter_outcome(number)
  if number == nil then return { not_found = true } end
  return { number = M.digits(number) }
end

local OUTCOME = {
  get = value_outcome, gat = value_outcome, gets = item_outcome, gats = item_outcome,
  get_multi = function(values, failures)
    -- Where nothing came and something failed, the whole call failed.
    local _, err = next(failures or {})
    return { values = values, partial = failures, error = next(values) == nil and err or nil }
  end,
  set = either("stored", "not_stored"), add = either("stored", "not_stored"),
  replace = either("stored", "not_stored"), append = either("stored", "not_stored"),
  prepend = either("stored", "not_stored"), delete = either("deleted", "not_found"),
  touch = either("touched", "not_found"), incr = counter_outcome, decr = counter_outcome,
  version = function(text) return { version = text } end,
  noop = function(done) return { ok = done } end,
  flush_all = function(done) return { ok = done } end,
  stats = function(stats) return { stats = stats } end,
  meta = function(reply) return { meta = reply } end,
}

function OUTCOME.cas(value, why)
  if value then return { stored = true } end
  return { [why == "exists" and "exists" or "not_found"] = true }
end

-- A failure, which must say nothing that the table of errors does not know.
local function failure(err)
  if errors.is(err) and not rows.knows(err) then
    error("no row of spec/support/sent_rows.lua is about " .. tostring(err), 0)
  end
  return { error = err }
end

-- What a call's two results mean.
function M.outcome(request, value, more)
  -- A cas says "exists" as its second value, get_many a table of errors beside its values.
  if value == nil and more ~= nil then return failure(more) end
  if request.noreply and value then return { ok = true, stored = true } end
  if request.op == "get" and request.want then return item_outcome(value) end
  return OUTCOME[request.op](value, more)
end

return M
