-- moonjay.batch: calls that are recorded one by one, leave together and are waited for once.
--
--   local calls = batch.new()
--   batch.record(calls, core.commands.get, "a")
--   local replies = batch.run(conn, calls, "pipeline")  -- replies[1], replies.errors[1]
--
-- A recorded call is flat, and holds no more than it was given, since all of it is read once
-- more: the command's number times GIVEN plus how many arguments, and these (src/lua_batch.c).

local core = require "moonjay.core"
local settle = require "moonjay.wait".settle

local M = {}

local new_table = core.new_table
local GIVEN = 8
local NONE = core.NONE -- stands for an argument that was left out before another
local LIKELY_MAX = 4096

-- An empty list. .count: calls, .size: places taken. likely: how many places it may take.
function M.new(likely)
  local calls = new_table(math.min(likely or 0, LIKELY_MAX), 2)
  calls.count, calls.size = 0, 0
  return calls
end

-- Appends a call; arguments behind the last that is not nil are left out.
function M.record(calls, number, a, b, c, d, e)
  local at = calls.size
  local given = e ~= nil and 5 or d ~= nil and 4 or c ~= nil and 3 or b ~= nil and 2
    or a ~= nil and 1 or 0
  calls[at + 1] = number * GIVEN + given
  if given >= 1 then calls[at + 2] = a == nil and NONE or a end
  if given >= 2 then calls[at + 3] = b == nil and NONE or b end
  if given >= 3 then calls[at + 4] = c == nil and NONE or c end
  if given >= 4 then calls[at + 5] = d == nil and NONE or d end
  if given >= 5 then calls[at + 6] = e end
  calls.size, calls.count = at + 1 + given, calls.count + 1
end

-- Sends them all and waits for all; to be run once. op: what the script called, for the error
-- of an interruption. begun: when, if this is not the first that is sent for it; its one
-- timeout counts from there. Returns the replies, with .errors, .more, .n and .failed, and the
-- keys whose value has length 0; or nil and an error when memory ran out.
function M.run(conn, calls, op, begun)
  local count = calls.count
  local replies, errors, more, empty = new_table(count, 4), {}, {}, {}
  local batch = core.new_batch(calls, count, replies, errors, more, empty, op, begun)
  local failed, err = core.run(conn, batch)
  if err ~= nil then failed, err = settle(core.run, failed, err, conn, batch) end
  if failed == nil then return nil, err end
  replies.errors, replies.more, replies.n, replies.failed = errors, more, count, failed
  return replies, empty
end

return M
