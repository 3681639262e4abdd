-- moonjay.errors: failures as values.
--
--   local value, err = conn:get("key")
--   if errors.is(err, "timeout") and err.retryable then ... end
--   print(err)  --> timeout: get "key" on memcache://127.0.0.1:11211: no reply (sent: maybe)
--
-- An error is a table: kind, message (what happened, to whom), op, key (its real bytes),
-- server, phase (resolve connect handshake queue write read), sent (no maybe yes: may the
-- server have acted?), retryable, attempts, cause (the error, or list of errors, behind this
-- one). Fields that do not apply are nil. tostring and .. give one readable line.
--
-- `retryable` says that the same call may be made again, safely and with some hope: the kind is
-- resolve, connect_refused, connect_timeout, unreachable, timeout, closed, reset or
-- server_error, and either nothing was sent, or the command may be repeated (reads, gat, touch,
-- set, delete). It is never true for a quiet request, for a call on a connection that was
-- closed before it (which has no phase: connect anew), for protocol (something is wrong that a
-- retry would hide), for down (the breaker has just decided not to try) and for what the caller
-- must change.

local core = require "moonjay.core"

local M = {}

-- The list of all kinds.
M.kinds = core.kinds

local FIELDS = {
  kind = true, message = true, op = true, key = true, server = true, phase = true, sent = true,
  retryable = true, attempts = true, cause = true,
}

-- Whether a value is an error of moonjay, of this kind if one is given. Takes anything.
function M.is(err, kind)
  if type(err) ~= "table" or getmetatable(err) ~= core.error_meta then return false end
  return kind == nil or err.kind == kind
end

-- Makes an error of these fields. `message` is wanted; sent defaults to "no", attempts to 1 and
-- retryable to what kind, sent and op say. Throws where a field is unknown or message is
-- missing.
function M.new(fields)
  if type(fields) ~= "table" then core.misuse("errors.new", "a table of fields is wanted") end
  if type(fields.message) ~= "string" then
    core.misuse("errors.new", "message: a string is wanted")
  end
  local err = { sent = "no", attempts = 1 }
  for name, value in pairs(fields) do
    if not FIELDS[name] then
      core.misuse("errors.new", ("an error has no field %q"):format(tostring(name)))
    end
    err[name] = value
  end
  if err.retryable == nil then err.retryable = core.is_retryable(err.kind, err.sent, err.op) end
  return setmetatable(err, core.error_meta)
end

return M
