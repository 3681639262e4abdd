-- Base64 for the case files: standard alphabet with padding.
--
--   base64.decode("YWJj")  --> "abc"
--   base64.encode("abc")   --> "YWJj"

local bit = require "bit"
local ffi = require "ffi"

local M = {}

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local PAD = ("="):byte()

local letter, digit = {}, {}
for i = 0, 63 do
  letter[i] = ALPHABET:byte(i + 1)
  digit[letter[i]] = i
end

function M.encode(bytes)
  local size = #bytes
  local from = ffi.cast("const uint8_t *", bytes)
  local groups = math.floor((size + 2) / 3)
  local out = ffi.new("uint8_t[?]", groups * 4 + 1)
  for g = 0, groups - 1 do
    local i, o = g * 3, g * 4
    local a = from[i]
    local b = i + 1 < size and from[i + 1] or 0
    local c = i + 2 < size and from[i + 2] or 0
    out[o] = letter[bit.rshift(a, 2)]
    out[o + 1] = letter[bit.bor(bit.lshift(bit.band(a, 3), 4), bit.rshift(b, 4))]
    out[o + 2] = letter[bit.bor(bit.lshift(bit.band(b, 15), 2), bit.rshift(c, 6))]
    out[o + 3] = letter[bit.band(c, 63)]
  end
  for spare = 1, groups * 3 - size do
    out[groups * 4 - spare] = PAD
  end
  return ffi.string(out, groups * 4)
end

function M.decode(text)
  local size = #(text:gsub("=+$", ""))
  local out = ffi.new("uint8_t[?]", size + 1)
  local at, held, bits = 0, 0, 0
  for i = 1, size do
    local value = digit[text:byte(i)]
    if not value then
      error(("base64.decode: byte %d of %q is not base64"):format(i, text:sub(1, 40)), 2)
    end
    held = bit.band(bit.bor(bit.lshift(held, 6), value), 0xffff)
    bits = bits + 6
    if bits >= 8 then
      bits = bits - 8
      out[at] = bit.band(bit.rshift(held, bits), 255)
      at = at + 1
    end
  end
  return ffi.string(out, at)
end

return M
