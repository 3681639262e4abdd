-- bench/growth.lua: what more of the same costs: tasks, connections, servers.
--
--   moonjay bench/growth.lua [SECONDS [ROUNDS]]      (0.3 seconds, 5 rounds)
--
-- Starts its own servers, on unix sockets and with -R 200, all on the processor of the client.
-- CPU is user and system time of the client alone, by operation: a get of 100 bytes, every
-- answer compared. Memory is counted as bench/memory.lua says. Each figure has a process of its
-- own; times are medians of rounds that go through all of them in turn.

local mj = require "moonjay"
local child = require "bench.child"
local cjson = require "cjson"
local machine = require "bench.machine"
local memcached = require "spec.support.memcached"
local memory = require "bench.memory"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local usage = require "bench.usage"

local DESCRIPTORS = 4096
local AT_ONCE = 100      -- tasks on the connection to each of several servers
local MANY_TASKS, MANY_CONNECTIONS = 10000, 1000
local TASK_BYTES, CONNECTION_BYTES = 1536, 4096 -- at most
local RATIO = 1.3        -- CPU at 10,000 tasks to that at 100, at most
local LONG = "timeout=600s&stall_timeout=600s"

-- ---- the side that is measured: prints a line of JSON ----

local function connect(url, options)
  return mj.check(mj.connect(url .. "?" .. options))
end

local play = {}

-- tasks: on each connection; connections: to each of the servers.
function play.gets(seconds, tasks, connections, ...)
  seconds, tasks, connections = tonumber(seconds), tonumber(tasks), tonumber(connections)
  local going, done, list = true, 0, {}
  local function get_on(conn, key, value)
    while going do
      if conn:get(key) ~= value then error("a wrong answer came", 0) end
      done = done + 1
    end
  end
  local key = "bench:growth"
  local value = key .. ("x"):rep(100 - #key)
  for _, url in ipairs { ... } do
    for _ = 1, connections do
      local conn = connect(url, "timeout=60s")
      mj.check(conn:set(key, value))
      for _ = 1, tasks do list[#list + 1] = mj.spawn(get_on, conn, key, value) end
    end
  end
  mj.sleep(seconds / 4) -- warm up
  local before, done_before = usage.now(), done
  mj.sleep(seconds)
  local used, operations = usage.between(before, usage.now()), done - done_before
  going = false
  mj.check(mj.all(list))
  return { cpu = (used.user + used.system) / operations, operations = operations }
end

-- What waits: each a function that starts one more. They are started once before the count, so
-- that tables have their first size and code is compiled.
local waits = {
  sleep = function() mj.sleep(600) end,
  get = function(conn) conn:get("bench:growth") end,
  deadline = function(conn) mj.deadline(600, conn.get, conn, "bench:growth") end,
}

function play.tasks(kind, count, url)
  local conn = connect(url, "protocol=meta&" .. LONG) -- asks nothing: the server is stopped
  mj.spawn(waits[kind], conn)
  mj.sleep(0.01)
  local before = memory.now()
  for _ = 1, count do mj.spawn(waits[kind], conn) end
  mj.sleep(0.01)
  return memory.grown(before, count)
end

function play.connections(count, url)
  local held = {}
  for i = 1, count do held[i] = false end
  local function open()
    local conn = connect(url, LONG)
    mj.check(conn:set("bench:growth", "1"))
    return conn
  end
  open():close()
  local before = memory.now()
  for i = 1, count do held[i] = open() end
  mj.sleep(0.01)
  local grown = memory.grown(before, count)
  for i = 1, count do held[i]:close() end -- and none was collected before
  return grown
end

if arg[1] == "play" then
  print(cjson.encode(play[arg[2]](unpack(arg, 3))))
  os.exit(0, true) -- what waits, waits for ever
end

-- ---- the side that asks ----

local seconds, rounds = tonumber(arg[1] or 0.3), tonumber(arg[2] or 5)
if not (seconds and rounds) or seconds <= 0 or rounds < 1 then
  error("usage: moonjay bench/growth.lua [SECONDS [ROUNDS]]", 0)
end

local function run(...)
  return child.run { "bench/growth.lua", "play",
                     before = { "prlimit", "--nofile=" .. DESCRIPTORS }, ... }
end

local function say(...) print((...):format(select(2, ...))) io.flush() end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local function urls_of(servers, count)
  local urls = {}
  for i = 1, count do urls[i] = servers[i].url end
  return unpack(urls)
end

-- Each: what there is more of, and what it is compared with.
local function points(servers)
  local list = {}
  local function add(text, base, tasks, connections, count)
    list[#list + 1] = {
      text = text, base = base, taken = {},
      run = function()
        return run("gets", seconds, tasks, connections, urls_of(servers, count))
      end,
    }
  end
  for _, tasks in ipairs { 1, 10, 100, 1000, 10000 } do
    add(tasks .. " tasks on one connection", "100 tasks on one connection", tasks, 1, 1)
  end
  for _, count in ipairs { 1, 10, 100, 1000 } do
    add(count .. " connections, a task each", "10 connections, a task each", 1, count, 1)
  end
  for _, count in ipairs { 1, 2, 4, 8, 16, 32 } do
    add(("%d servers, %d tasks each"):format(count, AT_ONCE),
      ("1 servers, %d tasks each"):format(AT_ONCE), AT_ONCE, 1, count)
  end
  return list
end

local function print_cpu(servers)
  local list, by_text = points(servers), {}
  for _ = 1, rounds do
    for _, point in ipairs(list) do point.taken[#point.taken + 1] = point.run().cpu * 1e6 end
  end
  for _, point in ipairs(list) do
    point.cpu = median(point.taken)
    by_text[point.text] = point
  end
  say("%-32s %9s %9s %9s %9s", "CPU per operation, us", "median", "least", "most", "ratio")
  for _, point in ipairs(list) do
    say("%-32s %9.3f %9.3f %9.3f %9.2f", point.text, point.cpu, point.taken[1],
      point.taken[#point.taken], point.cpu / by_text[point.base].cpu)
  end
  local ratio = by_text["10000 tasks on one connection"].cpu
    / by_text["100 tasks on one connection"].cpu
  say("10,000 tasks cost %.2f of what 100 cost; at most %.1f is the target%s", ratio, RATIO,
    ratio <= RATIO and "" or ": MISSED")
end

local function print_memory(server)
  say("\n%-30s %9s %9s %9s %9s %9s", "bytes each", "blocks", "Lua's", "collected", "resident",
    "at most")
  local function row(text, grown, name, most)
    say("%-30s %9.0f %9.0f %9.0f %9.0f %9s%s", text, grown.blocks, grown.lua, grown.collected,
      grown.resident, most or "", most and grown[name] > most and " MISSED" or "")
  end
  -- To open one makes garbage, which is no part of an idle one.
  row(("%d idle connections"):format(MANY_CONNECTIONS),
    run("connections", MANY_CONNECTIONS, server.url), "collected", CONNECTION_BYTES)
  server:pause()
  row(("%d tasks in a get"):format(MANY_TASKS),
    run("tasks", "get", MANY_TASKS, server.url), "blocks", TASK_BYTES)
  row(("%d tasks in mj.sleep"):format(MANY_TASKS),
    run("tasks", "sleep", MANY_TASKS, server.url), "blocks", TASK_BYTES)
  row(("%d gets in mj.deadline"):format(MANY_TASKS),
    run("tasks", "deadline", MANY_TASKS, server.url))
  server:resume()
end

-- What is started from here on stays on the same processor.
process.start { "taskset", "-cp", tostring(machine.cores()[1]), tostring(posix.getpid()) }
  :finish(10)
local servers = {}
for i = 1, 32 do
  servers[i] = memcached.start {
    unix = true, args = { "-t", "1", "-R", "200", "-c", tostring(DESCRIPTORS) },
  }
end
local fine, err = pcall(function()
  print_cpu(servers)
  print_memory(servers[1])
end)
memcached.stop_all()
if not fine then error(err, 0) end
