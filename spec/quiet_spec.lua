-- Quiet requests: nobody waits for them, and still none is lost, mixed up or forgotten.

local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local posix = require "spec.support.posix"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

local QUIET = { quiet = true }

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
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

-- A connection, and the list of what its on_error heard.
local function listening(url)
  local heard = {}
  local conn = assert(mj.connect(url, {
    on_error = function(err) heard[#heard + 1] = err end,
  }))
  return conn, heard
end

describe("quiet requests that fill a connection", function()
  it("are fenced in the write that sends them when somebody waits for room",
    cleaned(function()
      local server = memcached.start { unix = true }
      local conn = assert(mj.connect(server:with("max_inflight=2&timeout=30s")))
      conn:noop()
      local before = conn:counters()
      conn:set("a", "1", QUIET)
      conn:set("b", "2", QUIET)
      assert.equal("1", conn:get("a"))
      local after = conn:counters()
      assert.equal(1, after.parked - before.parked)
      assert.equal(1, after.fences - before.fences)
      assert.equal(2, after.writes - before.writes)
      conn:close()
    end))

  it("do not wait for the timer of a fence when they are many", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("max_inflight=2&timeout=30s")))
    local started = posix.now()
    for i = 1, 200 do assert.is_true(conn:set("key:" .. i, "value", QUIET)) end
    assert.equal("value", conn:get("key:200"))
    local took = posix.now() - started -- 100 fences, each 100 ms apart when a timer sends them
    assert.truthy(took < 5, took)
    conn:close()
  end))

  it("are fenced every thousand, also where one turn asks for more", cleaned(function()
    local server = memcached.start { unix = true }
    local conn, heard = listening(server:with("timeout=30s"))
    conn:set("key", "value")
    for _ = 1, 3500 do conn:add("key", "other", QUIET) end
    conn:noop()
    local counters = conn:counters()
    assert.truthy(counters.fences >= 3, counters.fences .. " fences")
    assert.equal(3500, counters.quiet_failed)
    wait.until_true(5, "on_error to be called", function() return #heard == 3500 end)
    conn:close()
  end))
end)

describe("failures of quiet requests", function()
  it("are told when the server dies before it proved that they were done",
    cleaned(function()
      local peer, heard = hand.listen(), {}
      local conn = peer:connect("timeout=30s", {
        on_error = function(err) heard[#heard + 1] = err end,
      })
      for i = 1, 50 do conn:set("key:" .. i, "value", QUIET) end
      peer:lines(100)
      peer:close()
      wait.until_true(5, "the connection to close", function() return not conn:is_open() end)
      wait.until_true(5, "on_error to be called", function() return #heard > 0 end)
      assert.equal(50, conn:counters().quiet_failed)
      assert.equal(1, #heard)
      assert.equal("closed", heard[1].kind)
      assert.equal("maybe", heard[1].sent)
      assert.is_nil(heard[1].key)
    end))

  it("name the request that was lost when it was the only one", cleaned(function()
    local peer, heard = hand.listen(), {}
    local conn = peer:connect("timeout=30s", {
      on_error = function(err) heard[#heard + 1] = err end,
    })
    conn:delete("alone", QUIET)
    peer:line()
    peer:close(true)
    wait.until_true(5, "on_error to be called", function() return #heard > 0 end)
    assert.equal("alone", heard[1].key)
    assert.equal("delete", heard[1].op)
    assert.equal(1, conn:counters().quiet_failed)
  end))

  it("may be as many as there are requests, and cost no connection", cleaned(function()
    local server = memcached.start { unix = true }
    local conn, heard = listening(server:with("protocol=meta&timeout=30s"))
    conn:set("text", "not a number")
    for _ = 1, 500 do conn:incr("text", 1, QUIET) end
    assert.equal("not a number", conn:get("text"))
    wait.until_true(5, "on_error to be called", function() return #heard == 500 end)
    assert.equal(500, conn:counters().quiet_failed)
    assert.is_true(conn:is_open())
    for _, err in ipairs(heard) do
      assert.equal("client_error", err.kind)
      assert.equal("text", err.key)
    end
    conn:close()
  end))

  it("and of what follows are told apart, also where a multi-get speaks the other protocol",
    cleaned(function()
      local server = memcached.start { unix = true }
      local conn, heard = listening(server:with("protocol=meta&timeout=30s"))
      conn:set_many { text = "not a number", gone = "x" }
      conn:delete("gone", QUIET)
      local counting = mj.spawn(function() return conn:incr("text") end)
      local getting = mj.spawn(function() return conn:get_many { "text", "gone" } end)
      failed("client_error", counting:wait())
      assert.same({ text = "not a number" }, (getting:wait()))
      assert.equal(0, #heard)
      assert.is_true(conn:is_open())
      conn:close()
    end))

  it("are told once: to the caller that waits, else to on_error", cleaned(function()
    local server = memcached.start { unix = true }
    local conn, heard = listening(server:with("protocol=meta&timeout=30s"))
    conn:set("text", "not a number")
    failed("client_error", conn:meta("ma", "text", { "q" }))
    assert.equal("not a number", conn:get("text"))
    mj.sleep(0)
    assert.equal(0, #heard)
    assert.equal(0, conn:counters().quiet_failed)
    conn:close()
  end))

  it("are told once where they cost the connection", cleaned(function()
    local peer, heard = hand.listen(), {}
    local conn = peer:connect("timeout=30s", {
      on_error = function(err) heard[#heard + 1] = err end,
    })
    conn:set("key", "value", QUIET)
    peer:lines(2)
    peer:send("CLIENT_ERROR bad data chunk\r\n")
    wait.until_true(5, "the connection to close", function() return not conn:is_open() end)
    mj.sleep(0)
    assert.equal(1, #heard)
    assert.equal("protocol", heard[1].kind)
    assert.equal(1, conn:counters().quiet_failed)
  end))

  it("need no handler: with connect(url, {}) they are counted, without a word",
    cleaned(function()
      local server = memcached.start { unix = true }
      local script = program.script [[
        local mj = require "moonjay"
        local conn = assert(mj.connect(arg[1], {}))
        conn:set("key", "value")
        conn:add("key", "other", { quiet = true })
        conn:noop()
        mj.sleep(0)
        print(conn:counters().quiet_failed, conn:get("key"))
      ]]
      local result = program.run(("$MOONJAY %s '%s'"):format(script, server.url))
      assert.equal("", result.err)
      assert.equal("1\tvalue\n", result.out)
    end))

  it("are told by close() also while their fence is under way", cleaned(function()
    local server = memcached.start { unix = true }
    local conn, heard = listening(server:with("timeout=30s"))
    conn:set("key", "value")
    for i = 1, 999 do conn:set("key:" .. i, "value", QUIET) end
    conn:add("key", "other", QUIET) -- the thousandth: the fence follows at once
    assert.equal(1, conn:counters().fences)
    conn:close()
    wait.until_true(5, "on_error to be called", function() return #heard > 0 end)
    assert.equal(1, #heard)
    assert.equal("key", heard[1].key)
    assert.equal("yes", heard[1].sent)
  end))
end)

describe("an error line behind a quiet request", function()
  -- Asks `first` and `second` in tasks of their own behind a quiet delete; sends what `answer`
  -- makes of their lines.
  local function ask(options, first, second, answer)
    local peer = hand.listen()
    local conn = peer:connect("timeout=5s&" .. options)
    conn:delete("quiet", QUIET)
    local a = mj.spawn(function() return first(conn) end)
    local b = mj.spawn(function() return second(conn) end)
    local lines = peer:lines(3)
    peer:send(answer(lines[2], lines[3]))
    return conn, { a:wait() }, { b:wait() }
  end

  local function is_protocol(result)
    failed("protocol", result[1], result[2])
  end

  local OUT = "SERVER_ERROR out of memory\r\n"
  local function get(key) return function(conn) return conn:get(key) end end

  it("gives nobody the value of another, where replies are not named", cleaned(function()
    local conn, a, b = ask("verify=false", get("a"), get("b"), function()
      return OUT .. "VA 1\r\nB\r\n"
    end)
    is_protocol(a)
    is_protocol(b)
    assert.is_false(conn:is_open())
  end))

  it("gives nobody the miss of another", cleaned(function()
    local function get_many(key)
      return function(conn)
        local found, errors = conn:get_many { key }
        return next(found), errors and errors[key]
      end
    end
    local conn, a, b = ask("verify=true", get_many("a"), get_many("b"), function()
      return OUT .. "END\r\n"
    end)
    is_protocol(a)
    is_protocol(b)
    assert.is_false(conn:is_open())
  end))

  it("gives no meta value to a classic request", cleaned(function()
    local function get_many(conn)
      local found, errors = conn:get_many { "a" }
      return found.a, errors and errors.a
    end
    local _, a, b = ask("verify=false", get_many, get("b"), function(first)
      assert.equal("get a", first)
      return OUT .. "VA 1\r\nB\r\n"
    end)
    failed("server_error", a[1], a[2])
    assert.equal("B", b[1])
  end))

  it("leaves named replies to those they name", cleaned(function()
    local conn, a, b = ask("verify=true", get("a"), get("b"), function(_, second)
      return OUT .. "VA 1" .. hand.token(second) .. "\r\nB\r\n"
    end)
    failed("server_error", a[1], a[2])
    assert.equal("B", b[1])
    assert.is_true(conn:is_open())
  end))

  it("is never the answer to a noop", cleaned(function()
    local function noop(conn) return conn:noop() end
    local conn, a, b = ask("verify=false", noop, noop, function()
      return OUT .. "MN\r\nMN\r\n"
    end)
    assert.is_true(a[1])
    assert.is_true(b[1])
    assert.is_true(conn:is_open())
    assert.equal(1, conn:counters().quiet_failed)
  end))
end)

describe("close()", function()
  it("that make a counter from its initial value have not failed", cleaned(function()
    local server = memcached.start { unix = true }
    local conn, heard = listening(server:with("protocol=meta"))
    for _ = 1, 2 do
      assert.is_true(conn:incr("made", 1, { initial = 5, quiet = true }))
      assert.is_true(conn:decr("made-too", 1, { initial = 7, ttl = 60, quiet = true }))
    end
    assert.equal("6", conn:get("made"))
    assert.equal("6", conn:get("made-too"))
    assert.equal(0, conn:counters().quiet_failed)
    assert.same({}, heard)
    conn:close()
  end))

  it("leave in spite of their connection being dropped and collected", cleaned(function()
    local server = memcached.start { unix = true }
    local value = ("x"):rep(100000)
    server:pause()
    local function send_and_drop()
      local conn = assert(mj.connect(server:with("protocol=meta&timeout=30s")))
      for i = 1, 20 do
        conn:set("key" .. i, value, { quiet = true })
        conn:set("small" .. i, "1", { quiet = true })
      end
    end
    send_and_drop()
    collectgarbage()
    collectgarbage()
    server:resume()
    local other = assert(mj.connect(server.url))
    wait.until_true(5, "the dropped connection to end", function()
      return other:stats().curr_connections == "1"
    end)
    for i = 1, 20 do
      assert.equal(value, other:get("key" .. i))
      assert.equal("1", other:get("small" .. i))
    end
    other:close()
  end))

  it("are fenced before their silence looks like a stall", cleaned(function()
    local server = memcached.start { unix = true }
    local function lives() -- on a busy machine the answer may truly be too late
      local conn = assert(mj.connect(server:with("stall_timeout=80ms")))
      assert.is_true(conn:set("key", "value", QUIET))
      wait.until_true(5, "its end", function() return conn:counters().inflight == 0 end)
      local open = conn:is_open()
      conn:close()
      return open
    end
    local tries = 1
    while not lives() and tries < 20 do tries = tries + 1 end
    assert.is_true(tries < 20)
  end))

  it("hold a dropped connection no longer than stall_timeout", cleaned(function()
    local server = memcached.start { unix = true }
    local before = mj.now()
    local function send_and_drop()
      local conn = assert(mj.connect(server:with("timeout=100ms&stall_timeout=200ms")))
      server:pause()
      conn:set("key", ("x"):rep(900000), { quiet = true })
      return conn:fd()
    end
    local fd = send_and_drop()
    local function is_open()
      return posix.getsockopt(fd, posix.SOL_SOCKET, posix.SO_KEEPALIVE) ~= nil
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(is_open(), "it waits")
    wait.until_true(5, "the dropped connection to end", function() return not is_open() end)
    assert.is_true(mj.now() - before >= 0.2)
    server:resume()
  end))

  it("closes also when its task was cancelled", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    local task = mj.spawn(function()
      conn:set("key", "value", QUIET)
      pcall(mj.sleep, 30)
      conn:close()
    end)
    mj.sleep(0)
    task:cancel()
    failed("cancelled", task:wait(10))
    assert.is_false(conn:is_open())
  end))
end)
