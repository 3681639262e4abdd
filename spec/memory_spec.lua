-- Memory that connections take: what it counts, and the collector, which runs (and finalizers
-- with it) whenever memory is taken, also while answers are handed over.

local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

local COUNT, ROUNDS = 60, 3

-- Runs in a moonjay of its own, whose collector it drives: COUNT gets of which the hand-over of
-- the answers collects, and the finalizers do `deed` with the tasks that wait.
local function collect_during(deed)
  local server = memcached.start { unix = true }
  local script = program.script(([[
    local mj = require "moonjay"
    local COUNT, ROUNDS = %d, %d
    local ran, ends = 0, { value = 0, failed = 0, cancelled = 0 }
    for round = 1, ROUNDS do
      local conn = assert(mj.connect(arg[1]))
      for i = 1, COUNT do assert(conn:set("key:" .. i, ("v"):rep(5000) .. i)) end
      collectgarbage()
      collectgarbage("stop")
      local tasks, litter = {}, {}
      local function deed() %s end
      for i = 1, 5 do
        local proxy = newproxy(true)
        getmetatable(proxy).__gc = function() ran = ran + 1 deed(tasks, conn) end
        litter[i] = proxy
      end
      for i = 1, COUNT do
        tasks[i] = mj.spawn(function()
          local ok, value = pcall(conn.get, conn, "key:" .. i)
          if ok and value then assert(value == ("v"):rep(5000) .. i) end
          local what = ok and (value and "value" or "failed") or "cancelled"
          ends[what] = ends[what] + 1
        end)
      end
      mj.sleep(0) -- they ask
      litter = nil
      collectgarbage("setstepmul", 100000000)
      collectgarbage("setpause", 1)
      collectgarbage("restart")
      for i = 1, COUNT do
        local _, err = tasks[i]:wait(10)
        if err and err.op == "task:wait" then print("lost: task " .. i) os.exit(1, true) end
      end
      if conn:is_open() then assert(conn:noop()) end
      conn:close()
    end
    print(ran == 5 * ROUNDS, ends.value + ends.failed + ends.cancelled == COUNT * ROUNDS,
      ends.value < COUNT * ROUNDS)
  ]]):format(COUNT, ROUNDS, deed))
  return program.run(("$MOONJAY %s %s"):format(script, server.url))
end

describe("a connection whose on_error speaks of it", function()
  after_each(memcached.stop_all)

  for name, leave in pairs {
    ["was dropped"] = function() end,
    ["was closed"] = function(conn) conn:close() end,
  } do
    it("is collected when it " .. name, function()
      local server = memcached.start { unix = true }
      local kept = setmetatable({}, { __mode = "v" })
      local function connect()
        local conn
        conn = assert(mj.connect(server.url, { on_error = function() return conn end }))
        kept[1] = conn
        leave(conn)
      end
      connect()
      collectgarbage()
      collectgarbage()
      assert.is_nil(kept[1])
    end)
  end

  it("still hears of the failure of its quiet requests", function()
    local server = memcached.start { unix = true }
    local conn, heard
    conn = assert(mj.connect(server.url, {
      on_error = function(err) heard = { err.key, conn:get("text") } end,
    }))
    conn:set("text", "not a number")
    conn:incr("text", 1, { quiet = true })
    conn:noop()
    collectgarbage()
    wait.until_true(5, "on_error to be called", function() return heard end)
    assert.same({ "text", "not a number" }, heard)
    conn:close()
  end)
end)

describe("a finalizer that runs while answers are handed over", function()
  after_each(function()
    memcached.stop_all()
    program.clean()
  end)

  it("may cancel the tasks that wait for them: none is lost", function()
    local result = collect_during("for j = 2, COUNT do tasks[j]:cancel() end")
    assert.equal("", result.err)
    assert.equal("true\ttrue\ttrue\n", result.out)
    assert.equal(0, result.status)
  end)

  it("may close the connection: every task is told", function()
    local result = collect_during("pcall(conn.close, conn)")
    assert.equal("", result.err)
    assert.equal("true\ttrue\ttrue\n", result.out)
    assert.equal(0, result.status)
  end)
end)

describe("mj.counters().memory", function()
  it("counts the buffers of connections", function()
    finally(memcached.stop_all)
    local server = memcached.start { unix = true, args = { "-I", "64m", "-m", "512" } }
    local conn = assert(mj.connect(server:with("timeout=60s")))
    -- Its block is larger than what is kept of those before it, which counts already.
    local value = ("x"):rep(20 * 1024 * 1024)
    assert(conn:set("large", value))
    collectgarbage()
    collectgarbage()
    server:pause()
    local before = mj.counters().memory
    local task = mj.spawn(function() return conn:get("large") end)
    mj.sleep(0)
    server:resume()
    local most = 0
    local watcher = mj.spawn(function()
      while true do
        most = math.max(most, mj.counters().memory)
        mj.sleep(0)
      end
    end)
    assert.is_true(task:wait() == value)
    watcher:cancel()
    assert.truthy(most > before + #value, most - before)
    conn:close()
  end)
end)
