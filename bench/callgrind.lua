-- bench/callgrind.lua: what valgrind's callgrind counted, by part of the program.
--
--   local parts, total = callgrind.read("build/bench/callgrind.out", "moonjay")
--   parts["src/conn_read.c"], parts.libluajit     --> instructions
--
-- A part is a source file of the program (where the code was inlined makes no difference), a
-- library, or `compiled Lua`: machine code that belongs to no file.

local M = {}

-- The lines that name something: which of the three kinds of name, and whether what follows
-- belongs to it (those of a call only define a name).
local NAMES = {
  ob = { "object", true }, cob = { "object", false },
  fl = { "file", true }, fi = { "file", true }, fe = { "file", true },
  cfi = { "file", false }, cfl = { "file", false },
}

-- A library without its version, a source file from the project's folder on.
local function part_of(object, file, program)
  local base = object:match "[^/]*$"
  if base == program then return file:match "src/.*" or file:match "build/.*" or file end
  if base == "" or base == "???" then return "compiled Lua" end
  return (base:gsub("%.so.*", ""):gsub("[-_]%d.*", ""))
end

-- Reads a file that callgrind wrote. program: the base name of the program. Returns the
-- instructions of each part, and their sum; throws where the file cannot be read.
function M.read(path, program)
  local parts, total = {}, 0
  local known = { object = {}, file = {} }
  local now = { object = "???", file = "???" }
  local of_call = false
  for line in assert(io.lines(path)) do
    local cost = line:match "^[%d+*-]%S* (%d+)$"
    local name, id, text = line:match "^(%l+)=%((%d+)%) ?(.*)$"
    if cost then
      if not of_call then
        local part = part_of(now.object, now.file, program)
        parts[part] = (parts[part] or 0) + cost
        total = total + cost
      end
      of_call = false
    elseif line:find "^calls=" then
      of_call = true -- the next line is what the callee cost, which is counted there
    elseif NAMES[name] then
      local kind, holds = unpack(NAMES[name])
      if text ~= "" then known[kind][id] = text end
      if holds then now[kind] = known[kind][id] end
    end
  end
  return parts, total
end

return M
