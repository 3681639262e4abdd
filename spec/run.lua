-- spec/run.lua: runs the specs inside the runtime, so that every spec is a task and may wait.
--
--   build/moonjay spec/run.lua                      all of them
--   build/moonjay spec/run.lua spec/url_spec.lua    one file, or any arguments of busted

local counts = require "spec.support.counts"

-- busted reads its command line from `arg`.
local words = { [0] = arg[0], "--output", "spec.support.counts" }
for _, word in ipairs(arg) do words[#words + 1] = word end
arg = words

-- With failures the runner ends by an error of nil. It must be called from a Lua function of a
-- file, or it would leave through os.exit.
local ok, err = pcall(function()
  require "busted.runner" { standalone = false }
  return true
end)

if not ok and err ~= nil then
  io.stderr:write("spec/run.lua: ", tostring(err), "\n")
end
if counts.passed + counts.failed == 0 then io.stderr:write("no spec ran\n") end
if not ok or counts.failed > 0 or counts.passed == 0 then os.exit(1, true) end
