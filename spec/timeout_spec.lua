-- Time that runs out: while the server dies, while this process stands still, half written.

local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      process.stop_all()
      hand.finish_all()
      program.clean()
    end)
    fn()
  end
end

local function failed(kind, value, err)
  assert.is_nil(value)
  assert.equal(kind, err and err.kind, tostring(err))
  return err
end

local function spawn_gets(conn, keys)
  local tasks = {}
  for i, key in ipairs(keys) do
    tasks[i] = mj.spawn(function() return conn:get(key) end)
  end
  return tasks
end

local function state_of(pid)
  local file = assert(io.open(("/proc/%d/stat"):format(pid)))
  local state = file:read("*a"):match("^.*%) (%a)")
  file:close()
  return state
end

-- A moonjay of its own that runs this text; arg[1] is the url.
local function start(text, url)
  return process.start { program.path, program.script(text), url, input = true, errors = true }
end

describe("a server that dies while requests are overdue", function()
  for _, reset in ipairs { false, true } do
    it("tells each its end once, after a " .. (reset and "reset" or "close"),
      cleaned(function()
        local peer = hand.listen()
        local conn = peer:connect("timeout=300ms&stall_timeout=30s")
        -- One times out, so that the search for the overdue has begun before the next come.
        local late = mj.spawn(function() return conn:get("late") end)
        local line = peer:line()
        failed("timeout", late:wait())
        peer:send("EN", hand.token(line), "\r\n")
        wait.until_true(5, "the late reply", function() return conn:counters().late == 1 end)

        local tasks = spawn_gets(conn, { "a", "b", "c", "d", "e" })
        local lines = peer:lines(5)
        -- All in one turn: two answers, the end, and the deadline.
        peer:send("EN", hand.token(lines[1]), "\r\n", "EN", hand.token(lines[2]), "\r\n")
        peer:close(reset)
        posix.sleep(0.4)
        local misses = 0
        for _, task in ipairs(tasks) do
          local value, err = task:wait(10)
          assert.is_nil(value)
          if err == nil then
            misses = misses + 1
          else
            assert.is_true(err.kind == "closed" or err.kind == "reset", tostring(err))
            assert.equal("maybe", err.sent)
          end
        end
        assert.is_true(misses == 2 or reset, misses .. " misses") -- a reset may take them along
        assert.is_false(conn:is_open())
        assert.equal(1, conn:counters().timeouts)
        failed("closed", conn:get("a"))
      end))
  end
end)

describe("a process that was stopped", function()
  it("does not take replies that wait for timeouts", cleaned(function()
    local server = memcached.start { unix = true, args = { "-t", "1" } }
    local own = assert(mj.connect(server:with("timeout=30s")))
    assert(own:set("key", ("v"):rep(400)))
    local before = tonumber(assert(own:stats()).cmd_get)
    local child = start([[
      local mj = require "moonjay"
      local conn = assert(mj.connect(arg[1]))
      print("open") io.flush()
      io.read()
      local tasks, got = {}, 0
      for i = 1, 120 do tasks[i] = mj.spawn(function() return conn:get("key") end) end
      mj.sleep(0)
      mj.sleep(0)
      print("asked " .. conn:counters().writes) io.flush()
      for i = 1, 120 do if tasks[i]:wait() then got = got + 1 end end
      print(got .. " got")
    ]], server:with("timeout=2s"))
    assert.equal("open", child:read_line(10))
    server:pause()
    child:write("\n")
    assert.truthy(child:read_line(10):find("^asked"))
    child:signal(posix.SIGSTOP)
    wait.until_true(5, "the child to stop", function() return state_of(child.pid) == "T" end)
    server:resume()
    wait.until_true(10, "the server to answer", function()
      return tonumber(assert(own:stats()).cmd_get) == before + 120
    end)
    wait.pause(2.2) -- more than the timeout
    child:signal(posix.SIGCONT)
    local text, status, errors = child:finish(20)
    assert.equal("120 got\n", text, errors)
    assert.equal(0, status)
    own:close()
  end))

  it("takes what no reply has come to for timeouts, and nothing else", cleaned(function()
    local server = memcached.start { unix = true }
    local child = start([[
      local mj = require "moonjay"
      local conn = assert(mj.connect(arg[1]))
      print("open") io.flush()
      io.read()
      local task = mj.spawn(function() return conn:get("key") end)
      mj.sleep(0)
      mj.sleep(0)
      print("asked") io.flush()
      local _, err = task:wait()
      print(err.kind, err.sent, conn:is_open())
    ]], server:with("timeout=500ms&stall_timeout=60s"))
    assert.equal("open", child:read_line(10))
    server:pause()
    child:write("\n")
    assert.equal("asked", child:read_line(10))
    child:signal(posix.SIGSTOP)
    wait.pause(0.6)
    child:signal(posix.SIGCONT)
    local text, status, errors = child:finish(20)
    server:resume()
    assert.equal("timeout\tmaybe\ttrue\n", text, errors)
    assert.equal(0, status)
  end))
end)

describe("a half-written request whose time is over", function()
  it("takes those behind it along: they were never sent", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=300ms&stall_timeout=30s")))
    server:pause()
    local big = mj.spawn(function() return conn:set("big", ("x"):rep(3000000)) end)
    local behind = spawn_gets(conn, { "a", "b" })
    local err = failed("timeout", big:wait())
    assert.equal("write", err.phase)
    assert.equal("maybe", err.sent)
    assert.equal("big", err.key)
    for i, task in ipairs(behind) do
      err = failed("timeout", task:wait())
      assert.equal("no", err.sent)
      assert.equal(({ "a", "b" })[i], err.key, tostring(err))
      assert.is_true(err.retryable)
    end
    assert.is_false(conn:is_open())
    server:resume()
  end))
end)

describe("a call on a connection that was closed before it", function()
  it("is not retryable: it would fail again", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    conn:close()
    local err = failed("closed", conn:get("key"))
    assert.equal("no", err.sent)
    assert.is_false(err.retryable)
    assert.is_nil(err.phase)
    local _, errors = conn:get_many { "key" }
    local _, refused = next(errors or {})
    assert.is_false((refused or failed("closed", nil, errors)).retryable)
  end))

  it("unlike one that waited when it closed", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("timeout=30s")
    local task = mj.spawn(function() return conn:get("key") end)
    peer:line()
    peer:close()
    local err = failed("closed", task:wait())
    assert.is_true(err.retryable)
  end))
end)

-- Where a zero-length value may be a lease's stub, get_many asks for it again.
describe("the second question of a get_many", function()
  local function in_a_pipeline(conn)
    local replies = conn:pipeline():get("other"):get_many({ "key" }):run()
    return replies[2], replies.more[2]
  end

  for name, ask in pairs {
    alone = function(conn) return conn:get_many { "key" } end,
    ["in a pipeline"] = in_a_pipeline,
  } do
    it(name .. " is paid from its one timeout", cleaned(function()
      local peer = hand.listen()
      local conn = peer:connect("timeout=600ms&stall_timeout=30s")
      local started = posix.now()
      local asking = mj.spawn(function()
        local values, errors = ask(conn)
        return values, errors, posix.now() - started
      end)
      if ask == in_a_pipeline then peer:send("EN", hand.token(peer:line()), "\r\n") end
      assert.equal("get key", peer:line())
      wait.pause(0.4)
      peer:send("VALUE key 0 0\r\n\r\nEND\r\n")
      assert.matches("^mg key ", peer:line())
      local values, errors, took = asking:wait(10)
      assert.same({}, values)
      failed("timeout", nil, errors.key)
      assert.is_true(took > 0.55 and took < 0.9, took)
      conn:close()
    end))
  end
end)

describe("a wait for room", function()
  -- Answers gets that miss.
  local function answer(peer, lines)
    for _, line in ipairs(lines) do peer:send("EN", hand.token(line), "\r\n") end
  end

  it("is paid from a pipeline's one timeout, however often it waits", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("max_inflight=2&timeout=600ms&stall_timeout=30s")
    local started = posix.now()
    local running = mj.spawn(function()
      local p = conn:pipeline()
      for i = 1, 8 do p:get("key:" .. i) end
      return p:run(), posix.now() - started
    end)
    local first = peer:lines(2)
    wait.pause(0.4)
    answer(peer, first)
    peer:lines(2) -- the next two, in time
    local replies, took = running:wait(10)
    assert.equal(6, replies.failed)
    for i = 1, 8 do
      if i < 3 then
        assert.is_nil(replies.errors[i])
      else
        assert.equal("timeout", replies.errors[i].kind)
        assert.equal(i < 5 and "maybe" or "no", replies.errors[i].sent)
      end
    end
    assert.is_true(took > 0.55 and took < 0.9, took)
    conn:close()
  end))

  it("ends with the timeout, also where every turn brings an answer, and room",
    cleaned(function()
      local peer = hand.listen()
      local conn = peer:connect("max_inflight=1&timeout=300ms&verify=false")
      local started = posix.now()
      local running = mj.spawn(function()
        local p = conn:pipeline()
        for i = 1, 20 do p:get("key:" .. i) end
        return p:run(), posix.now() - started
      end)
      peer:line()
      while posix.now() - started < 0.8 do -- an answer to what is sent at the end of this turn
        if conn:counters().inflight > 0 then peer:send("EN\r\n") end
        posix.sleep(0.04)
        mj.sleep(0)
      end
      local replies, took = running:wait(10)
      assert.is_true(replies.failed > 5, replies.failed .. " failed")
      assert.equal("timeout", replies.errors[20].kind)
      assert.equal("no", replies.errors[20].sent)
      assert.is_true(took < 0.6, took)
      conn:close()
    end))

  it("delays the end of nobody who stood behind a pipeline in it", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("max_inflight=4&timeout=600ms&stall_timeout=30s")
    local filling = spawn_gets(conn, { "a", "b", "c", "d" })
    local lines = peer:lines(4)
    local started = posix.now()
    mj.spawn(function() conn:pipeline():get("e"):get("f"):run() end)
    local behind = mj.spawn(function()
      local value, err = conn:get("g")
      return value, err, posix.now() - started
    end)
    wait.until_true(5, "both to be parked", function() return conn:counters().parked == 2 end)
    wait.pause(0.4)
    answer(peer, lines)
    mj.check(mj.all(filling))
    peer:lines(3)
    local value, err, took = behind:wait(10)
    failed("timeout", value, err)
    assert.is_true(took < 0.9, took)
    conn:close()
  end))
end)
