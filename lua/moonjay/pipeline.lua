-- moonjay.pipeline: requests recorded first, sent in one write, answered in one wait.
--
--   local p = conn:pipeline()
--   p:set("a", "1"):get("b"):incr("n", 2)
--   local replies = p:run()  -- replies[i], replies.errors[i], replies.more[i]
--
-- Every command of a connection is a method that records it and returns the pipeline. run
-- sends what was recorded and empties the pipeline, which may then be used again. Replies stand
-- in the order asked; one failed command fails only itself.

local core = require "moonjay.core"
local many = require "moonjay.many"
local settle = require "moonjay.wait".settle

local M = {}
local Pipeline = {}
Pipeline.__index = Pipeline

local NONE, check, commands, now = core.NONE, core.check, core.commands, core.now
local STRIDE = 6 -- places of one call in the flat list, as src/lua_batch.c reads it

local function record(self, number, a, b, c, d, e)
  local calls, at = self.calls, self.count * STRIDE
  calls[at + 1] = number
  calls[at + 2] = a == nil and NONE or a
  calls[at + 3] = b == nil and NONE or b
  calls[at + 4] = c == nil and NONE or c
  calls[at + 5] = d == nil and NONE or d
  calls[at + 6] = e == nil and NONE or e
  self.count = self.count + 1
end

-- One entry of the pipeline that is one call.
local function single(self)
  self.n = self.n + 1
  if self.first then self.first[self.n] = self.count end
end

-- One entry that is the calls from `first` on; fold(conn, replies, errors, more, first, last)
-- makes its reply, its error and its second value of theirs.
local function composite(self, first, fold)
  if not self.first then
    self.first = {}
    for i = 1, self.n do self.first[i] = i end
  end
  self.n = self.n + 1
  self.first[self.n] = first
  self.folds[self.n] = fold
  return self
end

local function method(name)
  local number, verify = commands[name], check[name]
  return function(self, a, b, c, d, e)
    verify(a, b, c, d, e)
    record(self, number, a, b, c, d, e)
    single(self)
    return self
  end
end

for name in pairs(core.connection) do Pipeline[name] = method(name) end
Pipeline.stats = method "stats"

local function counter(name)
  local plain = Pipeline[name]
  Pipeline[name] = function(self, key, delta, options, extra)
    if type(options) ~= "table" or options.initial == nil or self.conn:protocol() == "meta" then
      return plain(self, key, delta, options, extra)
    end
    check[name](key, delta, options, extra)
    local first = self.count + 1
    record(self, commands[name], key, delta, options)
    return composite(self, first, function(conn, replies, errors)
      if replies[first] ~= nil or errors[first] then return replies[first], errors[first] end
      return many.create_counter(conn, name, key, delta, options)
    end)
  end
end

counter "incr"
counter "decr"

-- The reply is the table of get_many, its second value that of its errors; a bad key among them
-- fails the entry.
function Pipeline:get_many(keys)
  local first = self.count + 1
  local plan, err = many.plan_get(self.conn, keys)
  if not plan then return composite(self, first, function() return nil, err end) end
  for _, call in ipairs(plan) do record(self, commands[call[1]], call[2], call[3]) end
  return composite(self, first, plan.fold)
end

function Pipeline:set_many(values, options)
  local first = self.count + 1
  local keys = many.check_set(values, options)
  for _, key in ipairs(keys) do record(self, commands.set, key, values[key], options) end
  return composite(self, first, many.fold_count(keys))
end

function Pipeline:delete_many(keys)
  local first = self.count + 1
  many.check_keys("delete_many", keys)
  for _, key in ipairs(keys) do record(self, commands.delete, key) end
  return composite(self, first, many.fold_count(keys))
end

local function fold_all(conn, recorded, calls)
  local first, folds = recorded.first, recorded.folds
  local replies, errors, more, failed = {}, {}, {}, 0
  for i = 1, recorded.n do
    local from = first[i]
    local last = (first[i + 1] or calls.n + 1) - 1
    local value, err, second = calls[from], calls.errors[from], calls.more[from]
    if folds[i] then
      value, err, second = folds[i](conn, calls, calls.errors, calls.more, from, last,
        calls.empty)
    end
    replies[i], errors[i], more[i] = value, err, second
    if err then failed = failed + 1 end
  end
  replies.errors, replies.more, replies.n, replies.failed = errors, more, recorded.n, failed
  return replies
end

-- op: what the script called, for the error of an interruption. begun: when, if this is not the
-- first that is sent for it; its one timeout counts from there.
local function run(conn, calls, count, op, begun)
  local replies, errors, more, empty = {}, {}, {}, {}
  local batch = core.new_batch(calls, count, replies, errors, more, empty, op, begun)
  local failed, err = core.run(conn, batch)
  if err ~= nil then failed, err = settle(core.run, failed, err, conn, batch) end
  if failed == nil then return nil, err end
  replies.errors, replies.more, replies.n, replies.failed = errors, more, count, failed
  return replies, empty
end

-- Sends what was recorded and waits for all of it. Returns the replies, with .errors, .more
-- (second values: "exists", "missing"), .n (how many) and .failed (how many of them), or nil
-- and an error when memory ran out. The pipeline is empty as soon as it has begun: also when a
-- deadline or a cancel interrupts the wait, so that running it again sends nothing twice;
-- what is recorded meanwhile is for the next run.
function Pipeline:run()
  local recorded = { n = self.n, first = self.first, folds = self.folds }
  local calls, count = self.calls, self.count
  self:clear()
  local begun = recorded.first and now()
  local replies, empty = run(self.conn, calls, count, "pipeline")
  if replies == nil then return nil, empty end
  if recorded.first == nil then return replies end
  replies.empty, empty.begun = empty, begun
  return fold_all(self.conn, recorded, replies)
end

-- Forgets what was recorded.
function Pipeline:clear()
  self.calls, self.count, self.n = {}, 0, 0
  self.first, self.folds = nil, {}
end

-- A new, empty pipeline over a connection.
function M.new(conn)
  return setmetatable({ conn = conn, calls = {}, count = 0, n = 0, folds = {} }, Pipeline)
end

M.run = run

return M
