-- bench/soak.lua: everything at full rate for a long time; memory must stay flat.
--
--   make soak MINUTES=10
--   MEMCACHE_URL=... moonjay bench/soak.lua [MINUTES [SEED]]
--
-- Many tasks on several connections use every command with values of 0 bytes to 1 MiB, look at
-- every answer, and fail on a wrong one and on an error that nobody caused. Meanwhile
-- connections are closed or dropped and made anew, tasks are cancelled in their waits, and
-- deadlines pass. Each second what the process has of the machine's memory (RSS), what malloc
-- has lent and what Lua holds of it is written to build/bench/soak.csv, and printed ten times.
--
-- The first fifth is the time to grow. After it none of three may grow by more than GROWTH:
-- resident, the most that the process has of memory, which climbs a little for long, by what
-- malloc has free whenever more large values than ever are there at once; own, the most that
-- malloc has lent beside what Lua holds, where a leak of the C side would show; and lua, the
-- least that Lua holds (between, garbage comes and goes). In the end, when all is closed and
-- collected, no task, no connection and no descriptor may be left.

local mj = require "moonjay"
local buffer = require "string.buffer"
local lfs = require "lfs"
local memory = require "bench.memory"

local KIB, MIB = 1024, 1024 * 1024
local GROWTH = { resident = 16 * MIB, own = MIB / 2, lua = 4 * MIB }
local LANES = { "protocol=meta", "protocol=ascii", "direct_read=false", "max_inflight=16" }
local PATIENT = "?timeout=30s&connect_timeout=30s&" -- the machine may be busy
local REFUSED = 1 -- the connection on which the server refuses some, and none is quiet
local TASKS, KEYS, MANY = 16, 500, 20 -- tasks and keys of each connection, keys of one call
local CSV = "build/bench/soak.csv"

local minutes, seed = tonumber(arg[1] or 10), tonumber(arg[2] or os.time())
local url = os.getenv "MEMCACHE_URL"
if not (minutes and seed and url) or minutes <= 0 then
  error("usage: MEMCACHE_URL=... moonjay bench/soak.lua [MINUTES [SEED]]", 0)
end
math.randomseed(seed)
local random = math.random

local ended = false -- the time is over, or something is wrong
local fault         -- what is wrong: the first of it
local count = { operations = 0, connections = 0, cancelled = 0, deadlines = 0, failed = {} }

-- ---- values: each begins with its key, and is as long as one of these and the key ----

local SIZES = { [0] = 1, [10] = 8, [100] = 16, [1000] = 8, [10000] = 4, [100000] = 1 }
local bodies, lengths = {}, { [MIB - 100] = true }
for size, weight in pairs(SIZES) do
  lengths[size] = true
  for _ = 1, weight do bodies[#bodies + 1] = ("x"):rep(size) end
end
local large = ("x"):rep(MIB - 100)

local function value_of(key)
  if random(500) == 1 then return key .. large end
  return key .. bodies[random(#bodies)]
end

local function is_value_of(key, value)
  return value:sub(1, #key) == key and lengths[#value - #key] == true
    and (#value == #key or value:byte(-1) == 120)
end

-- ---- operations: each takes a connection, and returns what a command does ----

-- Ends the run.
local function give_up(...)
  fault = fault or (...):format(select(2, ...))
  ended = true
end

local function wrong(key, value)
  give_up("a wrong answer for %s: %s", key, tostring(value):sub(1, 100))
end

-- They differ in their first bytes, where LuaJIT's hash of a string looks.
local function key_of(lane)
  return ("%08x:v%d"):format(random(KEYS) * 2654435761 % 2 ^ 32, lane)
end

local function checked(key, value, err)
  if value ~= nil and not is_value_of(key, value) then wrong(key, value) end
  return value, err
end

local function keys_of(lane)
  local keys = {}
  for i = 1, MANY do keys[i] = key_of(lane) end
  return keys
end

-- Of each task that is never cancelled: a get that was has not let go of its buffer.
local into = {}

local OPERATIONS = {
  get = function(conn, lane)
    local key = key_of(lane)
    return checked(key, conn:get(key))
  end,
  get_into = function(conn, lane, task)
    local key, buf = key_of(lane), into[task] or buffer.new()
    local got, err = conn:get(key, { into = buf })
    if got then checked(key, buf:tostring()) end
    if task then into[task] = #buf < 100 * KIB and buf:reset() or nil end
    return got, err
  end,
  gat = function(conn, lane)
    local key = key_of(lane)
    return checked(key, conn:gat(key, 60))
  end,
  item = function(conn, lane)
    local key = key_of(lane)
    local item, err = conn:item(key)
    if item then checked(key, item.value) end
    return item, err
  end,
  set = function(conn, lane)
    local key = key_of(lane)
    return conn:set(key, value_of(key), { ttl = random(60) })
  end,
  quiet = function(conn, lane)
    if lane == REFUSED then return true end
    local key = key_of(lane)
    return conn:set(key, value_of(key), { quiet = true })
  end,
  add = function(conn, lane)
    local key = key_of(lane)
    return conn:add(key, value_of(key))
  end,
  replace = function(conn, lane)
    local key = key_of(lane)
    return conn:replace(key, value_of(key))
  end,
  cas = function(conn, lane)
    local key = key_of(lane)
    local item, err = conn:item(key)
    if not item then return item, err end
    local stored, why = conn:cas(key, value_of(key), item.cas)
    if stored == false then return false end
    return stored, why
  end,
  append = function(conn, lane)
    local key = ("a%d:%d"):format(lane, random(10))
    if random(50) == 1 then return conn:set(key, "") end
    return conn[random(2) == 1 and "append" or "prepend"](conn, key, ("y"):rep(random(100)))
  end,
  delete = function(conn, lane) return conn:delete(key_of(lane)) end,
  touch = function(conn, lane) return conn:touch(key_of(lane), 60) end,
  count = function(conn, lane)
    local key = ("n%d:%d"):format(lane, random(10))
    return conn[random(2) == 1 and "incr" or "decr"](conn, key, random(9), { initial = 5 })
  end,
  refused = function(conn, lane) -- an error of the server's, which might be a quiet one's
    if lane ~= REFUSED then return true end
    local key = ("t%d"):format(lane)
    local stored, err = conn:set(key, "text")
    if not stored then return stored, err end
    local number, why = conn:incr(key)
    if why and why.kind ~= "client_error" then return number, why end
  end,
  get_many = function(conn, lane)
    local got, errors = conn:get_many(keys_of(lane))
    for key, value in pairs(got or {}) do checked(key, value) end
    return got, got and errors and select(2, next(errors)) or errors
  end,
  set_many = function(conn, lane)
    local values = {}
    for _, key in ipairs(keys_of(lane)) do values[key] = key .. bodies[random(#bodies)] end
    local stored, errors = conn:set_many(values)
    return stored, stored and errors and select(2, next(errors)) or errors
  end,
  delete_many = function(conn, lane)
    local gone, errors = conn:delete_many { key_of(lane), key_of(lane) }
    return gone, gone and errors and select(2, next(errors)) or errors
  end,
  pipeline = function(conn, lane)
    local pipeline, keys = conn:pipeline(), keys_of(lane)
    for i, key in ipairs(keys) do
      if i % 4 == 0 then pipeline:set(key, value_of(key)) else pipeline:get(key) end
    end
    local replies, err = pipeline:run()
    if not replies then return replies, err end
    for i, key in ipairs(keys) do
      if i % 4 ~= 0 then checked(key, replies[i]) end
    end
    return true, select(2, next(replies.errors))
  end,
  meta = function(conn, lane)
    if conn:protocol() ~= "meta" then return true end
    local key = key_of(lane)
    local said, err = conn:meta("mg", key, { "v", "t" })
    if said and said.value then checked(key, said.value) end
    return said, err
  end,
  version = function(conn) return conn:version() end,
  noop = function(conn) return conn:noop() end,
  stats = function(conn) return conn:stats() end,
}

local OFTEN = { get = 20, get_many = 4, set = 8, get_into = 4, stats = 0.1, version = 0.2 }
local draw = {}
for name in pairs(OPERATIONS) do
  for _ = 1, 10 * (OFTEN[name] or 1) do draw[#draw + 1] = name end
end
table.sort(draw) -- so that a seed makes the same choices

-- ---- connections that come and go ----

local lanes, all = {}, setmetatable({}, { __mode = "k" })

local EXPECTED = { closed = true, cancelled = true, timeout = true }

local function note_failure(name, err)
  local kind = type(err) == "table" and err.kind or "thrown"
  -- The server has its limit, and says so.
  local full = kind == "server_error" and tostring(err):find("out of memory", 1, true)
  if not (EXPECTED[kind] or full) then give_up("%s: %s", name, tostring(err)) end
  count.failed[kind] = (count.failed[kind] or 0) + 1
end

local function open(lane)
  local conn = mj.check(mj.connect(url .. PATIENT .. LANES[lane], {
    on_error = function(err) note_failure("a quiet set", err) end,
  }))
  all[conn] = true
  count.connections = count.connections + 1
  return conn
end

-- Some seconds, or until it was closed: by a deadline that passed in the middle of a write.
local function wait_for_end(conn)
  local stop = mj.now() + 1 + 3 * random()
  while mj.now() < stop and conn:is_open() and not ended do mj.sleep(0.01) end
end

-- Closes it, or leaves it to the collector, and opens another.
local function renew(lane)
  while not ended do
    local old = lanes[lane]
    wait_for_end(old)
    lanes[lane] = open(lane)
    if random(2) == 1 then old:close() end
  end
end

local function step(lane, task)
  local name, conn = draw[random(#draw)], lanes[lane]
  if not conn:is_open() then return mj.sleep(0.01) end
  local value, err = OPERATIONS[name](conn, lane, task)
  count.operations = count.operations + 1
  if type(err) == "table" or value == nil and err ~= nil then note_failure(name, err) end
end

local function work(lane, task)
  while not ended do step(lane, task) end
end

-- Tasks that are cancelled in the middle, and deadlines that pass.
local function interrupt(lane)
  while not ended do
    local task = mj.spawn(function()
      for _ = 1, 20 do step(lane) end
    end)
    mj.sleep(0.003 * random())
    task:cancel()
    local _, err = task:wait()
    if err then note_failure("a cancelled task", err) end
    count.cancelled = count.cancelled + 1
    local done, why = mj.deadline(0.002 * random() + 1e-6, function()
      for _ = 1, 20 do step(lane) end
      return true
    end)
    if not done then note_failure("a deadline", why) end
    count.deadlines = count.deadlines + 1
  end
end

-- ---- what it holds ----

local function descriptors()
  local open_now = 0
  for _ in lfs.dir "/proc/self/fd" do open_now = open_now + 1 end
  return open_now
end

local function say(...) print((...):format(select(2, ...))) io.flush() end

-- What one fifth of the time has seen.
local function new_fifth() return { resident = 0, own = 0, lua = math.huge } end

local function add(fifth, resident, own, lua)
  fifth.resident = math.max(fifth.resident, resident)
  fifth.own = math.max(fifth.own, own)
  fifth.lua = math.min(fifth.lua, lua)
end

-- Samples once a second until the time is over. Returns what the five fifths saw.
local function watch(seconds)
  local file = assert(io.open(CSV, "w"))
  file:write "seconds,resident,blocks,lua,operations\n"
  local begin, printed, fifths = mj.now(), 0, {}
  for i = 1, 5 do fifths[i] = new_fifth() end
  say("%8s %10s %12s %10s %12s %12s", "seconds", "RSS, MiB", "blocks, MiB", "Lua, MiB",
    "operations", "connections")
  repeat
    mj.sleep(math.min(1, seconds / 40))
    local at, resident = mj.now() - begin, memory.resident()
    local blocks, lua = memory.blocks(), mj.counters().memory
    file:write(("%.1f,%d,%d,%d,%d\n"):format(at, resident, blocks, lua, count.operations))
    add(fifths[math.min(5, math.floor(at / seconds * 5) + 1)], resident, blocks - lua, lua)
    if at >= printed * seconds / 10 then
      printed = printed + 1
      say("%8.0f %10.1f %12.1f %10.1f %12d %12d", at, resident / MIB, blocks / MIB, lua / MIB,
        count.operations, count.connections)
    end
  until at >= seconds or fault
  file:close()
  return fifths
end

-- Ends all that runs, and collects. Returns what is left that should not be.
local function wind_up(tasks)
  ended = true
  mj.check(mj.all(tasks))
  for lane = 1, #lanes do
    lanes[lane]:close()
    lanes[lane] = nil
  end
  for _ = 1, 5 do
    collectgarbage()
    mj.sleep(0.05)
  end
  local left = 0
  for _ in pairs(all) do left = left + 1 end
  return left
end

local before = descriptors()
local tasks = {}
for lane = 1, #LANES do
  lanes[lane] = open(lane)
  tasks[#tasks + 1] = mj.spawn(renew, lane)
  tasks[#tasks + 1] = mj.spawn(interrupt, lane)
  for task = 1, TASKS do
    tasks[#tasks + 1] = mj.spawn(work, lane, lane * TASKS + task)
  end
end
say("%d tasks on %d connections for %g minutes, seed %d", #tasks, #LANES, minutes, seed)

local fifths = watch(minutes * 60)
local left = wind_up(tasks)
if fault then error("soak: " .. fault, 0) end

local kinds = {}
for kind, number in pairs(count.failed) do kinds[#kinds + 1] = number .. " " .. kind end
say("%d operations, %d connections, %d cancelled tasks, %d deadlines; errors: %s",
  count.operations, count.connections, count.cancelled, count.deadlines,
  table.concat(kinds, ", "))
say("%-28s %8s %8s %8s %8s %8s", "MiB, by fifths of the time", 1, 2, 3, 4, 5)
for _, row in ipairs {
  { "resident", "resident, at most" }, { "own", "lent beside Lua, at most" },
  { "lua", "Lua, at least" },
} do
  local figures = {}
  for i, fifth in ipairs(fifths) do figures[i] = ("%8.2f"):format(fifth[row[1]] / MIB) end
  say("%-28s %s", row[2], table.concat(figures, " "))
end

local faults = {}
local function expect(fine, ...)
  if not fine then faults[#faults + 1] = (...):format(select(2, ...)) end
end
for name, allowed in pairs(GROWTH) do
  -- What Lua holds at least is known once it has collected: from the second fifth on.
  local early = fifths[name == "lua" and 2 or 1][name]
  for i = 2, 5 do
    local grown = fifths[i][name] - early
    expect(grown <= allowed, "%s grew by %.2f MiB until fifth %d; at most %g is allowed",
      name, grown / MIB, i, allowed / MIB)
  end
end
expect(left == 0, "%d connections are left", left)
expect(mj.counters().tasks_live == 1, "%d tasks are left", mj.counters().tasks_live - 1)
expect(descriptors() == before, "%d descriptors are left", descriptors() - before)
if #faults > 0 then error("soak: " .. table.concat(faults, "; "), 0) end
