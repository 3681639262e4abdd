-- The table of spec/sent_spec.lua: what an error says of its request, by what happened to it.
--
-- A row: kind, phase, sent, how it was provoked, where the request stood, and what the server
-- has of it at the end: "whole", "part", "nothing", or several of these.
--
--   sent    no     the server cannot have seen it: it never has a byte
--           maybe  it may have acted, or not: both can be shown
--           yes    it answered

local M = {}

local function row(kind, phase, sent, how, place, has)
  M[#M + 1] = { kind = kind, phase = phase, sent = sent, how = how, place = place, has = has }
end

-- ---- every place of a connection at once (spec/support/standing.lua) ----

local up = "their time is up"
row("timeout", "read", "maybe", up, "written", "whole")
row("timeout", "write", "maybe", up, "half written", "part")
row("timeout", "queue", "no", up, "behind", "nothing")
row("timeout", "queue", "no", up, "parked", "nothing")

local stall = "nothing comes any more"
row("timeout", "read", "maybe", stall, "written", "whole")
row("timeout", "write", "maybe", stall, "half written", "part")
row("timeout", "queue", "no", stall, "behind", "nothing")
row("timeout", "queue", "no", stall, "parked", "nothing")

-- What is given up in line keeps its place, and would still leave, had the half written one
-- before it not been given up too.
local cancel = "their tasks are cancelled"
row("cancelled", "read", "maybe", cancel, "written", "whole")
row("cancelled", "write", "maybe", cancel, "half written", "part")
row("cancelled", "queue", "maybe", cancel, "behind", "nothing")
row("cancelled", "queue", "no", cancel, "parked", "nothing")
row("timeout", "read", "maybe", cancel, "written", "whole") -- the quiet ones
row("timeout", "queue", "no", cancel, "behind", "nothing")

local closes = "the server closes"
row("closed", "read", "maybe", closes, "written", "whole")
row("closed", "write", "maybe", closes, "half written", "part")
row("closed", "queue", "no", closes, "behind", "nothing")
row("closed", "queue", "no", closes, "parked", "nothing")

local resets = "the server resets"
row("reset", "read", "maybe", resets, "written", "whole")
row("reset", "write", "maybe", resets, "half written", "part")
row("reset", "queue", "no", resets, "behind", "nothing")
row("reset", "queue", "no", resets, "parked", "nothing")

local nonsense = "a reply makes no sense"
row("protocol", "read", "maybe", nonsense, "written", "whole")
row("protocol", "write", "maybe", nonsense, "half written", "part")
row("protocol", "queue", "no", nonsense, "behind", "nothing")
row("protocol", "queue", "no", nonsense, "parked", "nothing")

local much = "a reply announces too much"
row("too_large", "read", "maybe", much, "written", "whole")
row("too_large", "write", "maybe", much, "half written", "part")
row("too_large", "queue", "no", much, "behind", "nothing")
row("too_large", "queue", "no", much, "parked", "nothing")

local own = "the script closes"
row("closed", "read", "maybe", own, "written", "whole")
row("closed", "write", "maybe", own, "half written", "part")
row("closed", "queue", "no", own, "behind", "nothing")
row("closed", "queue", "no", own, "parked", "nothing")

-- ---- reading it ----

-- The row that an error fits; nil and what is wrong with it.
function M.find(how, place, err)
  local near
  for _, this in ipairs(M) do
    if this.how == how and this.place == place then
      near = this
      if this.kind == err.kind and this.phase == (err.phase or "none") and
        this.sent == err.sent then
        this.met = true
        return this
      end
    end
  end
  if not near then return nil, "no row is about " .. tostring(err) end
  return nil, ("expected %s, phase %s, sent %s; it is %s"):format(near.kind, near.phase,
    near.sent, tostring(err))
end

-- Whether what the server has of the request (nil: nothing) is what the row says.
function M.fits(this, has)
  return this.has:find(has or "nothing", 1, true) ~= nil
end

-- After these a second try may fare better.
local PASSING = {
  resolve = true, connect_refused = true, connect_timeout = true, unreachable = true,
  timeout = true, closed = true, reset = true, server_error = true,
}

local REPEATABLE = { get = true, set = true, delete = true, get_many = true, set_many = true }

-- Rule 3 of the design: reads, set and delete may be repeated, all else only where nothing was
-- sent, and quiet ones never.
function M.retryable(this, op)
  if not PASSING[this.kind] or op == "quiet" then return false end
  return this.sent == "no" or REPEATABLE[op] == true
end

return M
