-- The table of spec/sent_spec.lua: what an error says of its request, by what happened to it.
--
-- A row: kind, phase ("none": it got nowhere), sent, how it was provoked, where the request
-- stood, and what the server has of it at the end: "whole", "part", "nothing", or one of these.
--
--   sent    no     the server cannot have seen it: it never has a byte
--           maybe  it may have acted, or not: both can be shown
--           yes    it has answered, or begun to

local M = {}

local function row(kind, phase, sent, how, place, has)
  M[#M + 1] = {
    kind = kind, phase = phase, sent = sent, how = how, place = place, has = has or "nothing",
  }
end

-- ---- every place of a connection at once (spec/support/standing.lua) ----

local up = "their time is up"
row("timeout", "read", "maybe", up, "written", "whole")
row("timeout", "write", "maybe", up, "half written", "part")
row("timeout", "queue", "no", up, "behind")
row("timeout", "queue", "no", up, "parked")

local stall = "nothing comes any more"
row("timeout", "read", "maybe", stall, "written", "whole")
row("timeout", "write", "maybe", stall, "half written", "part")
row("timeout", "queue", "no", stall, "behind")
row("timeout", "queue", "no", stall, "parked")

-- What is given up in line keeps its place, and would still leave, had the half written one
-- before it not been given up too.
local cancel = "their tasks are cancelled"
row("cancelled", "read", "maybe", cancel, "written", "whole")
row("cancelled", "write", "maybe", cancel, "half written", "part")
row("cancelled", "queue", "maybe", cancel, "behind")
row("cancelled", "queue", "no", cancel, "parked")
row("timeout", "read", "maybe", cancel, "written", "whole") -- the quiet ones
row("timeout", "queue", "no", cancel, "behind")

local late = "a deadline of the script's passes"
row("timeout", "read", "maybe", late, "written", "whole")
row("timeout", "write", "maybe", late, "half written", "part")
row("timeout", "queue", "maybe", late, "behind")
row("timeout", "queue", "no", late, "parked")

local closes = "the server closes"
row("closed", "read", "maybe", closes, "written", "whole")
row("closed", "write", "maybe", closes, "half written", "part")
row("closed", "queue", "no", closes, "behind")
row("closed", "queue", "no", closes, "parked")

local resets = "the server resets"
row("reset", "read", "maybe", resets, "written", "whole")
row("reset", "write", "maybe", resets, "half written", "part")
row("reset", "queue", "no", resets, "behind")
row("reset", "queue", "no", resets, "parked")

-- The oldest, a get, has its reply's line: of that one alone is it known.
for kind, how in pairs { closed = "the server closes in a value",
                         reset = "the server resets in a value" } do
  row(kind, "read", "yes", how, "oldest", "whole")
  row(kind, "read", "maybe", how, "written", "whole")
  row(kind, "write", "maybe", how, "half written", "part")
  row(kind, "queue", "no", how, "behind")
  row(kind, "queue", "no", how, "parked")
end

-- Half a line may be anybody's.
local half = "the server closes in a line"
row("closed", "read", "maybe", half, "written", "whole")
row("closed", "write", "maybe", half, "half written", "part")
row("closed", "queue", "no", half, "behind")
row("closed", "queue", "no", half, "parked")

-- Its answer has begun when it is given up.
local up_in_value = "their time is up in a value"
row("timeout", "read", "yes", up_in_value, "oldest", "whole")
row("timeout", "read", "maybe", up_in_value, "written", "whole")
row("timeout", "write", "maybe", up_in_value, "half written", "part")
row("timeout", "queue", "no", up_in_value, "behind")
row("timeout", "queue", "no", up_in_value, "parked")

local cancel_in_value = "their tasks are cancelled in a value"
row("cancelled", "read", "yes", cancel_in_value, "oldest", "whole")
row("cancelled", "read", "maybe", cancel_in_value, "written", "whole")
row("cancelled", "write", "maybe", cancel_in_value, "half written", "part")
row("cancelled", "queue", "maybe", cancel_in_value, "behind")
row("cancelled", "queue", "no", cancel_in_value, "parked")

local nonsense = "a reply makes no sense"
row("protocol", "read", "maybe", nonsense, "written", "whole")
row("protocol", "write", "maybe", nonsense, "half written", "part")
row("protocol", "queue", "no", nonsense, "behind")
row("protocol", "queue", "no", nonsense, "parked")

local wrong = "a value does not end where it should"
row("protocol", "read", "yes", wrong, "oldest", "whole")
row("protocol", "read", "maybe", wrong, "written", "whole")
row("protocol", "write", "maybe", wrong, "half written", "part")
row("protocol", "queue", "no", wrong, "behind")
row("protocol", "queue", "no", wrong, "parked")

local much = "a reply announces too much"
row("too_large", "read", "yes", much, "oldest", "whole")
row("too_large", "read", "maybe", much, "written", "whole")
row("too_large", "write", "maybe", much, "half written", "part")
row("too_large", "queue", "no", much, "behind")
row("too_large", "queue", "no", much, "parked")

local own = "the script closes"
row("closed", "read", "maybe", own, "written", "whole")
row("closed", "write", "maybe", own, "half written", "part")
row("closed", "queue", "no", own, "behind")
row("closed", "queue", "no", own, "parked")

-- ---- a request of its own (spec/sent_spec.lua) ----

-- Behind a quiet one, which has no deadline, so that the connection lives on: it leaves later.
local either = "nothing or whole"
row("timeout", "queue", "maybe", "its time is up in line", "behind", either)
row("cancelled", "queue", "maybe", "its task is cancelled in line", "behind", either)
row("reset", "queue", "no", "the first write fails", "behind")
row("closed", "read", "maybe", "the server had closed before", "written")

row("client_error", "read", "yes", "the server refuses it", "answered", "whole")
row("server_error", "read", "yes", "the server fails at it", "answered", "whole")
row("auth", "read", "yes", "the server wants a login", "answered", "whole")
-- It cannot be told to which of the quiet ones (flag q, waited for) the error line was.
row("server_error", "read", "maybe", "the server fails at one of two", "doubted", "whole")
row("client_error", "read", "maybe", "the server refuses one of two", "doubted", "whole")

row("bad_key", "none", "no", "no server takes its key", "refused")
row("bad_value", "none", "no", "a number is out of range", "refused")
row("too_large", "none", "no", "its value is above max_value", "refused")
row("unsupported", "none", "no", "the protocol cannot do it", "refused")
row("closed", "none", "no", "the connection was closed before", "refused")
row("server_error", "none", "no", "the server had taken its leave before", "refused")
row("cancelled", "none", "no", "its task was cancelled before", "refused")
row("timeout", "none", "no", "a deadline had passed before", "refused")

row("no_memory", "read", "yes", "there is no memory for its value", "oldest", "whole")
row("no_memory", "read", "maybe", "there is no memory for its value", "written", "whole")

-- ---- connecting: nothing that its user asks has been sent ----

row("bad_url", "none", "no", "the URL is wrong", "connect")
row("unsupported", "connect", "no", "the transport is not built in", "connect")
row("resolve", "resolve", "no", "the name means nothing", "connect")
row("connect_refused", "connect", "no", "nobody listens", "connect")
row("connect_timeout", "resolve", "no", "the look-up takes too long", "connect")
row("connect_timeout", "connect", "no", "nobody takes the connection", "connect")
row("connect_timeout", "handshake", "no", "nobody answers the handshake", "connect")
row("connect_timeout", "connect", "no", "a deadline passes before it is taken", "connect")
row("connect_timeout", "handshake", "no", "a deadline passes in the handshake", "connect")
row("unreachable", "connect", "no", "there is no way there", "connect")
row("unreachable", "connect", "no", "no descriptor is left", "connect")
row("closed", "handshake", "no", "the server closes in the handshake", "connect")
row("reset", "handshake", "no", "the server resets in the handshake", "connect")
row("protocol", "handshake", "no", "the server is another", "connect")
row("auth", "handshake", "no", "the login is refused", "connect")
row("auth", "handshake", "no", "a login is wanted", "connect")
row("client_error", "handshake", "no", "the server knows no version", "connect")
row("server_error", "handshake", "no", "the server is full", "connect")
row("cancelled", "resolve", "no", "it is cancelled at once", "connect")
row("cancelled", "connect", "no", "it is cancelled before it is taken", "connect")
row("cancelled", "handshake", "no", "it is cancelled in the handshake", "connect")

-- ---- from C alone (spec/c/sent_test.c) ----

row("reset", "connect", "no", "it is reset before it is taken", "connect")
row("closed", "none", "no", "the connection is not open yet", "refused")
row("no_memory", "none", "no", "there is no memory for the request", "refused")
row("no_memory", "read", "maybe", "there is no memory to read into", "written", "whole")
row("no_memory", "write", "maybe", "there is no memory to read into", "half written", "part")
row("no_memory", "queue", "no", "there is no memory to read into", "behind")
for phase in ("resolve connect handshake"):gmatch "%S+" do -- spec/fault sweeps over them all
  row("no_memory", phase, "no", "an allocation fails", "connect")
end

-- ---- reading it ----

-- Whether a row is about such a request.
function M.has(how, place)
  for _, this in ipairs(M) do
    if this.how == how and this.place == place then return true end
  end
  return false
end

-- Whether any row has what the error says.
function M.knows(err)
  for _, this in ipairs(M) do
    if this.kind == err.kind and this.phase == (err.phase or "none") and
      this.sent == err.sent then
      return true
    end
  end
  return false
end

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

-- A row that has not been met by any error, or nil.
function M.unmet(how)
  for _, this in ipairs(M) do
    if this.how == how and not this.met then return this end
  end
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

-- Rule 3 of the semantics: what reads, sets or deletes may be repeated, all else only where
-- nothing was sent, and quiet ones never. What a closed connection refused fails there again.
function M.retryable(this, op, repeatable)
  if not PASSING[this.kind] or op == "quiet" then return false end
  local hopeless = this.place == "refused" and this.kind ~= "timeout"
  if hopeless then return false end
  return this.sent == "no" or repeatable == true
end

return M
