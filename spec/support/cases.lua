-- The case files: one JSON object a line.
--
--   for _, case in ipairs(cases.of_kind("wire")) do ... end
--   local case = cases.find("spec/data/cases.jsonl", "W001")

local cjson = require "cjson"

local M = {}

-- The cases that were handed to the project, and those it found itself.
local FILES = { "spec/data/cases.jsonl", "spec/data/more.jsonl" }

-- An integer of more than 15 digits loses digits as a double: it is quoted, so that it comes
-- out as a string. Only what stands outside of strings is looked at.
local function quote_long_integers(text)
  return (text:gsub("([%[:,]%s*)(%-?%d+)(%s*[,}%]])", function(before, digits, after)
    if #digits < 16 then return nil end
    return before .. '"' .. digits .. '"' .. after
  end))
end

local function keep_digits(line)
  local out, at = {}, 1
  while true do
    local open = line:find('"', at, true)
    if not open then break end
    local close = open + 1
    while line:sub(close, close) ~= '"' do
      close = line:find('["\\]', close)
      if line:sub(close, close) == "\\" then close = close + 2 end
    end
    -- The string's own quotes stay outside, so that a number next to it keeps its neighbours.
    out[#out + 1] = quote_long_integers(line:sub(at, open - 1))
    out[#out + 1] = line:sub(open, close)
    at = close + 1
  end
  out[#out + 1] = quote_long_integers(line:sub(at))
  return table.concat(out)
end

function M.decode(line)
  if line:find("%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d") then line = keep_digits(line) end
  return cjson.decode(line)
end

-- Every case of the file, or only the one with that id. nil and a reason if it cannot be read.
local function load(path, id)
  local file, reason = io.open(path, "r")
  if not file then return nil, reason end
  local out = {}
  for line in file:lines() do
    if line:find("%S") and (not id or line:find('"' .. id .. '"', 1, true)) then
      local fine, case = pcall(M.decode, line)
      if not fine then
        file:close()
        return nil, ("%s: %s"):format(path, case)
      end
      if not id or case.id == id then out[#out + 1] = case end
    end
  end
  file:close()
  return out
end

function M.find(path, id)
  local found, reason = load(path, id)
  if not found then return nil, reason end
  return found[1], ("no case %s in %s"):format(id, path)
end

-- The cases of one kind, each with the name of its file: from $MOONJAY_CASES, or the project's.
function M.of_kind(kind)
  local own = os.getenv("MOONJAY_CASES")
  local out = {}
  for _, path in ipairs(own and { own } or FILES) do
    for _, case in ipairs(assert(load(path))) do
      case.file = path
      if case.kind == kind then out[#out + 1] = case end
    end
  end
  return out
end

return M
