-- moonjay.relay: lets a wait pass through the coroutines that a script makes itself.
--
-- The runtime runs this once, when it makes a state, before any script: a generator that
-- fetches, say, yields to the task when it waits, and to its own caller when it yields itself.

-- luacheck: ignore 122
local core = ...

local held, waiting = core.held, core.waiting
local can_wait, forbid_waits = core.can_wait, core.forbid_waits
local keep_trace, silence, rejoin = core.keep_trace, core.silence, core.rejoin
local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local exit = os.exit

local HELD = "cannot resume a coroutine that is a task, or waits in one"

-- Coroutines that yielded to their callers from inside mj.deadline.
local parked = setmetatable({}, { __mode = "k" })

local handed

-- What resume returned, unless `co` stopped to wait: then the wait is passed on outward, and
-- its results are handed inward. `held` keeps everybody else from resuming it meanwhile.
local function relay(co, ok, ...)
  if not ok then return ok, ... end
  local waits, parks = waiting(co)
  if not waits then
    if parks then parked[co] = true end
    return ok, ...
  end
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

local function allow(before, ...)
  forbid_waits(before)
  return ...
end

-- Resumes a coroutine of the script's: its deadlines bind whoever does, and nobody while it is
-- suspended. Where a wait could not pass on outward, it must not begin: in a finalizer even the
-- yield would be a crash.
local function enter(co, ...)
  if parked[co] and rejoin(co) then parked[co] = nil end
  if can_wait() or type(co) ~= "thread" then return relay(co, resume(co, ...)) end
  return allow(forbid_waits(true), relay(co, resume(co, ...)))
end

function coroutine.resume(co, ...)
  if held[co] then return false, HELD end
  return enter(co, ...)
end

function coroutine.wrap(fn)
  local co = create(fn)
  return function(...)
    if held[co] then error(HELD, 2) end
    return unwrap(co, enter(co, ...))
  end
end

-- What os.exit takes for a status; anything else it throws at, and the tasks go on.
local function is_status(code)
  local kind = type(code)
  return kind == "nil" or kind == "boolean" or kind == "number" or
    kind == "string" and tonumber(code) ~= nil
end

-- With `close` the state ends while tasks wait in it: nothing may wake them any more.
function os.exit(code, close)
  if close and is_status(code) then silence() end
  return exit(code, close)
end
