-- Waiting in specs: for the thing, with a deadline.
--
--   wait.until_true(5, "the server to answer", function() return probe() end)
--   wait.pause(0.01)    -- suspends the task inside the runtime, blocks elsewhere

local posix = require "spec.support.posix"

local M = {}

local known, mj = pcall(require, "moonjay")

function M.pause(seconds)
  -- mj.sleep throws where nothing can wait: in a plain luajit, or while a file loads.
  if not known or not pcall(mj.sleep, seconds) then posix.sleep(seconds) end
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
