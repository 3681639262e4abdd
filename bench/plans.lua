-- bench.plans: which tables are made, and who is in them.
--
--   local plan = plans.make(contenders.find(), "P2,P8", false, true)
--   plan[1].entries[1].contender.name, plan[1].entries[1].workload
--
-- A table has a title, what it measures in words, the kind of its server (bench.servers), `two`
-- where server and client have a processor each, and its entries: { name, contender, workload,
-- rounds = {} }, of which those that a target speaks of are `judged`. Rows of Dalli's benchmark
-- are tables too, with `dalli`, their target.

local targets = require "bench.targets"

local M = {}

-- Measured on two processors too, when everything is.
local ON_TWO = { P1 = true, P2 = true, P6 = true }
-- Measured with long batches of the server's too.
local LONG = { P2 = true }
-- Who takes part in Dalli's rows.
local OF_DALLI = { dalli = true, pymemcache = true, moonjay = true }

local function entry(contender, workload, name)
  return { name = name or contender.name, contender = contender, workload = workload,
           rounds = {} }
end

local function entries_of(here, workload)
  local out = {}
  for _, contender in ipairs(here) do
    local one = entry(contender, workload.name)
    out[#out + 1] = one
    if contender.name == "moonjay" then
      one.judged = true
      for _, other in ipairs(workload.others or {}) do
        local more = entry(contender, other[1], "moonjay, " .. other[2])
        more.judged = other.judged
        out[#out + 1] = more
      end
    end
  end
  return out
end

local function table_of(here, workload, two, server)
  local long = server == "long"
  local calls
  if workload.name == "P2" and not two then
    calls = long and { most = targets.calls.with_long_batches }
      or { of_floor = targets.calls.of_floor }
  end
  return {
    title = workload.name .. (long and " with -R 200" or "") .. (two and " on two cores" or ""),
    words = workload.words, server = server, two = two, calls = calls,
    -- The targets are those of one processor and of the server as it comes.
    target = not (two or long) and workload or nil,
    entries = entries_of(here, workload),
  }
end

local function dalli_table(here, row)
  local entries = {}
  for _, contender in ipairs(here) do
    if OF_DALLI[contender.name] then
      entries[#entries + 1] = entry(contender, row.name)
      if contender.name == "moonjay" then
        entries[#entries + 1] = entry(contender, row.name .. "-gathered", "gathered")
      end
    end
  end
  return { title = row.name, words = "a row of Dalli's benchmark", server = "default",
           dalli = row, entries = entries }
end

-- "P4" is P4a and P4b.
local function is_asked(name, asked)
  return asked[name] or asked[name:match("^(P%d)%l$")]
end

local function read_only(only)
  local asked, known = {}, { P8 = true }
  for _, workload in ipairs(targets.workloads) do
    known[workload.name], known[workload.name:match("^P%d")] = true, true
  end
  for _, row in ipairs(targets.dalli) do known[row.name] = true end
  for name in only:gmatch("[^,%s]+") do
    if not known[name] then return nil, ("ONLY=%s: there is no such table"):format(name) end
    asked[name] = true
  end
  return next(asked) and asked or known
end

-- here: the contenders; only: names, with commas between them, "" for all; two: on two cores;
-- can_two: whether there are two. A list of tables, or nil and a sentence.
function M.make(here, only, two, can_two)
  local asked, wrong = read_only(only)
  if not asked then return nil, wrong end
  local plan = {}
  for _, workload in ipairs(targets.workloads) do
    if is_asked(workload.name, asked) then
      plan[#plan + 1] = table_of(here, workload, two, "default")
      if LONG[workload.name] then plan[#plan + 1] = table_of(here, workload, two, "long") end
    end
  end
  for _, row in ipairs(targets.dalli) do
    if asked.P8 or asked[row.name] then plan[#plan + 1] = dalli_table(here, row) end
  end
  if only == "" and can_two and not two then
    for _, workload in ipairs(targets.workloads) do
      if ON_TWO[workload.name] then
        plan[#plan + 1] = table_of(here, workload, true, "default")
      end
    end
  end
  return plan
end

return M
