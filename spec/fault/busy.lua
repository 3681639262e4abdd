-- Much at once, and every command: see runtime_play.c.

local mj = require "moonjay"
local judge = judge
local try, blame, connect = judge.try, judge.blame, judge.connect
local there_and_back = judge.there_and_back

local MANY = 40

-- Three sets and three gets behind them, which wait for room.
local function in_one_go(conn, key)
  local p = conn:pipeline()
  for i = 1, 3 do p:set(key .. i, key .. i) end
  for i = 1, 3 do p:get(key .. i) end
  local ran, replies = try(conn:server(), p.run, p)
  if not ran then return end
  for i = 1, 3 do
    local stored, got, err = replies[i] == true, replies[i + 3], replies.errors[i + 3]
    if replies.errors[i] then judge.meet(replies.errors[i], conn:server()) end
    if err then judge.meet(err, conn:server()) end
    if got ~= key .. i and not (got == nil and (err or not stored)) then
      blame("a pipeline that waited for room gives another value")
    end
  end
end

-- Two places for all of them.
local function crowd(url, key)
  local conn = connect(url .. "&max_inflight=2")
  if not conn then return end
  local list = {}
  for i = 1, 4 do
    local value = (key .. i):rep(i % 2 == 0 and 3000 or 1) -- large ones are lent
    list[i] = mj.spawn(there_and_back, conn, key .. i, value)
  end
  list[5] = mj.spawn(in_one_go, conn, key .. "p")
  for i = 1, 5 do try(nil, list[i].wait, list[i]) end
  conn:close()
end

local function race(conn, key)
  local good = mj.spawn(function()
    mj.check(conn:set(key, key))
    return "good"
  end)
  local bad = mj.spawn(function()
    return nil, mj.errors.new { kind = "no_memory", message = "so it ends" }
  end)
  local slow = mj.spawn(function()
    mj.sleep(0.005)
    return "slow"
  end)
  local ok, value, index = try(nil, mj.any, { bad, good, slow })
  if ok and not (value == "good" and index == 2 or value == "slow" and index == 3) then
    blame("any gives what no task returned")
  end
end

-- A generator of the script's own that fetches, inside deadlines.
local function generate(conn, key)
  local each = coroutine.wrap(function()
    for i = 1, 3 do
      mj.check(conn:set(key .. i, key .. i))
      coroutine.yield(key .. i, mj.check(conn:get(key .. i)))
    end
  end)
  local ok, sum = try(nil, mj.deadline, 10, mj.deadline, 5, function()
    local count = 0
    for name, value in each do
      if name ~= value then blame("a generator gives another value") end
      count = count + 1
    end
    return count
  end)
  if ok and sum ~= 3 then blame("a generator ends early") end
end

local function many(conn, key)
  local server, values, keys = conn:server(), {}, {}
  for i = 1, MANY do
    keys[i] = key .. i
    values[keys[i]] = keys[i]
  end
  local stored, count, lost = try(server, conn.set_many, conn, values)
  if stored and not lost and count ~= MANY then blame("set_many counts wrongly") end
  local found, got, errors = try(server, conn.get_many, conn, keys)
  for _, name in ipairs(found and keys or {}) do
    local err = errors and errors[name]
    local there = stored and not (lost and lost[name])
    if err then judge.meet(err, server) end
    if got[name] ~= name and not (got[name] == nil and (err or not there)) then
      blame("get_many gives another value")
    end
  end
  for _, err in pairs(lost or {}) do judge.meet(err, server) end
  local gone, removed, kept = try(server, conn.delete_many, conn, keys)
  if gone and stored and not lost and not kept and removed ~= MANY then
    blame("delete_many counts wrongly")
  end
  for _, err in pairs(kept or {}) do judge.meet(err, server) end
end

-- What a command gives must be `wanted`, unless it fails.
local function expect(what, wanted, conn, name, ...)
  local ok, value = try(conn:server(), conn[name], conn, ...)
  if ok and value ~= wanted then blame(what) end
  return ok
end

local function commands(conn, key)
  local server = conn:server()
  if not expect("set", true, conn, "set", key, "5") then return end
  local read, item = try(server, conn.item, conn, key)
  if read and (item == nil or item.value ~= "5") then blame("item") end
  if read and item then
    if expect("cas", true, conn, "cas", key, "6", item.cas) then
      expect("old cas", false, conn, "cas", key, "7", item.cas)
      if expect("incr", 8, conn, "incr", key, 2) then expect("decr", 7, conn, "decr", key) end
    end
  end
  expect("touch", true, conn, "touch", key, 100)
  expect("add", false, conn, "add", key, "x")
  expect("initial", 3, conn, "incr", key .. "n", 1, { initial = 3 })
  if expect("replace", true, conn, "replace", key, "b")
    and expect("append", true, conn, "append", key, "c")
    and expect("prepend", true, conn, "prepend", key, "a") then
    expect("gat", "abc", conn, "gat", key, 100)
    if conn:protocol() == "meta" then
      local ok, reply = try(server, conn.meta, conn, "mg", key, { "v" })
      if ok and (reply.rc ~= "VA" or reply.value ~= "abc") then blame("meta") end
    end
  end
  if expect("delete", true, conn, "delete", key) then expect("get", nil, conn, "get", key) end
  local told, stats = try(server, conn.stats, conn)
  if told and not stats.pid then blame("stats") end
  local said, version = try(server, conn.version, conn)
  if said and not version:find("^%d") then blame("version") end
end

local function loud(url, key)
  local told
  local conn = connect(url, {
    on_error = function()
      mj.sleep(0)
      told = true
    end,
  })
  if not conn then return end
  local all = try(nil, conn.set, conn, key, key)
    and try(nil, conn.add, conn, key, key, { quiet = true }) and try(nil, conn.noop, conn)
  try(nil, mj.sleep, 0)
  try(nil, mj.sleep, 0)
  -- Over the classic protocol a server keeps quiet.
  if all and not told and conn:protocol() == "meta" then
    if conn:counters().quiet_failed ~= 1 then blame("a quiet failure is lost") end
    judge.meet("not enough memory") -- to start a task that is told
  end
  -- Dropped, not closed: it is collected.
end

local function urls()
  local ok, list = try(nil, mj.parse_url, { "memcache://a:1,b", "memcache:///c.d?timeout=2ms" })
  if ok and not (#list == 3 and list[1].port == 1 and list[3].options.timeout == 0.002) then
    blame("a URL is read wrongly")
  end
end

local function play(url, key)
  local conn, classic = connect(url), connect(url .. "&protocol=ascii")
  local list = { mj.spawn(crowd, url, key .. "c"), mj.spawn(loud, url, key .. "l") }
  if conn then
    list[#list + 1] = mj.spawn(race, conn, key .. "r")
    list[#list + 1] = mj.spawn(generate, conn, key .. "g")
    list[#list + 1] = mj.spawn(many, conn, key .. "m")
    list[#list + 1] = mj.spawn(commands, conn, key .. "x")
  end
  if classic then list[#list + 1] = mj.spawn(commands, classic, key .. "y") end
  urls()
  for _, task in ipairs(list) do try(nil, task.wait, task) end
  collectgarbage()
end

function main(_, unix, _, _, key)
  return judge.run(play, unix, key)
end

-- Waits until it is cancelled.
function linger(deaf)
  mj.check(mj.connect(deaf)):get("left")
  mj.sleep(3600)
end
