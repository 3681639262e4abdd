-- A connection's life: opened, shared by many tasks, late, stalled, full, closed.

local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local peers = require "spec.support.peers"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      process.stop_all()
    end)
    fn()
  end
end

local function failed(kind, value, err)
  assert.is_nil(value)
  assert.equal(kind, err and err.kind, tostring(err))
  return err
end

local function is_closed(conn)
  return not conn:is_open()
end

-- Stores by a connection of its own, whose timeout is not the spec's.
local function store(server, values)
  local conn = assert(mj.connect(server:with("timeout=30s")))
  assert(conn:set_many(values))
  conn:close()
end

local function spawn_gets(conn, count, key)
  local tasks = {}
  for i = 1, count do
    tasks[i] = mj.spawn(function() return conn:get(key or "key") end)
  end
  return tasks
end

describe("connecting", function()
  it("shows on the live sockets what the URLs said, tcp and unix in one process",
    cleaned(function()
      local tcp, unix = memcached.start(), memcached.start { unix = true }
      local function nodelay(url)
        local conn = assert(mj.connect(url))
        assert(conn:set("k", "v"))
        local value = posix.getsockopt(conn:fd(), posix.IPPROTO_TCP, posix.TCP_NODELAY)
        conn:close()
        return value
      end
      assert.equal(1, nodelay(tcp.url))
      assert.equal(1, nodelay(tcp:with("tcp_nodelay=true")))
      assert.equal(0, nodelay(tcp:with("tcp_nodelay=false")))
      -- A unix socket has no such option; it takes the name and works.
      assert.is_nil(nodelay(unix:with("tcp_nodelay=true")))
      assert.is_nil(nodelay(unix:with("tcp_nodelay=false")))
    end))

  it("sets buffers and keepalive as the URL says", cleaned(function()
    local server = memcached.start()
    local plain = assert(mj.connect(server:with("tcp_keepalive=7s&receive_buffer=32k")))
    local fd = plain:fd()
    assert.truthy(posix.getsockopt(fd, posix.SOL_SOCKET, posix.SO_KEEPALIVE) ~= 0)
    assert.equal(7, posix.getsockopt(fd, posix.IPPROTO_TCP, posix.TCP_KEEPIDLE))
    -- The kernel doubles what is asked for.
    assert.equal(65536, posix.getsockopt(fd, posix.SOL_SOCKET, posix.SO_RCVBUF))
    plain:close()
  end))

  it("has no setter for nodelay", cleaned(function()
    local conn = assert(mj.connect(memcached.start().url))
    for _, name in ipairs { "set_tcp_nodelay", "set_nodelay", "tcp_nodelay", "nodelay",
                            "setoption", "set_option" } do
      local fine, value = pcall(function() return conn[name] end)
      assert.is_true(not fine or value == nil, name)
    end
    conn:close()
  end))

  it("refuses port 112211 and the option tcl_nodelay before any I/O", function()
    local err = failed("bad_url", mj.connect("memcache://127.0.0.1:112211"))
    assert.truthy(tostring(err):find("112211", 1, true))
    err = failed("bad_url", mj.connect("memcache://127.0.0.1?tcl_nodelay=true"))
    assert.truthy(tostring(err):find("tcl_nodelay", 1, true))
    assert.truthy(tostring(err):find("tcp_nodelay", 1, true))
  end)

  it("takes one server only", function()
    failed("bad_url", mj.connect("memcache://127.0.0.1:1,127.0.0.1:2"))
  end)

  it("says connect_refused where nobody listens", function()
    local started = posix.now()
    local url = "memcache://127.0.0.1:" .. memcached.free_port()
    local err = failed("connect_refused", mj.connect(url))
    assert.equal("connect", err.phase)
    assert.equal("no", err.sent)
    assert.truthy(tostring(err):find(url, 1, true))
    assert.truthy(posix.now() - started < 5)
  end)

  it("a unix socket that does not exist says so", function()
    local value, err = mj.connect("memcache:///nonexistent/mc.sock")
    assert.is_nil(value)
    assert.truthy(err.kind == "connect_refused" or err.kind == "unreachable", err.kind)
    assert.truthy(tostring(err):find("/nonexistent/mc.sock", 1, true))
  end)

  it("a name that means nothing is a failure to resolve", function()
    local url = "memcache://nonexistent.invalid?connect_timeout=20s"
    local err = failed("resolve", mj.connect(url))
    assert.equal("resolve", err.phase)
    assert.equal("no", err.sent)
    assert.truthy(tostring(err):find("nonexistent.invalid", 1, true))
  end)

  it("localhost works", cleaned(function()
    local server = memcached.start()
    local conn = assert(mj.connect("memcache://localhost:" .. server.port))
    assert.is_true(conn:noop())
    conn:close()
  end))

  it("connect_timeout ends a connect that is never answered", function()
    local hole = peers.blackhole()
    finally(hole.close)
    local started = posix.now()
    local err = failed("connect_timeout", mj.connect(hole.url .. "?connect_timeout=100ms"))
    local took = posix.now() - started
    assert.equal("no", err.sent)
    assert.truthy(took >= 0.1 and took < 5, took)
  end)

  it("a deadline around connect gives connect_timeout", function()
    local hole = peers.blackhole()
    finally(hole.close)
    failed("connect_timeout", mj.deadline(0.05, mj.connect, hole.url))
  end)

  it("a server that takes the connection and is silent times out in the handshake",
    cleaned(function()
      local server = memcached.start()
      server:pause()
      local err = failed("connect_timeout", mj.connect(server:with("connect_timeout=100ms")))
      assert.equal("handshake", err.phase)
      server:resume()
    end))

  it("tries every address of a name in turn", function()
    if not posix.is_root() then return pending("needs root, for a private /etc/hosts") end
    finally(function()
      memcached.stop_all()
      process.stop_all()
    end)
    local server = memcached.start()
    local hosts, script = os.tmpname(), os.tmpname()
    local function write(name, text)
      local file = assert(io.open(name, "w"))
      file:write(text)
      file:close()
    end
    write(hosts, "127.0.0.3 many\n127.0.0.2 many\n127.0.0.1 many\n127.0.0.4 many\n")
    write(script, [[
      local mj = require "moonjay"
      local conn = assert(mj.connect(arg[1]))
      print(conn:noop())
    ]])
    local child = process.start {
      "unshare", "-m", "sh", "-c",
      "mount --make-rprivate / && mount --bind $1 /etc/hosts && exec $2 $3 $4", "sh",
      hosts, os.getenv("MOONJAY_BIN") or require("spec.support.program").path, script,
      "memcache://many:" .. server.port, errors = true,
    }
    local text, status, errors = child:finish(20)
    os.remove(hosts)
    os.remove(script)
    if errors:find("unshare:", 1, true) then
      return pending("needs mount namespaces: " .. errors)
    end
    assert.equal("true\n", text, errors)
    assert.equal(0, status)
  end)
end)

describe("the protocol", function()
  it("auto says clearly when the peer is no memcached", cleaned(function()
    local peer = peers.start {
      { after_line = true, send = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" },
      { close = "fin" },
    }
    local err = failed("protocol", mj.connect(peer.url))
    assert.truthy(tostring(err):find("memcached", 1, true), tostring(err))
    assert.equal("handshake", err.phase)
  end))

  it("auto falls back to ascii where meta commands are unknown", cleaned(function()
    local peer = peers.start {
      { after_request = 2, send = "ERROR\r\nVERSION 1.4.39\r\n" },
      { serve = { store = { k = { value_b64 = "dg==" } }, requests = 1 } },
    }
    local conn = assert(mj.connect(peer.url))
    assert.equal("v", conn:get("k"))
    conn:close()
    local sent = peer:finish().connections[1].received
    assert.truthy(sent:find("get k\r\n", 1, true), sent)
  end))

  it("auto asks in one round trip and uses meta where it is known", cleaned(function()
    local peer = peers.start { { serve = { store = { k = { value_b64 = "dg==" } } } } }
    local conn = assert(mj.connect(peer.url))
    assert.equal("v", conn:get("k"))
    conn:close()
    local sent = peer:finish().connections[1].received
    assert.truthy(sent:find("mg k ", 1, true), sent)
  end))

  it("a proxy that hangs up on meta commands is spoken to in ascii", cleaned(function()
    local peer = peers.start(
      { { after_line = true }, { close = "fin" } },
      { { serve = { store = { k = { value_b64 = "dg==" } } } } })
    local conn = assert(mj.connect(peer.url))
    assert.equal("v", conn:get("k"))
    conn:close()
  end))

  for _, protocol in ipairs { "ascii", "meta", "auto" } do
    it("logs in over " .. protocol .. ", and says auth where the password is wrong",
      cleaned(function()
        local name = os.tmpname()
        local file = assert(io.open(name, "w"))
        file:write("bob:secret\n")
        file:close()
        local server = memcached.start { args = { "-Y", name } }
        os.remove(name)
        local function url(login)
          return ("memcache://%s127.0.0.1:%d?protocol=%s"):format(login, server.port, protocol)
        end
        local conn = assert(mj.connect(url("bob:secret@")))
        assert.is_true(conn:set("k", "v"))
        assert.equal("v", conn:get("k"))
        conn:close()
        local err = failed("auth", mj.connect(url("bob:wrong@")))
        assert.is_nil(tostring(err):find("wrong", 1, true))
        local stranger
        stranger, err = mj.connect(url(""))
        if stranger then
          stranger, err = stranger:get("k")
        end
        failed("auth", stranger, err)
      end))
  end
end)

describe("many tasks on one connection", function()
  it("10,000 tasks get their own replies", cleaned(function()
    local server = memcached.start { args = { "-R", "200" } }
    local conn = assert(mj.connect(server:with("timeout=30s")))
    local wrong, tasks = 0, {}
    for i = 1, 10000 do
      tasks[i] = mj.spawn(function()
        local key = "key:" .. i
        if not conn:set(key, tostring(i)) then wrong = wrong + 1 end
        if conn:get(key) ~= tostring(i) then wrong = wrong + 1 end
      end)
    end
    for _, task in ipairs(tasks) do task:wait() end
    assert.equal(0, wrong)
    conn:close()
  end))

  it("what one turn asks leaves in one write", cleaned(function()
    local conn = assert(mj.connect(memcached.start { args = { "-R", "200" } }.url))
    conn:set("key", "value")
    local before = conn:counters()
    for _, task in ipairs(spawn_gets(conn, 100)) do assert.equal("value", task:wait()) end
    local after = conn:counters()
    assert.equal(100, after.requests - before.requests)
    assert.equal(100, after.replies - before.replies)
    assert.equal(1, after.writes - before.writes)
    assert.equal(0, after.arms - before.arms)
    conn:close()
  end))

  it("100 tasks need at most 0.05 reads and writes for an operation", cleaned(function()
    local server = memcached.start { unix = true, args = { "-R", "200" } }
    local conn = assert(mj.connect(server.url))
    conn:set("key", "value")
    local before, tasks = conn:counters(), {}
    for i = 1, 100 do
      tasks[i] = mj.spawn(function()
        for _ = 1, 100 do assert(conn:get("key") == "value") end
        return true
      end)
    end
    for _, task in ipairs(tasks) do assert.is_true(task:wait()) end
    local after = conn:counters()
    local calls = after.reads - before.reads + after.writes - before.writes
    local operations = after.requests - before.requests
    assert.equal(10000, operations)
    assert.truthy(calls <= 0.05 * operations, calls .. " calls for 10,000 operations")
    conn:close()
  end))

  it("a pipeline larger than every buffer does not deadlock", cleaned(function()
    local server = memcached.start()
    local conn = assert(mj.connect(server:with(
      "timeout=30s&send_buffer=16k&receive_buffer=16k")))
    local value = ("v"):rep(10000)
    conn:set("key", value)
    local pipeline = conn:pipeline()
    for i = 1, 5000 do
      pipeline:get("key")
      pipeline:set("other:" .. i % 10, value)
    end
    local replies = pipeline:run()
    assert.equal(10000, replies.n)
    assert.equal(0, replies.failed)
    for i = 1, 10000, 2 do assert.is_true(replies[i] == value) end
    conn:close()
  end))

  it("max_inflight parks tasks until there is room", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("max_inflight=10")))
    conn:set("key", "value")
    for _, task in ipairs(spawn_gets(conn, 500)) do assert.equal("value", task:wait()) end
    assert.truthy(conn:counters().parked > 0)
    conn:close()
  end))

  it("a parked task times out like any other, with nothing sent", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with(
      "protocol=meta&max_inflight=2&timeout=300ms&stall_timeout=30s")))
    server:pause()
    local tasks, sent = spawn_gets(conn, 4), {}
    for i, task in ipairs(tasks) do
      local err = failed("timeout", task:wait())
      assert.equal("key", err.key)
      sent[i] = err.sent
    end
    assert.same({ "maybe", "maybe", "no", "no" }, sent)
    server:resume()
    conn:close()
  end))
end)

describe("lateness", function()
  it("a reply that comes late is dropped, and the connection lives on", cleaned(function()
    local server = memcached.start { unix = true }
    store(server, { old = "old value", new = "new value" })
    for _, protocol in ipairs { "meta", "ascii" } do
      local conn = assert(mj.connect(server:with(
        "timeout=300ms&stall_timeout=30s&protocol=" .. protocol)))
      server:pause()
      local started = posix.now()
      local err = failed("timeout", conn:get("old"))
      local took = posix.now() - started
      assert.truthy(took >= 0.3 and took < 5, took)
      assert.equal("maybe", err.sent)
      assert.equal("read", err.phase)
      assert.equal("get", err.op)
      assert.equal("old", err.key)
      server:resume()
      assert.equal("new value", conn:get("new"))
      local counters = conn:counters()
      assert.equal(1, counters.timeouts)
      assert.equal(1, counters.late)
      conn:close()
    end
  end))

  it("a deadline of the script and a cancel leave the connection in order", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    conn:set("old", "old value")
    conn:set("new", "new value")
    server:pause()
    failed("timeout", mj.deadline(0.05, function() return conn:get("old") end))
    local task = mj.spawn(function() return conn:get("old") end)
    mj.sleep(0.01)
    task:cancel()
    failed("cancelled", task:wait())
    server:resume()
    assert.equal("new value", conn:get("new"))
    assert.equal(2, conn:counters().late)
    conn:close()
  end))

  it("a large late value is dropped too, also where it was to go into a buffer",
    cleaned(function()
      local server = memcached.start { unix = true }
      store(server, { large = ("x"):rep(900000), new = "new value" })
      local conn = assert(mj.connect(server:with("timeout=300ms&stall_timeout=30s")))
      local buf = require("string.buffer").new()
      server:pause()
      failed("timeout", conn:get("large", { into = buf }))
      server:resume()
      assert.equal("new value", conn:get("new"))
      assert.equal(0, #buf)
      conn:close()
    end))

  it("a server on which nothing arrives is given up as stalled", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=50ms&stall_timeout=200ms")))
    server:pause()
    local started = posix.now()
    failed("timeout", conn:get("key"))
    wait.until_true(5, "the stall to be seen", function() return is_closed(conn) end)
    local took = posix.now() - started
    assert.truthy(took >= 0.2 and took < 5, took)
    local err = failed("closed", conn:get("key"))
    assert.equal("no", err.sent)
    server:resume()
  end))

  it("what waits on a stalled connection is told timeout", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=10s&stall_timeout=100ms")))
    server:pause()
    for _, task in ipairs(spawn_gets(conn, 3)) do
      local err = failed("timeout", task:wait())
      assert.equal("maybe", err.sent)
    end
    assert.is_true(is_closed(conn))
    server:resume()
  end))

  it("a request that is half written when its time is over closes the connection",
    cleaned(function()
      local server = memcached.start { unix = true }
      local conn = assert(mj.connect(server:with("timeout=300ms&stall_timeout=30s")))
      server:pause()
      local err = failed("timeout", conn:set("key", ("x"):rep(8000000)))
      assert.equal("write", err.phase)
      assert.is_true(is_closed(conn))
      server:resume()
    end))
end)

describe("closing", function()
  it("tells everyone that waits, and everyone that comes later", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    server:pause()
    local tasks = spawn_gets(conn, 5)
    mj.sleep(0.01)
    conn:close()
    for _, task in ipairs(tasks) do failed("closed", task:wait()) end
    conn:close()
    local err = failed("closed", conn:get("key"))
    assert.equal("no", err.sent)
    assert.is_true(is_closed(conn))
    server:resume()
  end))

  it("a server that dies tells everyone that waits", cleaned(function()
    for _, unix in ipairs { true, false } do
      local server = memcached.start { unix = unix }
      local conn = assert(mj.connect(server.url))
      server:pause()
      local tasks = spawn_gets(conn, 5)
      mj.sleep(0.01)
      server:kill()
      for _, task in ipairs(tasks) do
        local value, err = task:wait()
        assert.is_nil(value)
        assert.truthy(err.kind == "closed" or err.kind == "reset", tostring(err))
        assert.equal("maybe", err.sent)
      end
      assert.is_true(is_closed(conn))
    end
  end))

  it("does not lose quiet requests that were queued before", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    local other = assert(mj.connect(server.url))
    for i = 1, 50 do conn:set("quiet:" .. i, "x", { quiet = true }) end
    conn:close()
    wait.until_true(5, "the last quiet set to arrive", function()
      return other:get("quiet:50") == "x"
    end)
    other:close()
  end))
end)

describe("errors of a connection", function()
  it("have every field and a message that a person can use", cleaned(function()
    local server = memcached.start()
    local conn = assert(mj.connect(server.url))
    conn:set("text", "not a number")
    local err = failed("client_error", conn:incr("text"))
    assert.equal("incr", err.op)
    assert.equal("text", err.key)
    assert.equal(server.url, err.server)
    assert.equal("read", err.phase)
    assert.equal("yes", err.sent)
    assert.is_false(err.retryable)
    assert.equal(1, err.attempts)
    local words = tostring(err)
    for _, part in ipairs { "incr", "text", server.url, "non-numeric" } do
      assert.truthy(words:find(part, 1, true), words)
    end
    conn:close()
  end))

  it("a reply that announces more than max_value is refused as too_large", cleaned(function()
    local server = memcached.start { unix = true }
    for _, protocol in ipairs { "meta", "ascii" } do
      local conn = assert(mj.connect(server:with("max_value=1k&protocol=" .. protocol)))
      local writer = assert(mj.connect(server.url))
      writer:set("big", ("x"):rep(20000))
      writer:set("small", "fits")
      failed("too_large", conn:get("big"))
      if is_closed(conn) then conn = assert(mj.connect(server:with("max_value=1k"))) end
      assert.equal("fits", conn:get("small"))
      conn:close()
      writer:close()
    end
  end))

  it("a set that the server finds too large costs neither connection nor order",
    cleaned(function()
      local server = memcached.start { unix = true }
      local conn = assert(mj.connect(server.url))
      conn:set("key", "old")
      local value, err = conn:set("key", ("x"):rep(2 * 1024 * 1024))
      assert.is_nil(value)
      assert.truthy(err.kind == "server_error" or err.kind == "too_large", tostring(err))
      assert.is_true(conn:set("other", "fine"))
      assert.equal("fine", conn:get("other"))
      conn:close()
    end))

  it("quiet failures are counted and handed to on_error", cleaned(function()
    local server = memcached.start { unix = true }
    local heard = {}
    local conn = assert(mj.connect(server:with("protocol=meta"), {
      on_error = function(err) heard[#heard + 1] = err end,
    }))
    conn:set("text", "not a number")
    conn:incr("text", 1, { quiet = true })
    assert.equal("not a number", conn:get("text"))
    wait.until_true(5, "on_error to be called", function() return #heard > 0 end)
    assert.equal("client_error", heard[1].kind)
    assert.equal("incr", heard[1].op)
    assert.equal(1, conn:counters().quiet_failed)
    conn:close()
  end))

  it("an unknown option of connect is thrown", function()
    assert.has_error(function() mj.connect("memcache://127.0.0.1", { on_eror = print }) end)
    assert.has_error(function() mj.connect(11211) end)
    assert.has_error(function() mj.connect() end)
  end)
end)

describe("what must not go wrong", function()
  it("a trickle of quiet requests is fenced, and is no stall", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=200ms&stall_timeout=400ms")))
    local ends = posix.now() + 0.8
    while posix.now() < ends do
      assert.is_true(conn:set("key", "value", { quiet = true }))
      mj.sleep(0.02)
    end
    assert.is_true(conn:is_open())
    assert.truthy(conn:counters().fences > 0)
    conn:close()
  end))

  it("a half-written request that is given up names its key", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=30s")))
    server:pause()
    local err = failed("timeout", mj.deadline(0.2, function()
      return conn:set("a-key-of-some-length", ("x"):rep(8000000))
    end))
    assert.equal("a-key-of-some-length", err.key)
    assert.equal("write", err.phase)
    wait.until_true(5, "the connection to close", function() return is_closed(conn) end)
    server:resume()
  end))

  it("a pipeline that throws while it is sent leaves the connection in order",
    cleaned(function()
      local server = memcached.start { unix = true }
      local conn = assert(mj.connect(server.url))
      conn:set("key", "value")
      for _ = 1, 20 do
        local options = { ttl = 1 }
        local p = conn:pipeline():get("key"):get("key"):set("key", "value", options)
        options.ttl = "soon"
        assert.has_error(function() p:run() end)
        p = nil -- luacheck: ignore
        collectgarbage()
        assert.equal("value", conn:get("key"))
      end
      conn:close()
    end))

  it("a pipeline that was interrupted sends nothing twice", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("timeout=30s")))
    conn:set("n", "0")
    server:pause()
    local p = conn:pipeline():incr("n")
    failed("timeout", mj.deadline(0.1, function() return p:run() end))
    server:resume()
    assert.same({ "1" }, { unpack(p:get("n"):run()) })
    conn:close()
  end))

  it("a task that throws on the room it was given leaves it to the next", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server:with("max_inflight=1&timeout=30s")))
    local options = { ttl = 1 }
    server:pause()
    local first = mj.spawn(function() return conn:get("a") end)
    local second = mj.spawn(function() return conn:set("b", "1", options) end)
    local third = mj.spawn(function() return conn:add("c", "1") end)
    wait.until_true(5, "two to be parked", function() return conn:counters().parked == 2 end)
    options.ttl = "soon"
    server:resume()
    first:wait()
    assert.truthy(select(2, second:wait()))
    assert.is_true(third:wait(10))
    conn:close()
  end))

  it("closes also where it cannot wait", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    conn:set("key", "value", { quiet = true })
    pcall(table.sort, { 1, 2 }, function(a, b)
      conn:close()
      return a < b
    end)
    assert.is_true(is_closed(conn))
  end))

  it("replies that came while this process stood still are no timeouts", cleaned(function()
    local server = memcached.start { unix = true }
    store(server, { key = ("v"):rep(400) })
    local conn = assert(mj.connect(server:with("timeout=200ms")))
    local tasks = spawn_gets(conn, 120)
    mj.spawn(function()
      mj.sleep(0.0001)
      local ends = posix.now() + 0.4
      while posix.now() < ends do end -- luacheck: ignore
    end)
    for _, task in ipairs(tasks) do assert.equal(("v"):rep(400), (task:wait())) end
    conn:close()
  end))

  it("{ into } takes a real buffer alone, whatever its methods are", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    conn:set("key", "value")
    local fake = newproxy(true)
    getmetatable(fake).__index = { reserve = function() return nil, 10 end, commit = print }
    getmetatable(fake).__len = function() return 0 end
    assert.has_error(function() conn:get("key", { into = fake }) end)
    conn:close()
  end))

  it("keeps its finalizer out of the script's reach", cleaned(function()
    local server = memcached.start { unix = true }
    local conn = assert(mj.connect(server.url))
    assert.is_false(getmetatable(conn))
    conn:close()
  end))
end)
