-- What goes wrong during a torture run: each fault is a task that goes on as long as the run.
--
--   faults.start(run, world, random_for)      -- random_for(name): a stream of its own
--   faults.calm(world)                        -- all is well again
--
-- A server is stopped and continued, or killed and started, by one task at a time. A route of
-- the proxy goes through all of its faults in a random order, again and again.

local mj = require "moonjay"

local M = {}

-- Calls fn unless somebody is at this server already.
local function alone(server, fn)
  if server.busy then return false end
  server.busy = true
  fn()
  server.busy = false
  return true
end

local function stop_and_continue(run, world, random)
  local server = random:pick(world.servers)
  alone(server, function()
    server.process:pause()
    run.report:event "servers stopped (SIGSTOP)"
    mj.sleep(random:span(0.02, 0.5) * run.pace)
    server.process:resume()
  end)
end

local function kill_and_start(run, world, random)
  local server = world.servers[random:chance(0.3) and 2 or 3]
  alone(server, function()
    world.note_evictions(server)
    server.process:kill()
    run.report:event "servers killed (SIGKILL)"
    mj.sleep(random:span(0, 0.3) * run.pace)
    server.process:restart()
    server.pids[server.process.pid] = true
  end)
end

-- Closes a connection that others use, or lets go of it.
local function close_a_lane(run, world, random)
  local lane = random:pick(world.lanes)
  if random:chance(0.7) then
    run.report:event "shared connections closed"
    lane:close()
  else
    run.report:event "shared connections dropped"
    lane:drop()
    if random:chance(0.2) then collectgarbage() end
  end
end

-- ---- routes ----

local PASS = {
  accept = "forward", delay_up = 0, delay_down = 0, piece_up = 0, piece_down = 0, gap = 0,
  cut_up = -1, cut_down = -1, ending = "close",
}

-- Settings for a while: a function of a random stream, of how many seconds at most, and what.
local SPELLS = {
  function(random)
    return 0.5, { delay_up = random:span(0, 0.02), delay_down = random:span(0, 0.02) }
  end,
  function() return 0.4, { delay_down = 0.08 } end,
  function(random) return 0.4, { piece_down = 1, gap = random:span(0, 0.00005) } end,
  function(random) return 0.4, { piece_up = 1, gap = random:span(0, 0.00005) } end,
  function(random)
    return 0.5, { piece_up = random:between(2, 3000), piece_down = random:between(2, 3000) }
  end,
  function(random)
    local ending = random:pick { "close", "reset" }
    return 0.3, { cut_down = random:between(0, 5000), ending = ending }
  end,
  function() return 0.4, { accept = "mute" } end,
  function() return 0.2, { accept = "reset" } end,
  function() return 0.2, { accept = "refuse" } end,
}

-- Deeds on the links that are open: to how many, and how long.
local DEEDS = {
  { "reset", "one" }, { "reset", "all" }, { "close", "one" }, { "half_up", "one" },
  { "half_down", "one" }, { "stall", "all", 0.25 }, { "stall", "one", 0.5 },
  { "cut_value_down", "one" }, { "cut_value_down", "all" }, { "cut_value_up", "one" },
}

local FAULTS = {}
for _, spell in ipairs(SPELLS) do FAULTS[#FAULTS + 1] = spell end
for _, deed in ipairs(DEEDS) do FAULTS[#FAULTS + 1] = deed end

local function afflict(run, route, random, fault)
  if type(fault) == "function" then
    local seconds, settings = fault(random)
    route:set(settings)
    mj.sleep(random:span(seconds / 4, seconds) * run.pace)
    route:set(PASS)
  else
    if fault[1]:match("^cut") then route:set { ending = random:pick { "close", "reset" } } end
    route:act(fault[1], fault[2], fault[3] and random:span(fault[3] / 4, fault[3]) * run.pace)
    mj.sleep(random:span(0.01, 0.2) * run.pace)
  end
end

local function torment_route(run, route, random)
  local list = {}
  while run.running() do
    if #list == 0 then list = random:shuffle { unpack(FAULTS) } end
    afflict(run, route, random, table.remove(list))
    mj.sleep(random:span(0.02, 0.4) * run.pace)
  end
end

-- ---- all of them ----

local function again_and_again(run, world, random, least, most, fault)
  return mj.spawn(function()
    while run.running() do
      mj.sleep(random:span(least, most) * run.pace)
      if run.running() then fault(run, world, random) end
    end
  end)
end

-- Returns the tasks.
function M.start(run, world, random_for)
  local tasks = {
    again_and_again(run, world, random_for "stop", 0.1, 0.8, stop_and_continue),
    again_and_again(run, world, random_for "kill", 0.5, 2.5, kill_and_start),
    again_and_again(run, world, random_for "close", 0.02, 0.2, close_a_lane),
  }
  for i, route in ipairs(world.routes) do
    tasks[#tasks + 1] = mj.spawn(torment_route, run, route, random_for("route " .. i))
  end
  return tasks
end

function M.calm(world)
  for _, route in ipairs(world.routes) do route:set(PASS) end
  for _, server in ipairs(world.servers) do server.process:resume() end
end

return M
