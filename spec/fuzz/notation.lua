-- The notation of corpus files: any bytes as one printable line.
--
--   notation.line("VA 1\r\nx\r\n")      --> [[VA 1\r\nx\r\n]]
--   notation.bytes([[VA 1\r\nx\r\n]])   --> "VA 1\r\nx\r\n"

local M = {}

local WORDS = { ["\r"] = "\\r", ["\n"] = "\\n", ["\\"] = "\\\\" }
local BYTES = { r = "\r", n = "\n", ["\\"] = "\\" }

local function hex(byte) return ("\\x%02x"):format(byte:byte()) end

function M.line(bytes)
  local line = bytes:gsub("[%c\\\127-\255]", function(byte) return WORDS[byte] or hex(byte) end)
  return (line:gsub("^#", hex):gsub(" $", hex))
end

function M.bytes(line)
  return (line:gsub("\\(.)(%x?%x?)", function(letter, digits)
    if letter == "x" then return string.char(tonumber(digits, 16)) end
    return assert(BYTES[letter], line) .. digits
  end))
end

return M
