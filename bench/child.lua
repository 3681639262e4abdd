-- bench/child.lua: a part of a bench in a moonjay of its own.
--
--   local said = child.run { "bench/growth.lua", "play", "100", before = { "valgrind" } }
--
-- The script prints one line of JSON, which is what is returned. Each part has its own process,
-- so that none inherits what another left: compiled traces, garbage, memory of malloc's.

local cjson = require "cjson"
local process = require "spec.support.process"
local program = require "spec.support.program"

local M = {}

local SECONDS = 120 -- for one part

-- words: the script and its arguments; before: words that go before the program; env; seconds:
-- how long it may take. Throws where it fails, with its own words.
function M.run(words)
  local command = { errors = true, env = words.env }
  for _, word in ipairs(words.before or {}) do command[#command + 1] = word end
  command[#command + 1] = program.path
  for _, word in ipairs(words) do command[#command + 1] = tostring(word) end
  local out, status, errors = process.start(command):finish(words.seconds or SECONDS)
  if status ~= 0 then
    error(("%s ended with status %d: %s"):format(table.concat(words, " "), status, errors), 0)
  end
  return cjson.decode(out)
end

return M
