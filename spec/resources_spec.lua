-- What many requests, tasks and connections take of memory, descriptors and time. The bounds
-- are those of README.md, "What a connection may take".

local measured = require "spec.support.measured"
local memcached = require "spec.support.memcached"
local process = require "spec.support.process"
local program = require "spec.support.program"

local KIB, MIB, BLOCK, OUT = measured.KIB, measured.MIB, measured.BLOCK, measured.OUT
local TASK, PARKED, RECORDED = measured.TASK, measured.PARKED, measured.RECORDED
local ERROR, CONNECTION = measured.ERROR, measured.CONNECTION
local run, check, start_flood = measured.run, measured.check, measured.flood

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      process.stop_all()
      program.clean()
    end)
    fn()
  end
end

-- ---- many requests ----

local MANY, TASKS = measured.many(50000), measured.many(100000)
-- The ring of slots doubles, and is copied; so are the keys and the lines.
local IN_FLIGHT = 2 * 65536 * measured.SLOT + 3 * MANY * 16 + 2 * 2 * OUT

describe("50,000 requests in flight against a stopped server", function()
  -- `ask` asks for MANY keys by `conn` and gives each answer to count().
  local function stopped(ask, held, ended)
    return cleaned(function()
      local server = memcached.start { unix = true }
      local lines, marks = run(([[
        local MANY, kinds, conn = %d, nil, nil
        local function count(value, err)
          local kind = kind_of(value, err)
          kinds[kind] = (kinds[kind] or 0) + 1
        end
        local function ask()
          %s
        end
        local function signal(name) os.execute("kill -" .. name .. " %d") end
        local function play(options, asked)
          kinds, conn = {}, assert(mj.connect(arg[1] .. options))
          signal "STOP"
          mj.spawn(function()
            while conn:counters().inflight < MANY do mj.sleep(0) end
            asked()
          end)
          ask()
          local list = {}
          for kind, number in pairs(kinds) do list[#list + 1] = kind .. " " .. number end
          print(table.concat(list, ", "))
        end
        ready()
        play("?timeout=60s", function() mark "in flight" signal "CONT" end)
        mark "answered"
        local before = os.clock() -- of this process alone: the machine may be busy
        play("?timeout=2s", function() end)
        print(os.clock() - before < %d)
        mark "given up"
        signal "CONT"
        conn = assert(mj.connect(arg[1]))
        print(conn:get("key:1"))
      ]]):format(MANY, ask, server.pid, 3 * measured.slowness), server.url)
      assert.same({ "nil " .. MANY, "timeout " .. MANY, "true", "nil" }, lines)
      check(marks["in flight"], held, 20)
      check(marks["answered"], held, 30)
      check(marks["given up"], held + ended, 40)
    end)
  end

  it("of one pipeline: all are answered when it goes on, or end by their deadline", stopped([[
    local pipeline = conn:pipeline()
    for i = 1, MANY do pipeline:get("key:" .. i) end
    local replies = pipeline:run()
    for i = 1, MANY do count(replies[i], replies.errors[i]) end
  ]], IN_FLIGHT + MANY * RECORDED, MANY * ERROR))

  it("of as many tasks: the same", stopped([[
    local tasks = {}
    for i = 1, MANY do
      tasks[i] = mj.spawn(function() return conn:get("key:" .. i) end)
    end
    for i = 1, MANY do count(tasks[i]:wait()) end
  ]], IN_FLIGHT + MANY * TASK, MANY * ERROR))
end)

describe("a server that takes connections and reads nothing", function()
  it("bounds what a script that writes may hold: quiet ones wait for room", cleaned(function()
    local _, url = start_flood { deaf = true }
    local lines, marks = run([[
      local options = "?protocol=meta&timeout=500ms&stall_timeout=60s"
      local conn = assert(mj.connect(arg[1] .. options))
      local value, sent = ("x"):rep(1000), 0
      ready()
      for i = 1, 100000 do
        local ok, err = conn:set("key:" .. i, value, { quiet = true })
        if not ok then print(kind_of(ok, err), err.phase, err.sent) break end
      end
      print(conn:counters().parked > 0, conn:counters().bytes_written < 100000 * 1000)
    ]], url)
    assert.same({ "timeout\tqueue\tno", "true\ttrue" }, lines)
    check(marks["end"], IN_FLIGHT, 20)
  end))

  it("parks 100,000 tasks that write", cleaned(function()
    local _, url = start_flood { deaf = true }
    local lines, marks = run(([[
      local conn = assert(mj.connect(arg[1] .. "?protocol=meta&timeout=1s&stall_timeout=60s"))
      local value, tasks, kinds = ("x"):rep(1000), {}, {}
      ready()
      for i = 1, %d do
        tasks[i] = mj.spawn(function() return conn:set("key:" .. i, value) end)
      end
      mj.sleep(0)
      mark "parked"
      for i = 1, #tasks do
        local kind = kind_of(tasks[i]:wait())
        kinds[kind] = (kinds[kind] or 0) + 1
      end
      print(kinds.timeout, conn:counters().parked > 0)
    ]]):format(TASKS), url)
    assert.same({ TASKS .. "\ttrue" }, lines)
    check(marks["parked"], IN_FLIGHT + TASKS * (TASK + PARKED), 20)
    check(marks["end"], IN_FLIGHT + TASKS * (TASK + PARKED + ERROR), 20)
  end))

  it("parks large values by reference: one above the limit, no more", cleaned(function()
    local _, url = start_flood { deaf = true }
    local lines, marks = run([[
      local options = "?protocol=meta&timeout=500ms&stall_timeout=60s"
      local conn = assert(mj.connect(arg[1] .. options))
      local value = ("x"):rep(10 * 1024 * 1024)
      ready()
      for i = 1, 20 do
        mj.spawn(function() conn:set("key:" .. i, value) end)
      end
      mj.sleep(0)
      print(conn:counters().inflight, conn:counters().parked)
    ]], url)
    assert.same({ "1\t19" }, lines)
    check(marks["end"], IN_FLIGHT, 20)
  end))
end)

describe("a value of max_value bytes", function()
  for _, direct in ipairs { "true", "false" } do
    it("is there twice, as it is read and as a Lua string; direct_read=" .. direct,
      cleaned(function()
        local _, url = start_flood {
          wait = 1, head = "VA 33554432$O\r\n" .. ("x"):rep(33554432) .. "\r\n",
        }
        local lines, marks = run(([[
          local options = "?protocol=meta&timeout=20s&max_value=32m&direct_read=%s"
          local conn = assert(mj.connect(arg[1] .. options))
          ready()
          print(#conn:get("key"))
        ]]):format(direct), url)
        assert.same({ "33554432" }, lines)
        check(marks["end"], 2 * 32 * MIB + BLOCK, 20)
      end))
  end
end)

describe("a value of max_value + 1 bytes", function()
  it("is refused before the wire, and costs nothing", cleaned(function()
    local server = memcached.start { unix = true }
    local lines, marks = run([[
      local conn = assert(mj.connect(arg[1]))
      local value = ("x"):rep(1024 * 1024 + 1)
      ready()
      local before = conn:counters().bytes_written
      for _, verb in ipairs { "set", "add", "append" } do
        for _ = 1, 100 do
          local ok, err = conn[verb](conn, "key", value)
          assert(ok == nil and err.kind == "too_large" and err.sent == "no", tostring(err))
        end
      end
      print(conn:counters().bytes_written - before, conn:is_open())
    ]], server:with("max_value=1m"))
    assert.same({ "0\ttrue" }, lines)
    check(marks["end"], BLOCK, 5)
  end))
end)

-- ---- descriptors and connections ----

describe("24 descriptors", function()
  it("are used up by connections: the next is unreachable, the others go on", cleaned(function()
    local server = memcached.start()
    local lines, marks = run([[
      ready()
      local conns, err = {}, nil
      while true do
        local conn
        conn, err = mj.connect(arg[1])
        if not conn then break end
        conns[#conns + 1] = conn
      end
      print(err.kind, err.phase, err.sent, err.retryable, #conns >= 14 and #conns <= 20)
      print((err.message:find("descriptors", 1, true)) ~= nil)
      for i, conn in ipairs(conns) do
        assert(conn:set("key" .. i, "value"))
        assert(conn:get("key" .. i) == "value")
      end
      -- A name needs descriptors of its own.
      print(kind_of(mj.connect((arg[1]:gsub("127.0.0.1", "localhost")))))
      for i = 1, 50 do
        local tasks = {}
        for j = 1, 20 do tasks[j] = mj.spawn(mj.connect, arg[1]) end
        for j = 1, 20 do
          local none, why = tasks[j]:wait()
          assert(none == nil and why.kind == "unreachable", tostring(why))
        end
      end
      conns[1]:close()
      conns[1] = assert(mj.connect(arg[1]))
      assert(conns[1]:get("key1") == "value")
      print "on"
    ]], server.url, { "prlimit", "--nofile=24:24", "--" })
    assert.equal("unreachable\tconnect\tno\ttrue\ttrue", lines[1])
    assert.equal("true", lines[2])
    assert.truthy(lines[3] == "resolve" or lines[3] == "unreachable", lines[3])
    assert.equal("on", lines[4])
    check(marks["end"], 24 * 16 * KIB, 20)
  end))
end)

describe("memcached at its connection limit", function()
  -- It takes no more than 20 descriptors, its own among them.
  local function connect_to(args, options, wanted)
    return cleaned(function()
      local server = memcached.start { args = args }
      local lines, marks = run([[
        ready()
        local conns, kinds, tasks = {}, {}, {}
        for i = 1, 40 do
          tasks[i] = mj.spawn(function()
            local conn, err = mj.connect(arg[1])
            local value
            if conn then value, err = conn:get("key") end
            if err then
              kinds[err.kind] = (kinds[err.kind] or 0) + 1
              return
            end
            conns[#conns + 1] = conn
          end)
        end
        for i = 1, 40 do assert(tasks[i]:wait(20) == nil) end
        for kind in pairs(kinds) do print(kind) end
        assert(#conns >= 3 and #conns < 20, #conns)
        for _, conn in ipairs(conns) do assert(conn:set("key", "value")) end
        for i = 2, #conns do conns[i]:close() end
        local conn -- the server notices shortly
        repeat
          mj.sleep(0.01)
          conn = mj.connect(arg[1])
        until conn and conn:get("key") == "value"
        print "on"
      ]], server:with(options))
      assert.same({ wanted, "on" }, lines)
      check(marks["end"], 40 * 24 * KIB, 20)
    end)
  end

  it("is named by its own words when it says them", connect_to(
    { "-c", "20", "-t", "1" }, "timeout=5s", "server_error"))
  it("is named by its own words, also where no handshake asks", connect_to(
    { "-c", "20", "-t", "1" }, "timeout=5s&protocol=meta", "server_error"))
  it("is a connection that takes too long when it takes no more", connect_to(
    { "-c", "20", "-t", "1", "-o", "no_maxconns_fast" },
    "timeout=5s&connect_timeout=300ms", "connect_timeout"))
end)

describe("a thousand connections", function()
  it("to a dead port are refused, and leave nothing", cleaned(function()
    local lines, marks = run([[
      local function descriptors()
        local count = 0
        for _ in io.popen("ls /proc/self/fd"):lines() do count = count + 1 end
        return count
      end
      local before = descriptors()
      ready()
      local tasks = {}
      for i = 1, 1000 do tasks[i] = mj.spawn(mj.connect, arg[1]) end
      local kinds = {}
      for i = 1, 1000 do
        local kind = kind_of(tasks[i]:wait())
        kinds[kind] = (kinds[kind] or 0) + 1
      end
      print(kinds.connect_refused, descriptors() - before)
    ]], "memcache://127.0.0.1:" .. memcached.free_port(), { "prlimit", "--nofile=2048", "--" })
    assert.same({ "1000\t0" }, lines)
    check(marks["end"], 1000 * (TASK + ERROR + CONNECTION), 20)
  end))

  it("to a server are open at once", cleaned(function()
    local server = memcached.start { unix = true, args = { "-c", "2048" } }
    local lines, marks = run([[
      ready()
      local conns = {}
      for i = 1, 1000 do conns[i] = assert(mj.connect(arg[1])) end
      for i = 1, 1000 do assert(conns[i]:set("key", "value")) end
      mark "idle"
      for i = 1, 1000 do conns[i]:close() end
    ]], server.url, { "prlimit", "--nofile=2048", "--" })
    assert.same({}, lines)
    check(marks["idle"], 1000 * CONNECTION, 20)
  end))
end)

describe("10,000 tasks", function()
  it("each with a deadline end by it", cleaned(function()
    local _, url = start_flood { wait = 1 }
    local lines, marks = run([[
      local conn = assert(mj.connect(arg[1] .. "?protocol=meta&timeout=60s"))
      ready()
      local tasks, kinds, started = {}, {}, mj.now()
      for i = 1, 10000 do
        tasks[i] = mj.spawn(mj.deadline, 0.2 + i / 100000, conn.get, conn, "key:" .. i)
      end
      mj.sleep(0)
      mark "waiting"
      for i = 1, 10000 do
        local kind = kind_of(tasks[i]:wait())
        kinds[kind] = (kinds[kind] or 0) + 1
      end
      print(kinds.timeout)
    ]], url)
    assert.same({ "10000" }, lines)
    check(marks["waiting"], 10000 * (TASK + 512) + IN_FLIGHT, 10)
    check(marks["end"], 10000 * (TASK + 512 + ERROR) + IN_FLIGHT, 10)
  end))
end)
