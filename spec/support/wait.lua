-- Waiting in specs: for the thing, with a deadline.
--
--   wait.until_true(5, "the server to answer", function() return probe() end)
--   wait.pause(0.01)    -- suspends the task inside the runtime, blocks elsewhere

local posix = require "spec.support.posix"

local M = {}

local known, mj = pcall(require, "moonjay")

function M.pause(seconds)
  -- mj.sleep throws a text where nothing can wait (while a file loads), an error where the task
  -- was cancelled.
  local slept, err = pcall(known and mj.sleep or error, seconds)
  if type(err) == "table" then error(err, 0) end
  if not slept then posix.sleep(seconds) end
end

-- Calls probe until it returns a true value, and returns that; throws after `seconds`.
function M.until_true(seconds, what, probe)
  local stop = posix.now() + seconds
  while true do
    local value = probe()
    if value then return value end
    if posix.now() > stop then
      error(("waited %g s for %s"):format(seconds, what), 2)
    end
    M.pause(0.002)
  end
end

return M
