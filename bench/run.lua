-- bench/run.lua: moonjay beside the floor and its peers, in interleaved rounds (`make bench`).
--
--   moonjay bench/run.lua [ONLY=P2,P8] [ROUNDS=5] [SECONDS=0.5] [CORES=1]
--
-- ONLY names tables (bench/targets.lua; P8: Dalli's rows, or one of them, D-set); ROUNDS, how
-- often each is measured; SECONDS, how long each time; CORES=2 gives the client a processor of
-- its own. Starts its own memcached; prints a table for each workload, and writes all rounds
-- to build/bench.json. It ends within ten minutes: fewer rounds are made where that is needed,
-- and said. Run it from the project's folder.

local cjson = require "cjson"
local contenders = require "bench.contenders"
local figures = require "bench.figures"
local machine = require "bench.machine"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local plans = require "bench.plans"
local report = require "bench.report"
local servers = require "bench.servers"
local watch = require "bench.watch"

local BUDGET = 580 -- seconds, for all of it
local OVERHEAD = 0.3 -- of a run beyond what it measures: a guess, until some have been made

local say = report.say

-- ---- settings ----

local settings = { ONLY = "", ROUNDS = "5", SECONDS = "0.5", CORES = "1" }

local function refuse(words, ...)
  io.stderr:write("bench: ", words:format(...), "\n")
  os.exit(2, true)
end

for _, word in ipairs(arg) do
  local name, value = word:match("^(%u+)=(.*)$")
  if not (name and settings[name]) then
    refuse("%s is not one of ONLY=, ROUNDS=, SECONDS=, CORES=", word)
  end
  settings[name] = value
end

local function number(name, least, most)
  local value = tonumber(settings[name])
  if not value or value < least or value > most then
    refuse("%s is %s; it takes %g to %g", name, settings[name], least, most)
  end
  return value
end

local rounds = math.floor(number("ROUNDS", 1, 1000))
local seconds = number("SECONDS", 0.05, 60)
local two_cores = number("CORES", 1, 2) == 2

-- ---- one table ----

local begun = posix.now()

local function left() return BUDGET - (posix.now() - begun) end

local spent = { runs = 0, seconds = 0 }

-- Seconds for a run: what runs have taken so far.
local function time_of_run()
  if spent.runs < 20 then return 1.1 * seconds + OVERHEAD end
  return spent.seconds / spent.runs
end

local function time_of_round(table_plan)
  local runs = 0
  for _, entry in ipairs(table_plan.entries) do
    if not entry.unknown then runs = runs + 1 end
  end
  return runs * time_of_run()
end

-- One run of one entry, which is marked where it has nothing to say, or failed.
local failed = false
local function run_once(entry, place, server, round)
  local before = watch.read(server.pid, place.watched)
  local result, reason = contenders.run(entry.contender, entry.workload, server,
    { seconds = seconds, core = place.client })
  if reason ~= "unknown" then
    spent.runs, spent.seconds = spent.runs + 1, spent.seconds + posix.now() - before.at
  end
  if result then
    result.round = round
    result.disturbed = watch.compare(before, watch.read(server.pid, place.watched), result)
    entry.rounds[#entry.rounds + 1] = result
  elseif reason == "unknown" then
    entry.unknown = true
  else
    entry.failed, failed = reason, true
  end
end

-- Every other round goes backwards, so that nobody always follows the same neighbour.
local function run_round(table_plan, place, server, round)
  local entries, backwards = table_plan.entries, round % 2 == 0
  for i = 1, #entries do
    local entry = entries[backwards and #entries + 1 - i or i]
    if not entry.unknown and left() > 0 then run_once(entry, place, server, round) end
  end
end

local function measure(table_plan, place, most_rounds)
  local up, server = pcall(servers.get, table_plan.server, place.server)
  if not up then refuse("%s", server) end
  local made = 0
  for round = 1, most_rounds do
    if time_of_round(table_plan) > left() then break end
    run_round(table_plan, place, server, round)
    made = round
  end
  figures.add(table_plan.entries)
  return made
end

-- ---- all of them ----

local cores = machine.cores()
local one = { server = cores[1], client = cores[1], watched = { cores[1] } }
local two = cores[2] and { server = cores[1], client = cores[2],
                           watched = { cores[1], cores[2] } }

if two_cores and not two then refuse("CORES=2 needs two processors; there is one") end

local here, missing = contenders.find()
local plan, wrong = plans.make(here, settings.ONLY, two_cores, two ~= nil)
if not plan then refuse("%s", wrong) end

local where = machine.describe()
if not where.memcached then refuse "memcached is not installed ('make deps' installs it)" end
where.contenders = {}
for _, contender in ipairs(here) do where.contenders[contender.name] = contender.version end

-- How many rounds of this table leave time for as many of all that follow.
local function fitting_rounds(first)
  local estimate = 0
  for i = first, #plan do estimate = estimate + time_of_round(plan[i]) end
  return math.max(1, math.min(rounds, math.floor(left() / estimate)))
end

local function print_head()
  say("%s, %d processors, %d MiB; %s, Linux %s", where.cpu, where.processors,
    where.memory_mib, where.system, where.kernel)
  say("%s; %s, one thread; %s", where.date, where.memcached, where.luajit)
  if where.commit then say("commit: %s", where.commit) end
  for _, contender in ipairs(here) do
    if contender.version then say("%s: %s", contender.name, contender.version) end
  end
  for _, name in ipairs(missing) do
    say("%s is left out: %s", name, name == "floor" and "build/bench/limit is not there"
      or "it is not installed ('make bench-deps' installs what moonjay is compared with)")
  end
  say("rounds: %d, of %g s each", rounds, seconds)
end

-- The runner itself keeps to the last processor: it sleeps while something is measured.
local function step_aside()
  local core = cores[#cores]
  process.start { "taskset", "-cp", tostring(core), tostring(posix.getpid()) }:finish(10)
end

local function print_table(table_plan, made)
  if made == 0 then return say("\n%s: left out, ten minutes are over", table_plan.title) end
  if not table_plan.dalli then report.table(table_plan) end
  if made < rounds then
    say("%s: %d of %d rounds, to end within ten minutes", table_plan.title, made, rounds)
  end
end

local function raw(table_plan)
  local rows = {}
  for _, entry in ipairs(table_plan.entries) do
    rows[#rows + 1] = { contender = entry.name, workload = entry.workload,
                        rounds = entry.rounds, failed = entry.failed }
  end
  return { title = table_plan.title, words = table_plan.words, server = table_plan.server,
           cores = table_plan.two and 2 or 1, rows = rows }
end

local function write_json()
  local path = program.path:match("^(.*)/") .. "/bench.json"
  local out = { machine = where, missing = missing, seconds = seconds, tables = {} }
  for i, table_plan in ipairs(plan) do out.tables[i] = raw(table_plan) end
  program.write(path, cjson.encode(out) .. "\n")
  say("\nall rounds: %s", path)
end

step_aside()
print_head()
for i, table_plan in ipairs(plan) do
  local place = table_plan.two and two or one
  print_table(table_plan, measure(table_plan, place, fitting_rounds(i)))
end
report.dalli(plan)
write_json()
servers.stop()
say("took %.0f s", posix.now() - begun)
if failed then os.exit(1, true) end
