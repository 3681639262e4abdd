-- Coroutines over poll(2), for the fake servers: they run in a plain luajit, beside moonjay and
-- without a line of it.
--
--   loop.start(function() loop.readable(fd, 1); ... end)
--   loop.run()     -- until no coroutine is left

local posix = require "spec.support.posix"

local M = {}

-- Coroutine to what it waits for: { fd, events, until }; fd may be nil.
local waiting = {}

local function resume(thread, ...)
  local fine, reason = coroutine.resume(thread, ...)
  if not fine then error(debug.traceback(thread, tostring(reason)), 0) end
end

function M.start(fn, ...)
  resume(coroutine.create(fn), ...)
end

local function wait(fd, events, seconds)
  waiting[coroutine.running()] = { fd, events, posix.now() + seconds }
  return coroutine.yield()
end

-- Each waits at most `seconds`; true when fd is ready, false when time ran out.
function M.readable(fd, seconds) return wait(fd, posix.POLLIN, seconds) end
function M.writable(fd, seconds) return wait(fd, posix.POLLOUT, seconds) end
function M.sleep(seconds) return wait(nil, 0, seconds) end

local function turn()
  local list, first = {}, math.huge
  for _, want in pairs(waiting) do
    if want[1] then list[#list + 1] = want end
    first = math.min(first, want[3])
  end
  local ready = posix.poll(list, first - posix.now())
  local now, due = posix.now(), {}
  for thread, want in pairs(waiting) do
    if want[1] and ready[want[1]] then
      due[thread] = true
    elseif want[3] <= now then
      due[thread] = false
    end
  end
  for thread, answer in pairs(due) do
    waiting[thread] = nil
    resume(thread, answer)
  end
end

function M.run()
  while next(waiting) do turn() end
end

return M
