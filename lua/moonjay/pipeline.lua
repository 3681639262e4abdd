-- moonjay.pipeline: requests recorded first, sent in one write, answered in one wait.
--
--   local p = conn:pipeline()
--   p:set("a", "1"):get("b"):incr("n", 2)
--   local replies = p:run()  -- replies[i], replies.errors[i], replies.more[i]
--
-- Every command of a connection is a method that records it and returns the pipeline. run
-- sends what was recorded and empties the pipeline, which may then be used again. Replies stand
-- in the order asked; one failed command fails only itself.

local batch = require "moonjay.batch"
local core = require "moonjay.core"
local many = require "moonjay.many"

local M = {}
local Pipeline = {}
Pipeline.__index = Pipeline

local check, commands, now = core.check, core.commands, core.now
local record = batch.record

-- One entry of the pipeline that is one call.
local function single(self)
  self.n = self.n + 1
  if self.first then self.first[self.n] = self.calls.count end
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

-- Commands that are mostly given so many strings and nothing else, which is seen here for less
-- than the C side takes to check it.
local STRINGS = {
  get = 1, item = 1, delete = 1, set = 2, add = 2, replace = 2, append = 2, prepend = 2,
}

local function is_plain(strings, a, b, c, d, e)
  return c == nil and d == nil and e == nil and type(a) == "string"
    and (strings == 1 and b == nil or strings == 2 and type(b) == "string")
end

local function method(name)
  local number, verify, strings = commands[name], check[name], STRINGS[name]
  return function(self, a, b, c, d, e)
    if not is_plain(strings, a, b, c, d, e) then verify(a, b, c, d, e) end
    record(self.calls, number, a, b, c, d, e)
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
    local first = self.calls.count + 1
    record(self.calls, commands[name], key, delta, options)
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
  local first = self.calls.count + 1
  local plan, err = many.plan_get(self.conn, keys)
  if not plan then return composite(self, first, function() return nil, err end) end
  many.record_get(self.calls, plan)
  return composite(self, first, function(conn, replies, failures, _, _, _, empty)
    local values, errors = many.fold_get(plan, conn, replies, failures, first, empty)
    return values, nil, errors
  end)
end

function Pipeline:set_many(values, options)
  local first = self.calls.count + 1
  local keys = many.check_set(values, options)
  for _, key in ipairs(keys) do record(self.calls, commands.set, key, values[key], options) end
  return composite(self, first, many.fold_count(keys))
end

function Pipeline:delete_many(keys)
  local first = self.calls.count + 1
  many.check_keys("delete_many", keys)
  for _, key in ipairs(keys) do record(self.calls, commands.delete, key) end
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

-- Sends what was recorded and waits for all of it. Returns the replies, with .errors, .more
-- (second values: "exists", "missing"), .n (how many) and .failed (how many of them), or nil
-- and an error when memory ran out. The pipeline is empty as soon as it has begun: also when a
-- deadline or a cancel interrupts the wait, so that running it again sends nothing twice;
-- what is recorded meanwhile is for the next run.
function Pipeline:run()
  local recorded = { n = self.n, first = self.first, folds = self.folds }
  local calls = self.calls
  self:clear()
  local begun = recorded.first and now()
  local replies, empty = batch.run(self.conn, calls, "pipeline")
  if replies == nil then return nil, empty end
  if recorded.first == nil then return replies end
  replies.empty, empty.begun = empty, begun
  return fold_all(self.conn, recorded, replies)
end

-- Forgets what was recorded.
function Pipeline:clear()
  self.calls, self.n = batch.new(self.calls.size), 0
  self.first, self.folds = nil, {}
end

-- A new, empty pipeline over a connection.
function M.new(conn)
  return setmetatable({ conn = conn, calls = batch.new(), n = 0, folds = {} }, Pipeline)
end

return M
