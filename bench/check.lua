-- bench/check.lua: a guard. Fails when an operation takes more instructions than it used to.
--
--   make bench-check      measures, and compares with bench/recorded.json
--   make bench-record     measures, and writes bench/recorded.json anew
--
-- Time on a busy machine says little; the instructions that a request takes in user space say
-- what changed. `valgrind --tool=callgrind` counts them in the client alone, in two runs of
-- different length: the difference, by operation, has no start-up in it. memcached runs with
-- -R 200 and answers a hundred requests at once, so that batches are whole. What seems to have
-- grown is measured again, and the least counts.
--
-- Two more things are held: that 100 gets in flight share their system calls (counted by the
-- runtime itself, without valgrind), and that scripts were compiled.

local mj = require "moonjay"
local callgrind = require "bench.callgrind"
local child = require "bench.child"
local cjson = require "cjson"
local rounds = require "bench.rounds"

local RECORDED = arg[2] or "bench/recorded.json"
local OUT = "build/bench/callgrind.out"
local GROWTH = 0.10           -- what is too much
local CALLS = 0.05            -- system calls of P2 per operation: at most
local TRIES = 3               -- until what seems to have grown is believed to
local LEAST_PART = 5          -- parts of fewer instructions an operation are not recorded
local SECONDS = 60            -- for one run under valgrind

-- Operations of the shorter and the longer run.
local LENGTHS = {
  P1 = { 2000, 8000 }, P4a = { 2000, 8000 },
  P2 = { 10000, 40000 }, P3 = { 10000, 40000 }, P4b = { 10000, 40000 },
}
local CALLS_OPERATIONS = 200000

local function fail(...)
  io.stderr:write("bench-check: ", (...):format(select(2, ...)), "\n")
  os.exit(1)
end

local function output_of(command)
  local pipe = io.popen(command .. " 2>&1")
  local line = pipe:read("*l")
  pipe:close()
  return line or "?"
end

-- What the figures depend on, beside the project itself.
local function surroundings()
  return {
    compiler = output_of "gcc --version",
    luajit = jit.version,
    libc = output_of "getconf GNU_LIBC_VERSION",
    memcached = output_of "memcached -V",
    valgrind = output_of "valgrind --version",
  }
end

-- ---- the side that is measured ----

-- Plays one workload: prints system calls per operation, and whether scripts were compiled.
local function play(name, count)
  local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL"))
  local run = rounds.prepare(conn)[name]
  local before = rounds.calls(conn)
  run(count)
  print(cjson.encode { calls = (rounds.calls(conn) - before) / count, jit = jit.status() })
end

local function start(name, count, before)
  local fine, said = pcall(child.run, {
    "bench/check.lua", "play", name, count, before = before, seconds = SECONDS,
  })
  if not fine then fail("%s", said) end
  return said
end

-- ---- instructions ----

local function count(name, operations)
  local said = start(name, operations, {
    "valgrind", "--tool=callgrind", "--callgrind-out-file=" .. OUT, "--",
  })
  local parts, total = callgrind.read(OUT, "moonjay")
  return { parts = parts, total = total, jit = said.jit }
end

-- One workload: instructions per operation, and those of each part.
local function measure(name)
  local short, long = LENGTHS[name][1], LENGTHS[name][2]
  local first, second = count(name, short), count(name, long)
  local function slope(more, less) return (more - less) / (long - short) end
  local parts = {}
  for part, instructions in pairs(second.parts) do
    parts[part] = slope(instructions, first.parts[part] or 0)
  end
  if not second.jit then fail("the JIT was off: these are not the figures of compiled Lua") end
  return { total = slope(second.total, first.total), parts = parts }
end

-- ---- the record ----

local function rounded(number) return ("%.0f"):format(number) end

-- The names of a table, the largest number first where they have numbers.
local function sorted(by_name, by_number)
  local names = {}
  for name in pairs(by_name) do names[#names + 1] = name end
  table.sort(names, by_number and function(a, b)
    return by_name[a] > by_name[b] or by_name[a] == by_name[b] and a < b
  end or nil)
  return names
end

-- By hand, so that the lines keep their order and a change shows what changed.
local function encode(around, results)
  local lines = { "{" }
  local function add(...) lines[#lines + 1] = (...):format(select(2, ...)) end
  for _, name in ipairs(sorted(around)) do add("  %q: %q,", name, around[name]) end
  add("  \"instructions\": {")
  for i, name in ipairs(rounds.names) do
    local result = results[name]
    add("    %q: {", name)
    add("      \"total\": %s,", rounded(result.total))
    add("      \"parts\": {")
    local parts = {}
    for part, number in pairs(result.parts) do
      if number >= LEAST_PART then parts[part] = number end
    end
    local names = sorted(parts, true)
    for j, part in ipairs(names) do
      add("        %q: %s%s", part, rounded(parts[part]), j < #names and "," or "")
    end
    add("      }")
    add(i < #rounds.names and "    }," or "    }")
  end
  add("  }")
  add("}")
  return table.concat(lines, "\n") .. "\n"
end

local function record()
  local results = {}
  for _, name in ipairs(rounds.names) do
    -- The median of three, so that a record is no lucky one.
    local tries = {}
    for i = 1, TRIES do tries[i] = measure(name) end
    table.sort(tries, function(a, b) return a.total < b.total end)
    results[name] = tries[math.ceil(TRIES / 2)]
    print(("%-4s %-24s %6s instructions per operation; of %d runs the least %s, the most %s")
      :format(name, rounds.about[name], rounded(results[name].total), TRIES,
        rounded(tries[1].total), rounded(tries[TRIES].total)))
  end
  local file = assert(io.open(RECORDED, "w"))
  assert(file:write(encode(surroundings(), results)))
  assert(file:close())
  print("written: " .. RECORDED)
end

-- ---- the comparison ----

local function load_record()
  local file, reason = io.open(RECORDED, "r")
  if not file then fail("there is no record (%s); make bench-record writes one", reason) end
  local text = file:read("*a")
  file:close()
  local fine, recorded = pcall(cjson.decode, text)
  if not fine or not recorded.instructions then
    fail("%s cannot be read; make bench-record writes it anew", RECORDED)
  end
  return recorded
end

-- The parts that changed most, as words: "src/wire.c +20, libc -7".
local function changes(before, now)
  local sizes, texts = {}, {}
  for _, parts in ipairs { before, now } do
    for part in pairs(parts) do
      local change = (now[part] or 0) - (before[part] or 0)
      if math.abs(change) >= LEAST_PART then
        sizes[part] = math.abs(change)
        texts[part] = ("%s %+.0f"):format(part, change)
      end
    end
  end
  local words = {}
  for i, part in ipairs(sorted(sizes, true)) do
    if i > 6 then break end
    words[i] = texts[part]
  end
  return #words > 0 and table.concat(words, ", ") or "no part by more than a few"
end

local function compare(name, recorded)
  local limit = recorded.total * (1 + GROWTH)
  local best
  for _ = 1, TRIES do
    local now = measure(name)
    if not best or now.total < best.total then best = now end
    if best.total <= limit then break end
  end
  local growth = best.total / recorded.total - 1
  print(("%-4s %-24s %8s %8s %+8.1f%%"):format(
    name, rounds.about[name], rounded(recorded.total), rounded(best.total), growth * 100))
  if math.abs(growth) > 0.02 then print("     " .. changes(recorded.parts, best.parts)) end
  return growth <= GROWTH
end

local function check_calls()
  local said = start("P2", CALLS_OPERATIONS)
  local fine = said.calls <= CALLS
  print(("P2   system calls per operation %.4f, at most %.2f"):format(said.calls, CALLS))
  return fine
end

local function check()
  local recorded, grown = load_record(), {}
  for name, now in pairs(surroundings()) do
    if recorded[name] ~= now then
      print(("another %s: recorded with %s, this is %s"):format(
        name, tostring(recorded[name]), now))
    end
  end
  print(("%-29s %8s %8s %9s"):format(
    "instructions per operation", "recorded", "now", "change"))
  for _, name in ipairs(rounds.names) do
    local before = recorded.instructions[name]
    if not before then fail("%s has no record; make bench-record writes one", name) end
    if not compare(name, before) then grown[#grown + 1] = name end
  end
  if not check_calls() then fail("requests in flight no longer share their system calls") end
  if #grown > 0 then
    fail("%s grew by more than %.0f%%; if that is its price, make bench-record",
      table.concat(grown, ", "), GROWTH * 100)
  end
end

if arg[1] == "play" then
  play(arg[2], tonumber(arg[3]))
else
  if os.execute("command -v valgrind >/dev/null") ~= 0 then
    fail("valgrind is not there ('make deps-ci' installs it)")
  elseif not os.getenv "MEMCACHE_URL" then
    fail("run it by make bench-check, which starts memcached for it")
  end
  os.execute("mkdir -p build/bench")
  if arg[1] == "record" then record() else check() end
  os.remove(OUT)
end
