-- Requests of every sort at every place that a request can have on a connection, all at once:
--
--   written        the server has it whole
--   half written   the server has a part; the socket is full
--   behind         in line behind that one: no byte of it has left
--   parked         waits for room: it is not even in line
--
--   local stage = standing.start { protocol = "meta", carrier = "call", big = "append" }
--   stage.peer:close(true)
--   for _, found in ipairs(stage:finish()) do print(found.place, found.op, found.err) end

local errors = require "moonjay.errors"
local hand = require "spec.support.hand"
local heard = require "spec.support.heard"
local mj = require "moonjay"
local posix = require "spec.support.posix"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local SECONDS = 10
local BIG = ("x"):rep(200000) -- far more than small buffers take

M.PLACES = { "written", "half written", "behind", "parked" }

-- A row: the op, whether it may be repeated, and how a connection or a pipeline is asked. The
-- quiet one is not the last: those behind it are its fence.
M.OPS = {
  { "get", true, function(face, key) return face:get(key) end },
  { "set", true, function(face, key, value) return face:set(key, value) end },
  { "quiet", false, function(face, key) return face:set(key, "q", { quiet = true }) end },
  { "incr", false, function(face, key) return face:incr(key) end },
  { "delete", true, function(face, key) return face:delete(key) end },
  { "append", false, function(face, key, value) return face:append(key, value) end },
  { "cas", false, function(face, key, value) return face:cas(key, value, "1") end },
  { "get_many", true, function(face, key) return face:get_many { key } end, true },
  { "set_many", true, function(face, key) return face:set_many { [key] = "m" } end, true },
}

M.repeatable = { pipeline = false }
for _, op in ipairs(M.OPS) do M.repeatable[op[1]] = op[2] end

local function name_of(place, op)
  return (place:gsub(" ", "-")) .. "/" .. op
end

local function found(self, place, op, err)
  self.results[#self.results + 1] = {
    place = place, op = op, key = op ~= "pipeline" and name_of(place, op) or nil, err = err,
  }
end

-- The error of one answer, or nil: a table of errors by key, from those that take many.
local function error_of(op, key, value, second)
  if op[4] and not errors.is(second) then return second and second[key] end
  return value == nil and second or nil
end

-- fn(...), with the deadline that this place has, if it has one.
local function in_time(self, place, fn, ...)
  local seconds = self.within and self.within[place]
  if seconds then return mj.deadline(seconds, fn, ...) end
  return fn(...)
end

-- One op of the list by one carrier ("call" or "pipeline"): its error, thrown or returned.
function M.ask_one(conn, carrier, op, key, value)
  local ok, answer, second
  if carrier == "pipeline" then
    local pipeline = conn:pipeline()
    op[3](pipeline, key, value or "v")
    local replies
    ok, replies, second = pcall(pipeline.run, pipeline)
    if not ok then return replies end
    if replies == nil then return second end
    answer, second = replies[1], replies.errors[1] or op[4] and replies.more[1]
  else
    ok, answer, second = pcall(op[3], conn, key, value or "v")
    if not ok then return answer end
  end
  return error_of(op, key, answer, second)
end

local function call_one(self, place, op, value)
  local key = name_of(place, op[1])
  local ok, answer, second = pcall(in_time, self, place, op[3], self.conn, key, value or "v")
  if not ok then return found(self, place, op[1], answer) end
  found(self, place, op[1], error_of(op, key, answer, second))
end

local function call_all(self, place, ops, value)
  local pipeline = self.conn:pipeline()
  for _, op in ipairs(ops) do op[3](pipeline, name_of(place, op[1]), value or "v") end
  local ok, replies, err = pcall(in_time, self, place, pipeline.run, pipeline)
  if not ok or replies == nil then
    return found(self, place, "pipeline", ok and err or replies)
  end
  for i, op in ipairs(ops) do
    local second = replies.errors[i]
    if op[4] then second = second or replies.more[i] end
    found(self, place, op[1], error_of(op, name_of(place, op[1]), replies[i], second))
  end
end

local function spawn(self, place, ...)
  local tasks = self.tasks[place] or {}
  tasks[#tasks + 1] = mj.spawn(...)
  self.tasks[place] = tasks
end

local function ask(self, place, ops, value)
  if self.carrier == "pipeline" then
    spawn(self, place, call_all, self, place, ops, value)
  else
    for _, op in ipairs(ops) do spawn(self, place, call_one, self, place, op, value) end
  end
end

local function ops_of(self, place)
  local ops = {}
  for _, op in ipairs(M.OPS) do
    if op[1] ~= "quiet" or self.quiet == place then ops[#ops + 1] = op end
  end
  return ops
end

local function op_named(name)
  for _, op in ipairs(M.OPS) do
    if op[1] == name then return op end
  end
end

local fill = {}

fill["written"] = function(self, place)
  local ops = ops_of(self, place)
  ask(self, place, ops)
  wait.until_true(SECONDS, "the server to have them", function()
    local have = heard.of((self.peer:received()))
    for _, op in ipairs(ops) do
      if have[name_of(place, op[1])] ~= "whole" then return false end
    end
    return true
  end)
end

fill["half written"] = function(self, place)
  local before = self.conn:counters().bytes_written
  ask(self, place, { op_named(self.big) }, BIG)
  wait.until_true(SECONDS, "a part to leave", function()
    return self.conn:counters().bytes_written > before
  end)
  assert(self.conn:counters().bytes_written < before + #BIG, "all of it left")
end

fill["behind"] = function(self, place)
  local before, ops = self.conn:counters().inflight, ops_of(self, place)
  ask(self, place, ops)
  wait.until_true(SECONDS, "the rest to stand in line", function()
    return self.conn:counters().inflight == before + #ops
  end)
end

fill["parked"] = function(self, place)
  local ops = ops_of(self, place)
  ask(self, place, ops)
  wait.until_true(SECONDS, "the rest to be parked", function()
    return self.conn:counters().parked == (self.carrier == "pipeline" and 1 or #ops)
  end)
end

local function room_of(self)
  local room = 0
  for place in pairs(self.places) do
    room = room + (place == "half written" and 1 or place == "parked" and 0 or
      #ops_of(self, place))
  end
  return room
end

-- options: protocol; carrier ("call" or "pipeline"); big (the op that is half written); quiet
-- (the place of the quiet request; nil: there is none); timeout and stall (of the URL); within
-- (deadlines of the script's, in seconds, by place); places (a list; nil: all).
function M.start(options)
  local self = setmetatable({ results = {}, tasks = {}, places = {} }, M)
  for name, value in pairs(options) do self[name] = value end
  self.places = {}
  for _, place in ipairs(options.places or M.PLACES) do self.places[place] = true end
  self.peer = hand.listen { rcvbuf = 4096 }
  self.conn = self.peer:connect(
    ("protocol=%s&send_buffer=4096&max_inflight=%d&timeout=%s&stall_timeout=%s"):format(
      self.protocol, room_of(self), self.timeout or "30s", self.stall or "60s"), {
      on_error = function(err) self.quiet_error = err end,
    })
  for _, place in ipairs(M.PLACES) do
    if self.places[place] then fill[place](self, place) end
  end
  return self
end

-- Waits until every request has ended, and takes what the server received. Returns a list of
-- { place, op, key, err }, and the server's part of it: { [key] = "whole" or "part" }.
function M:finish()
  for _, tasks in pairs(self.tasks) do
    for _, task in ipairs(tasks) do
      local value, err = task:wait(SECONDS)
      if value == nil and err then error(err, 0) end
    end
  end
  if self.quiet and self.quiet ~= "parked" then
    wait.until_true(SECONDS, "on_error to be called", function() return self.quiet_error end)
    found(self, self.quiet, "quiet", self.quiet_error)
    for i, result in ipairs(self.results) do -- its yes, as it was queued
      if result.op == "quiet" and not result.err then table.remove(self.results, i) break end
    end
  end
  self.conn:close()
  local bytes = self.text or self.peer:received_to_end()
  self.peer:finish()
  return self.results, heard.of(bytes)
end

-- ---- what may happen to them ----

-- The server ends its side, or resets the connection; what it has by then is all it gets.
function M:end_server(reset)
  if reset then
    self.text = self.peer:received()
    self.peer:close(true)
  else
    posix.shutdown_write(self.peer.fd)
  end
end

-- Those farthest from the server first: giving up the half written one costs the connection.
function M:cancel()
  for _, place in ipairs { "parked", "behind", "written", "half written" } do
    for _, task in ipairs(self.tasks[place] or {}) do task:cancel() end
  end
end

-- Sends the line of a reply to the oldest request, a get, which announces a value of `size`
-- bytes, and what follows it.
function M:reply(size, rest)
  local asked = self.peer:received():match("^[^\r]*")
  local line = self.protocol == "meta" and ("VA %s%s"):format(size, hand.token(asked))
    or ("VALUE %s 0 %s"):format(name_of("written", "get"), size)
  self.peer:send(line, "\r\n", rest or "")
end

return M
