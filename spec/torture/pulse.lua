-- Time in a torture run: whether requests end in time, and whether it was the whole process
-- that stood still when one did not.
--
-- A task of its own sleeps BEAT seconds again and again. As long as it comes late, nothing else
-- can have come in time: that much excuses a request which ended late at the same time. What
-- the process did meanwhile is asked of the kernel: it ran, or waited for a processor
-- (/proc/self/schedstat). Had it slept, the runtime would have missed a timer: a fault by
-- itself. But a virtual machine that shares its processors accounts for such time badly, so
-- only a long sleep is held for one.

local ffi = require "ffi"
local mj = require "moonjay"
local posix = require "spec.support.posix"

local M = {}
M.__index = M

local BEAT = 0.004
local SLACK = 0.05     -- what a request may take beyond its deadline
local OVERSLEPT = 1    -- what the process may sleep beyond a timer
local NOTABLE = 0.0005
local KEPT = 8192      -- stalls remembered

pcall(ffi.cdef, [[
  int open(const char *, int, ...);
  ssize_t pread(int, void *, size_t, long);
]])

function M.new(report)
  return setmetatable({
    report = report, stalls = {}, first = 1, last = 0, suspects = {}, spawning = 0,
    worst_late = 0, worst_stall = 0, worst_sleep = 0,
  }, M)
end

local room = ffi.new("char[128]")

-- Seconds in which this process ran or waited for a processor, in all.
local function busy(fd)
  local count = tonumber(ffi.C.pread(fd, room, 127, 0))
  local waited = count > 0 and ffi.string(room, count):match("^%d+ (%d+)") or 0
  return posix.cpu() + tonumber(waited) / 1e9
end

local function stood_still(self, from, to)
  self.worst_stall = math.max(self.worst_stall, to - from)
  self.last = self.last + 1
  self.stalls[self.last] = { from = from, to = to }
  if self.last - self.first >= KEPT then
    self.stalls[self.first] = nil
    self.first = self.first + 1
  end
end

-- How much of the time between two moments the beats came late.
local function excuse(self, from, to)
  local sum = 0
  for i = self.last, self.first, -1 do
    local stall = self.stalls[i]
    if stall.to < from then break end
    sum = sum + math.max(0, math.min(to, stall.to) - math.max(from, stall.from))
  end
  return sum
end

-- The timeout of a URL begins when the request's turn of the loop ends, which is before the
-- second beat that comes after it began: what those two were late, up to the deadline.
local function delay_of_start(self, begun, due)
  local place = self.last + 1
  while place > self.first and self.stalls[place - 1].to >= begun do place = place - 1 end
  local sum, beat = 0, begun
  for i = place, math.min(place + 1, self.last) do
    local stall = self.stalls[i]
    if stall.from > beat + BEAT + NOTABLE then break end
    sum = sum + math.max(0, math.min(stall.to, due) - math.max(stall.from, begun))
    beat = stall.to
  end
  return sum
end

-- When the process stood still while a request was under way, in milliseconds from its
-- deadline.
local function stalls_between(self, late)
  local words = {}
  for i = self.first, self.last do
    local stall = self.stalls[i]
    if stall.to >= late.begun and stall.from <= late.ended then
      words[#words + 1] = ("%.1f to %.1f"):format((stall.from - late.due) * 1e3,
        (stall.to - late.due) * 1e3)
    end
  end
  return table.concat(words, ", ")
end

local function judge(self)
  local suspects = self.suspects
  self.suspects = {}
  for _, late in ipairs(suspects) do
    local by = late.ended - late.due
    local excused = excuse(self, late.due, late.ended)
      + delay_of_start(self, late.begun, late.due)
    self.worst_late = math.max(self.worst_late, by - excused)
    if by - excused > SLACK then
      self.report:late(late.what, by, excused, late.lane, stalls_between(self, late))
    end
  end
end

local function judge_sleep(self, slept)
  self.worst_sleep = math.max(self.worst_sleep, slept)
  if slept > OVERSLEPT then
    self.report:odd(("the runtime slept %.1f ms beyond a timer"):format(slept * 1e3))
  end
end

-- While a child process is made, this one stands still in the kernel, for as long as the child
-- needs for its exec. Returns what undoes it.
local function watch_spawns(self)
  local spawn = posix.spawn
  function posix.spawn(...)
    local start = mj.now()
    local pid, reason = spawn(...)
    self.spawning = self.spawning + (mj.now() - start)
    return pid, reason
  end
  return function() posix.spawn = spawn end
end

-- Beats until the run ends.
function M:run(running)
  local fd = ffi.C.open("/proc/self/schedstat", 0x80000)
  local unwatch = watch_spawns(self)
  local before, seen = busy(fd), mj.now()
  while running() do
    mj.sleep(BEAT)
    local now, after = mj.now(), busy(fd)
    if now - seen - BEAT > NOTABLE then stood_still(self, seen + BEAT, now) end
    judge_sleep(self, now - seen - BEAT - (after - before) - self.spawning)
    before, seen, self.spawning = after, now, 0
    judge(self)
  end
  judge(self)
  unwatch()
  posix.close(fd)
end

-- Something was to end by `due` and has ended now. begun: when a request with a timeout of the
-- URL began; `due` itself for all else. Judged with the next beat.
function M:ended(what, begun, due, lane)
  local now = mj.now()
  if now <= due then return end
  self.suspects[#self.suspects + 1] = {
    what = what, begun = begun, due = due, ended = now, lane = lane,
  }
end

return M
