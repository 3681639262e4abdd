-- moonjay.wait: what stands between a script and a primitive of moonjay.core that waits.
--
--   local value, more = submit(self, a, b)
--   if more == nil then return value end
--   return settle(submit, value, more, self, a, b)
--
-- A primitive returns its results, or nil and a token: INTERRUPT when the task was cancelled
-- or a deadline of the script passed, RETRY when there was no room and now there is, NO_MEMORY
-- when there was no memory to make its answer, or the error that it had instead. So a script
-- never calls a primitive itself, but through a function like the one above.

local core = require "moonjay.core"
local errors = require "moonjay.errors"

local INTERRUPT, RETRY, NO_MEMORY = core.INTERRUPT, core.RETRY, core.NO_MEMORY
local take_interrupt = core.take_interrupt

local M = {}

-- Deals with what a primitive returned: raises what interrupted it, calls it again as long as
-- it asks for that, and returns anything else as it is (two values).
function M.settle(primitive, value, more, ...)
  while value == nil do
    if more == INTERRUPT then error(take_interrupt(), 0) end
    if more == NO_MEMORY then
      return nil, errors.new {
        kind = "no_memory", phase = "read", sent = "maybe", retryable = false,
        message = "there was no memory to hold the answer, or what was wrong",
      }
    end
    if more ~= RETRY then break end
    value, more = primitive(...)
  end
  return value, more
end

return M
