-- bench/interpreted.lua: what scripts cost where they are not compiled (hosts that set a time
-- budget, or a memory limit, have the JIT off).
--
--   moonjay bench/interpreted.lua [SECONDS [ROUNDS]]      (0.5 seconds, 7 rounds)
--   moonjay bench/interpreted.lua WORKLOAD HOST PORT SECONDS      as bench/workloads.lua
--
-- The first form measures P2 with the floor, with the JIT and without, in interleaved rounds,
-- client and server on one processor.

local contenders = require "bench.contenders"
local machine = require "bench.machine"
local program = require "spec.support.program"
local servers = require "bench.servers"

local WORKLOAD = "P2"
local MOST = 2.2 -- times the floor's CPU

if #arg == 4 then
  jit.off()
  jit.flush()
  return assert(loadfile "bench/workloads.lua")(...)
end

local seconds, rounds = tonumber(arg[1] or 0.5), tonumber(arg[2] or 7)
if not (seconds and rounds) or seconds <= 0 or rounds < 1 then
  error("usage: moonjay bench/interpreted.lua [SECONDS [ROUNDS]]", 0)
end

local rows = {
  { name = "floor" },
  { name = "moonjay, compiled", command = { program.path, "bench/workloads.lua" } },
  { name = "moonjay, interpreted", command = { program.path, "bench/interpreted.lua" } },
}

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local function measure_all()
  local core = machine.cores()[1]
  local server = servers.get("default", core)
  for _ = 1, rounds do
    local floor
    for _, row in ipairs(rows) do
      local got, reason = contenders.run(row, WORKLOAD, server,
        { seconds = seconds, core = core })
      if not got then error(("%s: %s"):format(row.name, reason), 0) end
      local cpu = (got.user + got.system) / got.operations * 1e6
      floor = floor or cpu
      row.cpu[#row.cpu + 1], row.ratio[#row.ratio + 1] = cpu, cpu / floor
    end
  end
end

for _, contender in ipairs((contenders.find())) do
  if contender.name == "floor" then rows[1].command = contender.command end
end
if not rows[1].command then
  error("the floor is not there: make bench-tools builds it", 0)
end
for _, row in ipairs(rows) do row.cpu, row.ratio = {}, {} end

local fine, err = pcall(measure_all)
servers.stop()
if not fine then error(err, 0) end

print(("%-24s %12s %14s"):format(WORKLOAD, "CPU each, us", "of the floor's"))
local ratio
for _, row in ipairs(rows) do
  ratio = median(row.ratio)
  print(("%-24s %12.3f %14.2f"):format(row.name, median(row.cpu), ratio))
end
print(("at most %.1f, interpreted, is the target%s"):format(MOST,
  ratio <= MOST and "" or ": MISSED"))
