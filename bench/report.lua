-- bench.report: the tables, as people read them.
--
--   report.table(plan[1])
--   report.dalli(plan)

local targets = require "bench.targets"

local M = {}

local function say(text, ...) io.write(text:format(...), "\n") end
M.say = say

-- 1251340 as "1,251,340".
local function grouped(number)
  local text = ("%.0f"):format(number)
  local count
  repeat
    text, count = text:gsub("^(%d+)(%d%d%d)", "%1,%2")
  until count == 0
  return text
end

local function or_dash(spread, format)
  return spread and format:format(spread.median) or "-"
end

-- What a target is, and whether this row reaches it: "minimum 0.75 / 2.2 met".
local function judged(name, target, row)
  local met = targets.reached(target, row.of_floor.median, row.cpu_of_floor.median)
  return ("%s %.2f / %.2f %s"):format(name, target[1], target[2], met and "met" or "NOT MET")
end

local function judged_calls(row, most)
  return ("calls %.4f %s"):format(most, row.calls.median <= most and "met" or "NOT MET")
end

local function verdict(row, floor, plan)
  local parts, calls = {}, plan.calls
  if not row.judged then return "" end
  if plan.target and row.of_floor then
    parts[1] = judged("minimum", plan.target.minimum, row)
    parts[2] = judged("goal", plan.target.goal, row)
  end
  if calls and calls.most then
    parts[#parts + 1] = judged_calls(row, calls.most)
  elseif calls and row.of_floor and floor.calls then
    parts[#parts + 1] = judged_calls(row, calls.of_floor * floor.calls.median)
  end
  return table.concat(parts, ", ")
end

local LINE = "%-26s %11s %25s %9s %9s %8s %9s  %s"

local function line(format, ...)
  io.write((format:format(...):gsub("%s+$", "")), "\n")
end

local function print_row(row, note)
  if row.disturbed then
    note = (note ~= "" and note .. "; " or "") .. "DISTURBED " .. row.disturbed
  end
  line(LINE, row.name, grouped(row.rate.median),
    ("(%s to %s)"):format(grouped(row.rate.least), grouped(row.rate.most)),
    ("%.3f"):format(row.cpu.median * 1e6), or_dash(row.of_floor, "%.2f"),
    or_dash(row.cpu_of_floor, "%.2f"), or_dash(row.calls, "%.4f"), note)
end

-- A table of bench.plans whose entries have their figures (see figures.add).
function M.table(plan)
  say("\n%s: %s", plan.title, plan.words)
  line(LINE, "", "ops/s", "(least to most)", "CPU us/op", "of floor", "CPU x", "calls/op", "")
  local floor = plan.entries[1]
  for _, row in ipairs(plan.entries) do
    if row.rate then print_row(row, verdict(row, floor, plan)) end
    if row.failed then say("%-26s FAILED: %s", row.name, row.failed) end
  end
end

local DALLI = "%-12s %11s %11s %11s %8s %11s %8s  %s"

local function per_cpu(row) return row and row.cpu and grouped(1 / row.cpu.median) or "-" end

local function times(row, dalli)
  return row and row.cpu and dalli and dalli.cpu and dalli.cpu.median / row.cpu.median
end

local function notes_of(row, by, direct)
  local notes, disturbed, first = {}, {}, nil
  if direct then
    notes[1] = ("minimum %d %s"):format(row.times, direct >= row.times and "met" or "NOT MET")
  end
  for _, name in ipairs { "dalli", "pymemcache", "moonjay", "gathered" } do
    local one = by[name] or {}
    if one.failed then notes[#notes + 1] = "FAILED: " .. one.failed end
    if one.disturbed then
      disturbed[#disturbed + 1], first = name, first or one.disturbed
    end
  end
  if first then
    notes[#notes + 1] = ("DISTURBED %s (%s)"):format(table.concat(disturbed, ", "), first)
  end
  return table.concat(notes, "; ")
end

-- All tables of the plan that are rows of Dalli's benchmark, as one.
function M.dalli(plan)
  local begun = false
  for _, one in ipairs(plan) do
    if one.dalli then
      if not begun then
        say("\nP8: the rows of Dalli's benchmark, operations per CPU second")
        line(DALLI, "", "dalli", "pymemcache", "moonjay", "x dalli", "gathered", "x dalli", "")
        begun = true
      end
      local by = {}
      for _, row in ipairs(one.entries) do by[row.name] = row end
      local direct, gathered = times(by.moonjay, by.dalli), times(by.gathered, by.dalli)
      line(DALLI, one.title, per_cpu(by.dalli), per_cpu(by.pymemcache), per_cpu(by.moonjay),
        direct and ("%.1f"):format(direct) or "-", per_cpu(by.gathered),
        gathered and ("%.1f"):format(gathered) or "-", notes_of(one.dalli, by, direct))
    end
  end
end

return M
