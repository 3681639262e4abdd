-- moonjay.cli: what the program runs. main.c reads the command line and calls this in a task.
--
--   local status, message = require("moonjay.cli").run(1, "moonjay\0script.lua\0argument\0")

local M = {}

-- Statuses of the program.
local WELL, FAILED, USAGE = 0, 1, 2

-- The words of a block in which a NUL ends each, as a table with the script at 0, like `arg` of
-- the lua program, and the place of the last.
local function split(packed, script)
  local words, index = {}, -script
  for word in packed:gmatch("(%Z*)%z") do
    words[index] = word
    index = index + 1
  end
  return words, index - 1
end

-- A message of one line, whatever the script's own text put into it.
local function one_line(message)
  return (message:gsub("%c+", " "))
end

-- The whole text of a script and its chunk name, or nil and why it cannot be read.
local function read_script(name)
  if name == "-" then
    local text, why = io.stdin:read("*a")
    return text, text and "=stdin" or "standard input: " .. why
  end
  local file, why = io.open(name, "rb")
  if not file then return nil, why end
  local text
  text, why = file:read("*a")
  file:close()
  return text, text and "@" .. name or name .. ": " .. why
end

-- Runs one script: sets the global `arg`, passes the arguments as `...`, and lets its errors
-- through, so that they keep their traceback.
--
-- script: the place of the script's name in the words, counted from 0. packed: all words of the
-- command line, each ended by a NUL. Returns the exit status, and a line for the user if the
-- script could not be started.
function M.run(script, packed)
  local words, last = split(packed, script)
  local text, name = read_script(words[0])
  if not text then return USAGE, one_line("cannot read the script: " .. name) end
  local chunk, message = loadstring(text, name)
  if not chunk then return FAILED, one_line(message) end
  arg = words
  chunk(unpack(words, 1, last))
  return WELL
end

return M
