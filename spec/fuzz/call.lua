-- What a script may ask, as an input has it: loaded by call.c into a runtime.
--
--   play(url, pipelined, input)   --> the calls that were sent, as "letter key" records
--
-- An input is records that end with \254, of fields that end with \255: a letter of CALLS, a
-- key, a text, a number.

local mj = require "moonjay"

-- Kinds of those that never get as far as the wire.
local REFUSED = { bad_key = true, bad_value = true, too_large = true, unsupported = true }

local function number(text) return tonumber(text) or 0 end

local function flags(text)
  local list = {}
  for flag in text:gmatch("[^\253]+") do list[#list + 1] = flag end
  return list
end

local CALLS = {
  g = function(c, key) return c:get(key) end,
  h = function(c, key, _, n) return c:gat(key, number(n)) end,
  i = function(c, key) return c:item(key) end,
  I = function(c, key, _, n) return c:item(key, { touch = number(n) }) end,
  s = function(c, key, text, n) return c:set(key, text, { ttl = number(n) }) end,
  S = function(c, key, text) return c:set(key, text, { quiet = true }) end,
  f = function(c, key, text, n) return c:add(key, text, { flags = n }) end,
  r = function(c, key, text, n)
    return c:replace(key, text, { ttl = number(n), quiet = true })
  end,
  a = function(c, key, text) return c:append(key, text) end,
  p = function(c, key, text) return c:prepend(key, text) end,
  c = function(c, key, text, n) return c:cas(key, text, n) end,
  d = function(c, key) return c:delete(key) end,
  D = function(c, key) return c:delete(key, { quiet = true }) end,
  t = function(c, key, _, n) return c:touch(key, number(n)) end,
  n = function(c, key, _, n) return c:incr(key, n) end,
  N = function(c, key, _, n) return c:decr(key, n, { quiet = true }) end,
  z = function(c, _, text) return c:stats(text) end,
  F = function(c, _, _, n) return c:flush_all(number(n)) end,
}

-- Those of one line over meta alone.
local OVER_META = {
  j = function(c, key, text, n) return c:incr(key, n, { initial = text, ttl = number(n) }) end,
  k = function(c, key, text) return c:meta("mg", key, flags(text)) end,
  w = function(c, key, text, n) return c:meta("ms", key, flags(text), n) end,
  e = function(c, key, text) return c:meta("md", key, flags(text)) end,
  u = function(c, key, text) return c:meta("ma", key, flags(text)) end,
  x = function(c, key, text) return c:meta("me", key, flags(text)) end,
}

local function read(input, meta)
  local calls = {}
  for record in input:gmatch("[^\254]+") do
    local letter, key, text, n = record:match("^(%a)([^\255]*)\255?([^\255]*)\255?([^\255]*)")
    local ask = CALLS[letter] or meta and OVER_META[letter]
    if ask then
      local keyless = letter == "z" or letter == "F"
      calls[#calls + 1] = { letter = letter, ask = ask, key = key, text = text, n = n,
                            shown = keyless and "" or key }
    end
  end
  return calls
end

-- A value names the key it is of, which the wire may have base64-encoded.
local function check(call, value)
  if type(value) == "table" then value = value.value end
  if type(value) == "string" and call.letter:find("[ghiI]") then
    local named = value:match("^of (.*)")
    assert(named and (named == call.key or #named >= #call.key), "a value of another key")
  end
end

local function was_sent(call, value, err)
  if err == nil then check(call, value) end
  return not (type(err) == "table" and REFUSED[err.kind])
end

-- Each in a task of its own.
local function run_tasks(conn, calls)
  local tasks = {}
  for i, call in ipairs(calls) do
    tasks[i] = mj.spawn(function()
      local fine, value, err = pcall(call.ask, conn, call.key, call.text, call.n)
      return fine and was_sent(call, value, err)
    end)
  end
  for i, task in ipairs(tasks) do calls[i].sent = mj.check(task:wait()) end
end

local function run_pipeline(conn, calls)
  local pipe, places, count = conn:pipeline(), {}, 0
  for i, call in ipairs(calls) do
    if pcall(call.ask, pipe, call.key, call.text, call.n) then
      count = count + 1
      places[i] = count
    end
  end
  local replies = mj.check(pipe:run())
  for i, call in ipairs(calls) do
    local at = places[i]
    call.sent = at and was_sent(call, replies[at], replies.errors[at])
  end
end

function play(url, pipelined, input)
  local conn = mj.check(mj.connect(url))
  local calls = read(input, conn:protocol() == "meta")
  if pipelined then run_pipeline(conn, calls) else run_tasks(conn, calls) end
  conn:close()
  local sent = {}
  for _, call in ipairs(calls) do
    if call.sent then sent[#sent + 1] = call.letter .. call.shown .. "\254" end
  end
  return table.concat(sent)
end
