-- moonjay.relay: lets a wait pass through the coroutines that a script makes itself.
--
-- The runtime runs this once, when it makes a state, before any script: a generator that
-- fetches, say, yields to the task when it waits, and to its own caller when it yields itself.

-- luacheck: ignore 122
local core = ...

local held, waiting, can_yield, unwait = core.held, core.waiting, core.can_yield, core.unwait
local keep_trace, silence = core.keep_trace, core.silence
local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local exit = os.exit

local HELD = "cannot resume a coroutine that is a task, or waits in one"

local handed

-- What resume returned, unless `co` stopped to wait: then the wait is passed on outward, and
-- its results are handed inward. `held` keeps everybody else from resuming it meanwhile.
local function relay(co, ok, ...)
  if not ok or not waiting() then return ok, ... end
  if not can_yield() then return relay(co, resume(co, unwait())) end
  held[co] = true
  return handed(co, yield())
end

function handed(co, ...)
  held[co] = nil
  return relay(co, resume(co, ...))
end

local function unwrap(co, ok, ...)
  if ok then return ... end
  error(keep_trace((...), co), 0)
end

function coroutine.resume(co, ...)
  if held[co] then return false, HELD end
  return relay(co, resume(co, ...))
end

function coroutine.wrap(fn)
  local co = create(fn)
  return function(...)
    if held[co] then error(HELD, 2) end
    return unwrap(co, relay(co, resume(co, ...)))
  end
end

-- With `close` the state ends while tasks wait in it: nothing may wake them any more.
function os.exit(code, close)
  if close then silence() end
  return exit(code, close)
end
