-- moonjay.task: functions that run beside each other and wait for each other.
--
--   local one, two = mj.spawn(fetch, "a"), mj.spawn(fetch, "b")
--   local value, err = one:wait(0.5)
--   local both = mj.check(mj.all { one, two })    -- both[1][1] is what `one` returned
--
-- A task that waits (for a reply, for time, for another task) suspends itself alone. An error
-- in a task belongs to those that wait for it; one that nobody waits for by the end of the turn
-- is reported.

local core = require "moonjay.core"
local errors = require "moonjay.errors"
local wait = require "moonjay.wait"

local INTERRUPT = core.INTERRUPT
local take_interrupt, settle = core.take_interrupt, wait.settle
local sleep, task_wait = core.sleep, core.task_wait
local task_results, task_cancel = core.task_results, core.task_cancel
local group_wait = core.group_wait

local M = {}

-- spawn(fn, ...): starts a task that calls fn with these arguments, in this turn or the next,
-- and returns it. Throws where fn is no function.
M.spawn = core.spawn

-- now(): seconds on a clock that only goes forward; only differences mean anything.
M.now = core.now

-- counters(): { turns, clock_reads, timer_arms, tasks_live, tasks_started, tasks_reused,
-- resumes, memory } of the runtime; memory is the bytes that the Lua state holds.
M.counters = core.counters

-- Suspends the task for so many seconds; 0 lets the others run and goes on in the next turn.
-- Throws what interrupts it.
function M.sleep(seconds)
  local value, more = sleep(seconds)
  if more ~= nil then settle(sleep, value, more, seconds) end
end

local methods = core.task

-- task:wait([seconds]): what the task's function returned; nil and its error, as it was thrown;
-- or nil and an error of kind timeout, and the task runs on. As often as you like. Throws what
-- interrupts it, and where a task waits for itself.
function methods:wait(seconds)
  local ended, more = task_wait(self, seconds)
  if more ~= nil then ended = settle(task_wait, ended, more, self, seconds) end
  if ended then return task_results(self) end
  return nil, errors.new {
    kind = "timeout",
    op = "task:wait",
    message = ("task:wait: the task did not end within %g s; it runs on"):format(seconds),
  }
end

-- task:cancel(): its present wait, and every later one, throws an error of kind cancelled. A
-- task that never ran will not. Harmless on one that has ended.
methods.cancel = task_cancel

local function cancel_all(list)
  for i = 1, #list do task_cancel(list[i]) end
end

-- The place of the next task of the list to end. Being interrupted cancels them all.
local function next_ended(group, list)
  local index, more = group_wait(group)
  if more == INTERRUPT then
    cancel_all(list)
    error(take_interrupt(), 0)
  end
  return index
end

local function pack(...)
  return { n = select("#", ...), ... }
end

-- Waits for all tasks of a list: a list of their packed results ({ n = , ... }), in its order.
-- The first failure (an error, or nil and something else as results) cancels the rest and is
-- nil and that error. So does an interruption of the waiting task, which is thrown.
function M.all(list)
  local group = core.group(list, "all")
  local results = {}
  for _ = 1, #list do
    local index = next_ended(group, list)
    local packed = pack(task_results(list[index]))
    if packed[1] == nil and packed[2] ~= nil then
      cancel_all(list)
      return nil, packed[2]
    end
    results[index] = packed
  end
  return results
end

local RANK = { no = 1, maybe = 2, yes = 3 }

-- No safer to repeat than the least safe of them.
local function all_failed(causes)
  local kind, sent, retryable = nil, "no", true
  for i = #causes, 1, -1 do
    local cause = causes[i]
    if errors.is(cause) then
      kind = cause.kind
      if (RANK[cause.sent] or 0) > RANK[sent] then sent = cause.sent end
      retryable = retryable and cause.retryable == true
    else
      retryable = false
    end
  end
  return errors.new {
    kind = kind,
    op = "any",
    sent = sent,
    retryable = retryable,
    message = ("any: all %d tasks failed, the first in the list by: %s"):format(
      #causes, tostring(causes[1])),
    cause = causes,
  }
end

-- Waits for the first success among a list of tasks: its first result and its place in the
-- list; the rest are cancelled. When all fail: nil and an error whose `cause` lists the error
-- of each, in the order of the list (its kind is the first that has one, its sent the most that
-- one of them says, and it is retryable if they all are). An interruption of the waiting task,
-- which is thrown, cancels them all. Throws on an empty list.
function M.any(list)
  local group = core.group(list, "any")
  if #list == 0 then core.misuse("any", "a list of at least one task is wanted") end
  local causes = {}
  for _ = 1, #list do
    local index = next_ended(group, list)
    local value, err = task_results(list[index])
    if value ~= nil or err == nil then
      cancel_all(list)
      return value, index
    end
    causes[index] = err
  end
  return nil, all_failed(causes)
end

local function finish(scope, ok, ...)
  local own = core.deadline_end(scope, ok, (...))
  if ok then return ... end
  if own then return nil, (...) end
  error((...), 0)
end

-- Calls fn(...) with a deadline: a wait in it that is not over within so many seconds, and
-- every later one, is interrupted. Returns fn's results, or nil and the error of that wait
-- (kind timeout; connect_timeout while connecting). Any other error passes through. Deadlines
-- nest, the earlier one holds; tasks spawned meanwhile have none.
function M.deadline(seconds, fn, ...)
  if type(fn) ~= "function" then
    core.misuse("deadline", "a function is wanted, got " .. type(fn))
  end
  local scope = core.deadline_begin(seconds)
  return finish(scope, xpcall(fn, core.keep_trace, ...))
end

-- The errors of get_many, set_many and delete_many: some error of them, or nil.
local function some_error(by_key)
  if type(by_key) ~= "table" or errors.is(by_key) then return nil end
  local _, err = next(by_key)
  return errors.is(err) and err or nil
end

-- Raises a failure (nil and an error; of a call over many keys: some error of theirs), and lets
-- all else through: values, false, a lone nil.
function M.check(value, err, ...)
  if value == nil and err ~= nil then error(err, type(err) == "string" and 2 or 0) end
  local failed = err ~= nil and some_error(err)
  if failed then error(failed, 0) end
  return value, err, ...
end

return M
