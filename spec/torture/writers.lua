-- The writers of the keys that are no registers: scribes append and prepend to one, tellers
-- count in one.
--
--   local scribe = writers.scribe(run, random, server, key)
--   scribe:step(lane)     -- false when the lane has no connection now
--   scribe:is_spent()     -- then it is time for another key

local Appendix = require "spec.torture.appendix"
local Counter = require "spec.torture.counter"
local count = require "spec.torture.owner".count

local M = {}

local function call(self, lane, link, op, ...)
  local args, n = { ... }, select("#", ...)
  self.oracle:settle()
  local out = lane:call(self.random, op, function(conn)
    return conn[op](conn, unpack(args, 1, n))
  end, { link = link, steps = self.steps })
  count(self.run, out, op, out.value, out.err, op == "meta")
  return out
end

local function writer(run, random, oracle, step)
  return {
    run = run, random = random, oracle = oracle,
    step = function(self, lane)
      local link = lane:open()
      if not link then return false end
      step(self, lane, link)
      return true
    end,
    is_spent = function() return oracle:is_spent() end,
  }
end

-- ---- scribes ----

local WORDS = { append = "MA", prepend = "MP" }

local function read_row(self, lane, link)
  local oracle = self.oracle
  local out = call(self, lane, link, "get", oracle.key)
  if out.err then return end
  if out.value == nil then oracle:missed(out) else oracle:saw(out, out.value) end
end

local function begin_row(self, lane, link)
  local oracle = self.oracle
  local record, value = oracle:create(self.random)
  local out = call(self, lane, link, "set", oracle.key, value)
  if out.err then return oracle:failed(out, "set", record, out.err) end
  oracle:wrote(out, record)
end

local function grow_row(self, lane, link)
  local oracle, random = self.oracle, self.random
  local record, value = oracle:create(random)
  local op, meta = random:pick { "append", "prepend" }, random:chance(0.3)
  local out
  if meta and link.conn:protocol() == "meta" then
    out = call(self, lane, link, "meta", "ms", oracle.key, { WORDS[op] }, value)
    if not out.err then out.value = out.value.rc == "HD" end
  else
    out = call(self, lane, link, op, oracle.key, value)
  end
  if out.err then return oracle:failed(out, op, record, out.err) end
  if out.value then return oracle:grew(out, op, record) end
  oracle.never[record] = "not stored"
  oracle:missed(out)
end

function M.scribe(run, random, server, key)
  return writer(run, random, Appendix.new(key, server, run.report), function(self, lane, link)
    if not self.oracle.row then
      begin_row(self, lane, link)
    elseif random:chance(0.5) then
      grow_row(self, lane, link)
    else
      read_row(self, lane, link)
    end
  end)
end

-- ---- tellers ----

local function make_number(self, lane, link)
  local oracle, random = self.oracle, self.random
  local op = random:pick { "set", "add", "incr" }
  local out
  if op == "incr" then
    self.steps = 3 -- over ascii: incr, add, incr
    out = call(self, lane, link, "incr", oracle.key, 1, { initial = Counter.FIRST })
    self.steps = nil
  else
    out = call(self, lane, link, op, oracle.key, ("%d"):format(Counter.FIRST))
  end
  if out.err then
    oracle.spent = oracle.spent or out.err.sent ~= "no"
  elseif op == "incr" and out.value ~= Counter.FIRST or not out.value then
    oracle:wrong(out, "a number that was there: " .. tostring(out.value))
  else
    oracle:made(Counter.FIRST)
  end
end

local function read_number(self, lane, link)
  local oracle = self.oracle
  local out = call(self, lane, link, "get", oracle.key)
  if out.err then return end
  if out.value == nil then return oracle:missed(out) end
  local number = tonumber(out.value:match("^(%d+) *$"))
  if not number then return oracle:wrong(out, ("%q"):format(out.value:sub(1, 60))) end
  oracle:is(out, number, 0)
end

local function count_quietly(self, lane, link)
  local oracle, delta = self.oracle, self.random:between(1, 1000000)
  oracle:settle()
  oracle.writes = oracle.writes + 1
  local out = lane:call(self.random, "incr", function(conn)
    return conn:incr(oracle.key, delta, { quiet = true })
  end, { link = link, quiet = true })
  count(self.run, out, "incr", out.value, out.err)
  oracle:doubted(out, delta, out.err or { sent = "maybe" })
end

local function count_aloud(self, lane, link)
  local oracle, random = self.oracle, self.random
  local op, delta = random:pick { "incr", "decr" }, random:between(1, 1000000)
  local signed = op == "incr" and delta or -delta
  oracle.writes = oracle.writes + 1
  local out
  if random:chance(0.3) and link.conn:protocol() == "meta" then
    out = call(self, lane, link, "meta", "ma", oracle.key,
      { "v", "D" .. delta, op == "incr" and "MI" or "MD" })
    local reply = out.value
    if reply then out.value = reply.rc == "VA" and tonumber(reply.value) or nil end
  else
    out = call(self, lane, link, op, oracle.key, delta)
  end
  if out.err then return oracle:doubted(out, signed, out.err) end
  if out.value == nil then return oracle:missed(out) end
  oracle:is(out, out.value, signed)
end

function M.teller(run, random, server, key)
  return writer(run, random, Counter.new(key, server, run.report), function(self, lane, link)
    if not self.oracle.number then
      make_number(self, lane, link)
    elseif random:chance(0.3) then
      read_number(self, lane, link)
    elseif random:chance(0.1) then
      count_quietly(self, lane, link)
    else
      count_aloud(self, lane, link)
    end
  end)
end

return M
