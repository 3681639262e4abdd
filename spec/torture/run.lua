-- build/moonjay spec/torture/run.lua SECONDS SEED [NAME=VALUE...]
-- make torture SECONDS=60 SEED=1234
--
-- Ends with status 1 when a wrong answer came, a request ended late, an error was none that a
-- caller may expect, something leaked, or a kind of fault never happened. The names are options
-- of torture.lua: tasks=100, pace=0.3, short=yes, calm=yes, lie=older.

-- With hundreds of tasks the compiler never comes to rest, and costs more than it gives.
if not os.getenv "TORTURE_JIT" then require "jit".off() end

local torture = require "spec.torture.torture"

local seconds, seed = tonumber(arg[1]), tonumber(arg[2])
if not seconds or not seed then
  io.stderr:write "usage: run.lua SECONDS SEED [NAME=VALUE...]\n"
  os.exit(2, true)
end

local options = { seconds = seconds, seed = seed, print = true }
for i = 3, #arg do
  local name, value = arg[i]:match "^(%l+)=(.+)$"
  options[name] = tonumber(value) or value
end

print(("torture: seed %d, %g s (again: make torture SECONDS=%g SEED=%d)"):format(
  seed, seconds, seconds, seed))
local report = torture.run(options)
if not report:passed() then os.exit(1, true) end
