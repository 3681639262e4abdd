-- Pipelines that share a connection, are interrupted, or are large.

local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local wait = require "spec.support.wait"

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      hand.finish_all()
    end)
    fn()
  end
end

local function failed(kind, value, err)
  assert.is_nil(value)
  assert.equal(kind, err and err.kind, tostring(err))
  return err
end

describe("a pipeline that is interrupted", function()
  -- A connection with room for one request, a pipeline of three and a get: the pipeline has two
  -- answers, and its third request waits until the get is answered. Then `after` is called.
  local function two_of_three(after)
    local peer = hand.listen()
    local conn = peer:connect("max_inflight=1&timeout=30s")
    local run = mj.spawn(function()
      return conn:pipeline():incr("n"):incr("n"):incr("n"):run()
    end)
    local get = mj.spawn(function()
      conn:get("key")
      after(run)
    end)
    for i = 1, 2 do
      local line = peer:line()
      assert.truthy(line:find("^ma n "), line)
      peer:send("VA 1", hand.token(line), "\r\n", tostring(i), "\r\n")
    end
    local line = peer:line()
    assert.truthy(line:find("^mg key "), line)
    local function answer_get()
      peer:send("EN", hand.token(line), "\r\n")
      get:wait()
    end
    return conn, run, answer_get
  end

  it("may have been sent, though all that it sent was answered", cleaned(function()
    local conn, run = two_of_three(function() end)
    run:cancel()
    local err = failed("cancelled", run:wait())
    assert.equal("maybe", err.sent)
    assert.equal("pipeline", err.op)
    conn:close()
  end))

  it("may have been sent also when it is cancelled just as it gets room", cleaned(function()
    local conn, run, answer_get = two_of_three(function(run) run:cancel() end)
    answer_get() -- which wakes the get, and behind it the pipeline
    local err = failed("cancelled", run:wait())
    assert.equal("maybe", err.sent)
    assert.equal("pipeline", err.op)
    conn:close()
  end))

  it("was not sent when it waited for room and sent nothing", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("max_inflight=1&timeout=30s")
    local get = mj.spawn(function() return conn:get("key") end)
    local run = mj.spawn(function() return conn:pipeline():incr("n"):run() end)
    local line = peer:line()
    wait.until_true(5, "it to be parked", function() return conn:counters().parked == 1 end)
    run:cancel()
    assert.equal("no", failed("cancelled", run:wait()).sent)
    peer:send("EN", hand.token(line), "\r\n")
    assert.is_nil(get:wait())
    assert.is_true(conn:is_open())
    conn:close()
  end))
end)

describe("a pipeline that runs", function()
  it("leaves what is recorded meanwhile to the next run", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    conn:set("n", "5")
    local pipeline = conn:pipeline():get("n")
    local first = mj.spawn(function() return pipeline:run() end)
    mj.sleep(0)
    pipeline:incr("n")
    assert.same({ "5" }, { unpack(first:wait()) })
    assert.equal(1, pipeline.n)
    assert.same({ 6 }, { unpack(pipeline:run()) })
    assert.equal(0, pipeline.n)
    conn:close()
  end))

  it("goes on behind others, and leaves them room", cleaned(function()
    local server = memcached.start { unix = true, args = { "-R", "200" } }
    local conn = assert(mj.connect(server:with("max_inflight=1000&timeout=60s")))
    conn:set("key", "value")
    local before, tasks = conn:counters(), {}
    for i = 1, 2 do
      tasks[i] = mj.spawn(function()
        local pipeline = conn:pipeline()
        for _ = 1, 20000 do pipeline:get("key") end
        return pipeline:run()
      end)
    end
    local small = mj.spawn(function() return conn:get("key") end)
    assert.equal("value", (small:wait(30)))
    for _, task in ipairs(tasks) do
      local replies = task:wait(60)
      assert.equal(20000, replies.n)
      assert.equal(0, replies.failed)
    end
    local after = conn:counters()
    local parked, writes = after.parked - before.parked, after.writes - before.writes
    -- In turns of single requests each would park 20,000 times.
    assert.truthy(parked < 4000, parked .. " times parked")
    assert.truthy(writes < 4000, writes .. " writes")
    conn:close()
  end))

  it("of large values never arms for writing while the socket takes them", cleaned(function()
    local server = memcached.start()
    local conn = assert(mj.connect(server:with("send_buffer=4m&timeout=30s")))
    local value = ("x"):rep(17000)
    local before = conn:counters()
    for _ = 1, 20 do
      local pipeline = conn:pipeline()
      -- More pieces than one writev takes, and fewer bytes than the socket takes.
      for i = 1, 12 do pipeline:set("key:" .. i, value) end
      assert.equal(0, pipeline:run().failed)
    end
    assert.equal(0, conn:counters().arms - before.arms)
    conn:close()
  end))
end)

describe("a counter that starts at its initial number, over ascii", function()
  for _, case in ipairs {
    { "9007199254740993", "9007199254740993" },
    { "18446744073709551615", "18446744073709551615" },
    { "9007199254740992", 9007199254740992 },
    { "007", 7 },
    { 41, 41 },
  } do
    it("gives " .. case[1] .. " exactly", cleaned(function()
      local server = memcached.start { unix = true }
      local conn = assert(mj.connect(server:with("protocol=ascii")))
      local number = conn:incr("n", 1, { initial = case[1] })
      assert.equal(type(case[2]), type(number))
      assert.equal(case[2], number)
      assert.equal(tostring(case[1]):gsub("^0+", ""), conn:get("n"))
      conn:close()
    end))
  end
end)
