-- bench/rounds.lua: workloads as exact numbers of operations, for whoever counts them.
--
--   local play = rounds.prepare(conn)
--   play.P2(10000)                      -- 100 tasks, 100 gets each; every reply is looked at
--   rounds.calls(conn)                  -- system calls so far, as the runtime counts them
--
-- They are P1 to P4 of the tables, over one connection, with values of 100 bytes: P1 gets one
-- at a time, P2 with 100 in flight, P3 gets 100 keys at a time (an operation is a key), P4a and
-- P4b are P1 and P2 with set.

local mj = require "moonjay"

local M = {
  names = { "P1", "P2", "P3", "P4a", "P4b" },
  about = {
    P1 = "a get at a time", P2 = "100 gets in flight", P3 = "get_many of 100, a key",
    P4a = "a set at a time", P4b = "100 sets in flight",
  },
  FLIGHT = 100, -- requests in flight, and keys of a get_many: what counts are multiples of
}

local function wrong() error("a wrong answer came", 0) end

-- Runs `count` operations on `tasks` tasks: each calls operation(i), i being its own number.
function M.spread(operation, count, tasks)
  local list, each = {}, count / tasks
  for i = 1, tasks do
    list[i] = mj.spawn(function()
      for _ = 1, each do operation(i) end
    end)
  end
  mj.check(mj.all(list))
end

-- Stores what the workloads get, each key with a value of its own. Returns them by name, each a
-- function of the number of operations.
function M.prepare(conn)
  local keys, values = {}, {}
  for i = 1, M.FLIGHT do
    -- They differ in their first bytes and their last, where LuaJIT's hash of a string looks:
    -- many strings of one hash would be the most of what is counted.
    keys[i] = ("%08x:bench"):format(i * 2654435761 % 2 ^ 32)
    values[i] = keys[i]:rep(8):sub(1, 100)
    mj.check(conn:set(keys[i], values[i]))
  end

  local function get(i)
    if conn:get(keys[i]) ~= values[i] then wrong() end
  end
  local function set(i)
    if conn:set(keys[i], values[i]) ~= true then wrong() end
  end
  local function get_many()
    local got = mj.check(conn:get_many(keys))
    for i = 1, #keys do
      if got[keys[i]] ~= values[i] then wrong() end
    end
  end
  return {
    P1 = function(count) M.spread(get, count, 1) end,
    P2 = function(count) M.spread(get, count, M.FLIGHT) end,
    P3 = function(count) M.spread(get_many, count / M.FLIGHT, 1) end,
    P4a = function(count) M.spread(set, count, 1) end,
    P4b = function(count) M.spread(set, count, M.FLIGHT) end,
  }
end

-- All system calls of the connection and the loop so far.
function M.calls(conn)
  local of_conn, of_loop = conn:counters(), mj.counters()
  return of_conn.reads + of_conn.writes + of_conn.arms + of_loop.turns + of_loop.timer_arms
end

return M
