-- A name server for net cases, as good or as bad as the case wants it.
--
--   luajit spec/support/name_server.lua ANSWERS RCODE DELAY_MS
--
-- ANSWERS: addresses with commas between, whatever name is asked for ("" for none). RCODE:
-- "ok", "nxdomain", "servfail", "refused", or "silent". It listens on 127.0.0.1:53 over UDP, so
-- it needs root and a network namespace of its own. Prints "READY", ends with its input.

package.path = "./?.lua;" .. package.path

local loop = require "spec.support.loop"
local posix = require "spec.support.posix"

local RCODES = { ok = 0, servfail = 2, nxdomain = 3, refused = 5 }
local A, AAAA = "\0\1", "\0\28"
local HEADER, TTL = 12, "\0\0\0\60"

local answers, rcode, delay = arg[1], arg[2], tonumber(arg[3]) / 1000
local over = false

-- A record of the name that the question holds.
local function record(kind, address)
  local bytes = posix.address_bytes(address)
  return "\192\12" .. kind .. "\0\1" .. TTL .. "\0" .. string.char(#bytes) .. bytes
end

local function answer(query)
  local name_end = query:find("\0", HEADER + 1, true)
  local kind = query:sub(name_end + 1, name_end + 2)
  local question = query:sub(HEADER + 1, name_end + 4)
  local records = {}
  for address in answers:gmatch("[^,]+") do
    local its_kind = address:find(":", 1, true) and AAAA or A
    if its_kind == kind then records[#records + 1] = record(kind, address) end
  end
  return query:sub(1, 2) .. "\129" .. string.char(128 + RCODES[rcode]) .. "\0\1\0"
    .. string.char(#records) .. "\0\0\0\0" .. question .. table.concat(records)
end

local socket = assert(posix.datagrams("127.0.0.1", 53))

loop.start(function()
  while not over do
    local query, from
    if loop.readable(socket, 0.02) then query, from = posix.recv_from(socket) end
    if query and rcode ~= "silent" then
      loop.start(function()
        loop.sleep(delay)
        posix.send_to(socket, answer(query), from)
      end)
    end
  end
end)
loop.start(function()
  while not (loop.readable(0, 1) and (posix.read(0) or "") == "") do end
  over = true
end)
print "READY"
io.stdout:flush()
loop.run()
