-- bench.dalli: the ten rows of the benchmark that comes with Ruby's client Dalli, for moonjay.
--
--   local round = dalli.rows["D-mixed"](conn)
--   local operations = round()
--
-- Keys, values and the order of commands are those of test/benchmark_test.rb there. It stores
-- an empty list: as the four bytes that Ruby makes of it (D-set-raw, D-get-raw, D-setq; "plain"
-- there), or encoded and decoded by the client each time (all others; here by string.buffer). A
-- round is one turn of the row's loop; D-setq, one long block there, is fenced every 600
-- commands.

local buffer = require "string.buffer"
local mj = require "moonjay"

local M = { rows = {} }
local rows = M.rows

local encode, decode = buffer.encode, buffer.decode

local KEY_1, KEY_2, KEY_3 = "Short", ("Sym1-2-3::45"):rep(8), ("Long"):rep(40)
local KEY_4, KEY_5, KEY_6 = ("Medium"):rep(8), ("Medium2"):rep(8), ("Long3"):rep(40)
local SIX = { KEY_1, KEY_2, KEY_3, KEY_1, KEY_2, KEY_3 }
local RAW = "\4\8[\0"
local QUIET = { quiet = true }
local BLOCK, COUNTS = 100, 100

local function wrong(what, key) error(("%s of %s: a wrong answer"):format(what, key), 0) end

-- ---- one command each, checked ----

local function set_raw(conn, key)
  if conn:set(key, RAW) ~= true then wrong("set", key) end
end

local function get_raw(conn, key)
  if conn:get(key) ~= RAW then wrong("get", key) end
end

local function set(conn, key)
  if conn:set(key, encode {}) ~= true then wrong("set", key) end
end

local function set_quiet(conn, key)
  if conn:set(key, encode {}, QUIET) ~= true then wrong("quiet set", key) end
end

local function check_list(key, value)
  local list = value and decode(value)
  if type(list) ~= "table" or next(list) ~= nil then wrong("get", key) end
end

local function get(conn, key) check_list(key, (conn:get(key))) end

local function of_six(command)
  return function(conn)
    return function()
      for i = 1, 6 do command(conn, SIX[i]) end
      return 6
    end
  end
end

local function after(prepare, row)
  return function(conn)
    prepare(conn)
    return row(conn)
  end
end

-- Each row starts from what it needs, so it can be run alone.
local function all_there(conn)
  for i = 1, 3 do set(conn, SIX[i]) end
end

local function all_there_raw(conn)
  for i = 1, 3 do set_raw(conn, SIX[i]) end
end

-- ---- the rows ----

rows["D-set"] = of_six(set)
rows["D-get"] = after(all_there, of_six(get))
rows["D-set-raw"] = of_six(set_raw)
rows["D-get-raw"] = after(all_there_raw, of_six(get_raw))

rows["D-setq"] = function(conn)
  return function()
    for _ = 1, BLOCK do
      for i = 1, 6 do conn:set(SIX[i], RAW, QUIET) end
    end
    mj.check(conn:noop())
    return 6 * BLOCK
  end
end

-- Three of the six are there. Each key counts as an operation.
rows["D-multiget"] = after(all_there, function(conn)
  conn:delete_many { KEY_4, KEY_5, KEY_6 }
  local keys = { KEY_1, KEY_2, KEY_3, KEY_4, KEY_5, KEY_6 }
  return function()
    local got = mj.check(conn:get_many(keys))
    for i = 1, 3 do check_list(keys[i], got[keys[i]]) end
    for i = 4, 6 do
      if got[keys[i]] ~= nil then wrong("get_many", keys[i]) end
    end
    return 6
  end
end)

rows["D-missing"] = function(conn)
  conn:delete_many { KEY_1, KEY_2, KEY_3 }
  return function()
    for i = 1, 3 do
      local key = SIX[i]
      if conn:delete(key) ~= false then wrong("delete", key) end
      local value, err = conn:get(key)
      if value ~= nil or err ~= nil then wrong("get", key) end
    end
    return 6
  end
end

rows["D-mixed"] = function(conn)
  return function()
    for i = 1, 3 do set(conn, SIX[i]) end
    for i = 1, 3 do get(conn, SIX[i]) end
    for i = 1, 3 do
      set(conn, SIX[i])
      get(conn, SIX[i])
    end
    return 12
  end
end

rows["D-mixedq"] = function(conn)
  return function()
    for i = 1, 3 do set_quiet(conn, SIX[i]) end
    for i = 1, 3 do get(conn, SIX[i]) end
    set_quiet(conn, KEY_1)
    get(conn, KEY_1)
    set(conn, KEY_2)
    conn:replace(KEY_2, encode {}, QUIET)
    conn:delete(KEY_3, QUIET)
    conn:add(KEY_3, encode {}, QUIET)
    get(conn, KEY_2)
    set_quiet(conn, KEY_3)
    get(conn, KEY_3)
    return 15
  end
end

rows["D-incr"] = function(conn)
  local key, initial = "foocount", { initial = 1 }
  mj.check(conn:set(key, "0"))
  return function()
    for i = 1, COUNTS do
      if conn:incr(key, 1, initial) ~= i then wrong("incr", key) end
    end
    for i = COUNTS - 1, 0, -1 do
      if conn:decr(key, 1) ~= i then wrong("decr", key) end
    end
    return 2 * COUNTS
  end
end

return M
