-- Values that name themselves: any that is wrong, cut, mixed or old can be told from the right
-- one.
--
--   values.make("key", 7, 1000)   --> "key 00000007 1000;" and noise up to 1000 bytes
--   values.name_of(value)         --> "key", 7, 1000; nothing when it names nobody
--
-- The noise is a window of one long random text, at a place that key and version decide: what
-- is moved by a byte, or comes from another value, differs. It holds what a parser could
-- stumble over. A value too short for its name is the beginning of it.

local ffi = require "ffi"
local Random = require "spec.torture.random"

local M = {}

M.LARGEST = 1048000   -- what the item limit of a memcached (1 MiB) lets in
M.TOO_LARGE = 1200000 -- what it does not

local WINDOW = 2 ^ 20
local LINES = {
  "\r\nEND\r\n", "\r\nVA 5 O1\r\n", "VALUE a 0 3\r\n", "\r\nHD\r\n", "EN\r\n", "\0",
}

local noise

local function make_noise()
  local random = Random.new(1, "noise")
  local size = WINDOW + M.TOO_LARGE
  local words = ffi.new("uint16_t[?]", size / 2 + 1)
  for i = 0, size / 2 do words[i] = random:next() end
  local bytes = ffi.cast("char *", words)
  for at = 0, size - 100, 509 do
    local line = LINES[1 + at % #LINES]
    ffi.copy(bytes + at, line, #line)
  end
  return ffi.string(bytes, size)
end

function M.make(key, version, size)
  noise = noise or make_noise()
  local name = ("%s %08d %d;"):format(key, version, size)
  if size <= #name then return name:sub(1, size) end
  local at = Random.hash(name) % WINDOW
  return name .. noise:sub(at + 1, at + size - #name)
end

function M.name_of(value)
  local key, version, size = value:match("^(%S+) (%d%d%d%d%d%d%d%d) (%d+);")
  if key then return key, tonumber(version), tonumber(size) end
end

-- The smallest value of this key that names itself.
function M.least(key) return #key + 18 end

local SIZES = {
  { 4, { 0, 0 } }, { 4, { 1, 40 } }, { 30, { 100, 100 } }, { 20, { 60, 600 } },
  { 12, { 1500, 1500 } }, { 12, { 2000, 16000 } }, { 6, { 16300, 16500 } },
  { 6, { 16500, 70000 } }, { 3, { 70000, 300000 } }, { 1, { 1000000, M.LARGEST } },
}

-- A size from 0 to about a megabyte, small ones mostly; crowding: such that a few of them fill
-- a small server.
function M.size(random, crowding)
  if crowding and random:chance(0.3) then return random:between(20000, 200000) end
  local range = random:weighted(SIZES)
  return random:between(range[1], range[2])
end

-- The first bytes of a key or a value, fit for print.
function M.printable(text)
  local shown = text:sub(1, 60):gsub("[^%g ]", function(byte)
    return ("\\%03d"):format(byte:byte())
  end)
  return #text > 60 and shown .. "..." or shown
end

-- A value, for a report.
function M.show(value)
  if type(value) ~= "string" then return tostring(value) end
  return ("%d bytes: %s"):format(#value, M.printable(value))
end

return M
