-- One torture run: real servers, faults of every kind, hundreds of tasks that know what may
-- come, and the count of what came.
--
--   local report = torture.run { seed = 1234, seconds = 60 }
--   report:passed()
--
-- Options: seed and seconds; tasks, about how many (300); pace, what the pauses of the faults
-- are multiplied by (1); short, where every kind of fault is not demanded of so short a time;
-- calm, for no faults at all; lie, a lie of the proxy's (spec/support/proxy.lua): the judges
-- must see it; till = "wrong", to end with the first wrong answer; print, whether to print the
-- counts.

local faults = require "spec.torture.faults"
local mj = require "moonjay"
local owner = require "spec.torture.owner"
local Pulse = require "spec.torture.pulse"
local Race = require "spec.torture.race"
local Random = require "spec.torture.random"
local reader = require "spec.torture.reader"
local Register = require "spec.torture.register"
local Report = require "spec.torture.report"
local values = require "spec.torture.values"
local World = require "spec.torture.world"
local writers = require "spec.torture.writers"

local M = {}

local REGISTERS = 4  -- of one owner
local RACES = 3      -- of one server
local THINKING = 0.03 -- seconds between two steps of a task, at most
local ENDING = 30    -- seconds that all tasks have to end in
local LANES = 4      -- of one server, one way
-- KiB that Lua may hold in the end, more than in the beginning: of that a runtime keeps 17 MiB
-- of blocks for values to come.
local KEPT = 24576
local PEAK = 524288  -- KiB that the process may ever hold
local SHORT = 20     -- a run of fewer seconds need not have had every kind of fault

-- ---- keys ----

local made = 0

-- A new key: it names its server. Some are as long as a key may be, with any bytes that may be.
local function new_key(run, random, server, what)
  made = made + 1
  local key = ("%s.%s.%d"):format(server.name, what, made)
  if random:chance(0.1) then
    key = key .. ("~\255\128"):rep(100):sub(1, 250 - #key)
  end
  run.report:event "keys used"
  return key
end

-- Nobody needs it any more; whether this succeeds is all the same.
local function forget_key(lane, key)
  if lane.link then lane.link.conn:delete(key) end
end

local function new_register(run, random, server)
  local register = Register.new(new_key(run, random, server, "r"), server, run.report)
  server.registers[#server.registers + 1] = register
  register.place = #server.registers
  return register
end

local function renew(run, random, server, old)
  old.open[0] = true -- for those who read it still
  forget_key(random:pick(server.lanes), old.key)
  local register = Register.new(new_key(run, random, server, "r"), server, run.report)
  register.place = old.place
  server.registers[old.place] = register
  return register
end

-- ---- tasks ----

local function think(random)
  mj.sleep(random:span(0, THINKING))
end

local function own(run, random, server, lane_of)
  local registers = {}
  for i = 1, REGISTERS do registers[i] = new_register(run, random, server) end
  while run.running() do
    for i, register in ipairs(registers) do
      if register:is_spent() then registers[i] = renew(run, random, server, register) end
    end
    owner.step(run, random, lane_of(), registers)
    think(random)
  end
end

local function owns(run, _, random, server)
  return function()
    own(run, random, server, function() return random:pick(server.lanes) end)
  end
end

-- Like an owner, but on connections of its own, which it closes or just lets go.
local function roam(run, world, random, server)
  return function()
    local lane, left = nil, 0
    own(run, random, server, function()
      left = left - 1
      if left > 0 then return lane end
      if lane and random:chance(0.5) then lane:close() end
      if lane and lane.link then
        run.report:event "private connections dropped"
        lane:drop()
      end
      lane, left = world:lane(server, World.target(random, server)), random:between(1, 20)
      return lane
    end)
    if lane then lane:close() end
  end
end

local function write(kind)
  return function(run, _, random, server)
    return function()
      local writer
      while run.running() do
        if not writer or writer:is_spent() then
          if writer then forget_key(random:pick(server.lanes), writer.oracle.key) end
          writer = writers[kind](run, random, server, new_key(run, random, server, kind))
        end
        writer:step(random:pick(server.lanes))
        think(random)
      end
    end
  end
end

local function read(run, _, random, server)
  return function()
    while run.running() do
      reader.step(run, random, random:pick(server.lanes))
      think(random)
    end
  end
end

local function race(run, _, random, server)
  if server.killed then return nil end
  server.races = server.races or {}
  if #server.races < RACES then
    local key = new_key(run, random, server, "race")
    server.races[#server.races + 1] = Race.new(key, server, run.report)
  end
  return function()
    while run.running() do
      random:pick(server.races):step(run, random, random:pick(server.lanes))
      think(random)
    end
  end
end

-- How many of a hundred tasks do what.
local SHARES = {
  { 44, "owner", owns }, { 6, "roamer", roam }, { 10, "scribe", write "scribe" },
  { 14, "teller", write "teller" }, { 14, "reader", read }, { 12, "racer", race },
}

local function start_tasks(run, world, random_for, count)
  local tasks = {}
  for _, share in ipairs(SHARES) do
    for i = 1, math.max(4, math.floor(count * share[1] / 100)) do
      local server = world.servers[1 + i % #world.servers]
      local fn = share[3](run, world, random_for(share[2] .. i), server)
      if fn then tasks[#tasks + 1] = mj.spawn(fn) end
    end
  end
  run.report:event("tasks", #tasks)
  return tasks
end

-- ---- the end ----

local function join(run, tasks)
  local fine, results, err = pcall(mj.deadline, ENDING, mj.all, tasks)
  if not fine or results == nil then
    run.report:odd("the tasks did not end well: " .. tostring(fine and err or results))
  end
end

-- What each register holds is looked at once more, over a connection that nothing disturbs.
local function audit(run, world)
  for _, server in ipairs(world.servers) do
    local lane = world:calm_lane(server)
    for _, register in ipairs(server.registers) do owner.audit(run, lane, register) end
    lane:close()
  end
end

-- A line of /proc/self/status, in KiB.
local function status_of(name)
  local file = assert(io.open "/proc/self/status")
  local kilobytes = file:read("*a"):match(name .. ":%s+(%d+)")
  file:close()
  return tonumber(kilobytes)
end

local function descriptors()
  local pipe = assert(io.popen "ls /proc/$PPID/fd | wc -l")
  local count = pipe:read("*n")
  pipe:close()
  return count
end

-- All that a run must have had to prove anything.
local function demand(run, world, proxied)
  local report, events = run.report, run.report.events
  for _, server in ipairs(world.servers) do
    World.note_evictions(server)
    report:event("evictions of " .. server.name, server.evictions)
  end
  if world.servers[1].evictions > 0 then
    report:odd "keeper evicted something: its misses prove nothing"
  end
  for name, count in pairs(proxied) do report:event("proxy: " .. name, count) end
  if run.calm then return end
  report:demand {
    { "timeout", report:errors_of "timeout" },
    { "connection closed", report:errors_of "closed" },
    { "task cancelled", report:errors_of "cancelled" },
    { "error of sent = no", report:errors_sent "no" },
    { "error of sent = maybe", report:errors_sent "maybe" },
    { "server stopped", events["servers stopped (SIGSTOP)"] or 0 },
  }
  if run.short then return end
  report:demand {
    { "stall", proxied.stalls },
    { "reset", report:errors_of "reset" },
    { "connection refused", report:errors_of "connect_refused" },
    { "connect timeout", report:errors_of "connect_timeout" },
    { "error of sent = yes", report:errors_sent "yes" },
    { "late reply", events["late replies dropped"] or 0 },
    { "wait for room", events["waits for room"] or 0 },
    { "quiet request", events["quiet requests"] or 0 },
    { "server killed", events["servers killed (SIGKILL)"] or 0 },
    { "value cut on its way down", proxied.cut_values_down },
    { "value cut on its way up", proxied.cut_values_up },
    { "half close", proxied.halves }, { "delay", proxied.delayed },
    { "small piece", proxied.pieces }, { "mute connection", proxied.muted },
    { "eviction", world.servers[2].evictions },
  }
end

-- Descriptors, tasks and KiB of Lua.
local function holdings()
  collectgarbage()
  collectgarbage()
  mj.sleep(0)
  local counters = mj.counters()
  return {
    descriptors = descriptors(), tasks = counters.tasks_live,
    memory = math.floor(counters.memory / 1024),
  }
end

local function check_leaks(report, before)
  local after = holdings()
  for _, name in ipairs { "descriptors", "tasks" } do
    if after[name] ~= before[name] then
      report:odd(("%d %s at the end, %d at the beginning"):format(after[name], name,
        before[name]))
    end
  end
  local alive = 0
  for _ in pairs(report.connections) do alive = alive + 1 end
  if alive > 0 then report:odd(("%d connections were never collected"):format(alive)) end
  local kept, peak = after.memory - before.memory, status_of "VmHWM"
  report:event("memory that Lua still holds, KiB", kept)
  report:event("memory of the process at its peak, KiB", peak)
  if kept > KEPT then report:odd(("Lua still holds %d KiB"):format(kept)) end
  -- A sanitizer maps terabytes, and keeps what is freed.
  if peak > PEAK and status_of "VmPeak" < 2 ^ 30 then
    report:odd(("the process held %d KiB"):format(peak))
  end
end

local function torment(run, world, random_for, options)
  local beating = mj.spawn(run.pulse.run, run.pulse, run.running)
  if options.lie then
    for _, route in ipairs(world.routes) do route:set { lie = options.lie, lies = 1000000 } end
  end
  local wrong = run.calm and {} or faults.start(run, world, random_for)
  local tasks = start_tasks(run, world, random_for, options.tasks or 300)
  local stop = mj.now() + options.seconds
  repeat mj.sleep(math.min(0.1, math.max(0, stop - mj.now())))
  until mj.now() >= stop or options.till == "wrong" and run.report.counts.wrong > 0
  run.over = true
  join(run, wrong)
  faults.calm(world)
  join(run, tasks)
  beating:wait()
end

local function run_in_a_world(report, options)
  local run = {
    report = report, pulse = Pulse.new(report), pace = options.pace or 1, calm = options.calm,
    short = options.short or options.seconds < SHORT,
  }
  function run.running() return not run.over end
  local function random_for(name) return Random.new(options.seed, name) end
  local world = World.new(run, random_for "world", options.lanes or LANES)
  torment(run, world, random_for, options)
  audit(run, world)
  demand(run, world, world.fault:counters())
  world:stop()
  return run.pulse
end

-- Runs, and returns the report.
function M.run(options)
  local report = Report.new { seed = options.seed, lying = options.lie ~= nil }
  values.make("", 0, 100) -- makes the noise, which stays
  local before = holdings()
  local pulse = run_in_a_world(report, options)
  check_leaks(report, before)
  if options.print then report:print(pulse) end
  return report
end

return M
