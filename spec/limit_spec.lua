-- The floor of bench: it counts what the server counts, and believes no wrong answer.

local cjson = require "cjson"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

local SECONDS = 60 -- for a run to end: it gives up by itself after 5
local LIMIT = program.path:match("^(.*)/") .. "/bench/limit"

local function start(...)
  local words = { LIMIT, errors = true }
  for _, word in ipairs { ... } do words[#words + 1] = tostring(word) end
  return process.start(words)
end

local function run(...)
  return start(...):finish(SECONDS)
end

describe("the floor", function()
  teardown(function()
    process.stop_all()
    memcached.stop_all()
  end)

  describe("with a real server", function()
    local server, conn

    setup(function()
      server = memcached.start { args = { "-t", "1", "-I", "2m" } }
      conn = mj.check(mj.connect(server.url))
    end)

    local function counts()
      local stats = mj.check(conn:stats())
      return { get = tonumber(stats.cmd_get), hits = tonumber(stats.get_hits),
               set = tonumber(stats.cmd_set) }
    end

    -- Runs it and checks the line; returns it, and by how much the server's counts grew.
    local function measured(...)
      local before = counts()
      local text, status, errors = run(...)
      assert.same({ "", 0 }, { errors, status })
      local line, after = cjson.decode(text), counts()
      for _, name in ipairs { "seconds", "user", "system", "voluntary", "involuntary" } do
        assert.is_number(line[name])
      end
      assert.is_true(line.operations > 0 and line.operations <= line.answered)
      assert.is_true(line.calls > 0)
      for name, value in pairs(before) do after[name] = after[name] - value end
      assert.equal(after.get, after.hits)
      return line, after
    end

    -- Of each workload: how many values it stores; whether it gets, sets or does both.
    for name, of in pairs {
      P1 = { 1, "get" }, P2 = { 100, "get" }, P3 = { 100, "get" }, P4a = { 1, "set" },
      P4b = { 100, "set" }, P5 = { 1, "get" }, P6 = { 1, "get" }, P7 = { 10, "both" },
    } do
      it("counts in " .. name .. " what the server counts", function()
        local line, grown = measured(name, server.host, server.port, 0.05)
        assert.equal(name, line.workload)
        assert.equal(line.answered + of[1], grown.get + grown.set)
        assert.equal(of[2] == "set" and 0 or line.answered, of[2] == "both"
          and grown.get + grown.set - of[1] or grown.get)
      end)
    end

    it("makes one request in ten a set in mixed", function()
      local _, grown = measured("mixed", "--connections", 10, server.host, server.port, 0.05)
      local sets = grown.set - 10
      assert.is_true(math.abs(9 * sets - grown.get) <= 100)
    end)

    it("takes depth, connections and size for every mode", function()
      for _, mode in ipairs { "get", "mg", "set", "ms", "multi-get", "mixed", "large" } do
        local line = measured(mode, "--depth", "7", "--connections", "3", "--size", "3000",
          "--gather", "5", server.host, server.port, "--seconds", "0.05")
        assert.same({ 7, 3, 3000 }, { line.depth, line.connections, line.size })
      end
    end)

    it("sends and receives once a turn", function()
      local line = measured("P1", server.host, server.port, 0.05)
      assert.equal(2 * line.operations, line.calls)
    end)

    it("speaks over a unix socket", function()
      local other = memcached.start { unix = true }
      local text, status = run("P2", other.path, "0", "0.05")
      assert.equal(0, status)
      assert.is_true(cjson.decode(text).operations > 0)
    end)

    it("says that a value is too large for the server", function()
      local text, status, errors = run("get", "--size", "3000000", server.host, server.port)
      assert.same({ "", 1 }, { text, status })
      assert.matches("SERVER_ERROR object too large", errors)
    end)
  end)

  describe("with a server that is wrong", function()
    local listener, port
    local fds = {}

    setup(function() listener, port = assert(posix.listen {}) end)

    after_each(function()
      for _, fd in ipairs(fds) do posix.close(fd) end
      fds = {}
    end)

    teardown(function() posix.close(listener) end)

    -- Takes a connection, waits for a request that ends so, and answers it.
    local function answer(ending, reply)
      local fd = wait.until_true(SECONDS, "a connection", function()
        return posix.accept(listener)
      end)
      fds[#fds + 1] = fd
      local text = ""
      wait.until_true(SECONDS, "a request", function()
        text = text .. (posix.recv(fd) or "")
        return text:sub(-#ending) == ending
      end)
      posix.send(fd, reply, 0)
      return fd
    end

    -- P1 stores one value, on a connection of its own, and then gets it.
    local function get_answered(reply, cut)
      local child = start("P1", "127.0.0.1", port, "0.05")
      answer("bench:00000\r\n", "STORED\r\n")
      local fd = answer("get bench:00000\r\n", reply)
      if cut then posix.shutdown_write(fd) end
      return child:finish(SECONDS)
    end

    local function but(text, old, new, most) return (text:gsub(old, new, most)) end
    local key = "bench:00000"
    local value = key .. ("."):rep(78) .. key
    local right = ("VALUE %s 0 100\r\n%s\r\nEND\r\n"):format(key, value)

    for what, case in pairs {
      garbage = { "HELLO\r\n", "the server said HELLO" },
      ["an error"] = { "SERVER_ERROR out of memory\r\n", "said SERVER_ERROR out of memory" },
      ["a miss"] = { "END\r\n", "the server said END" },
      ["the value of another key"] = {
        but(right, "VALUE bench:00000", "VALUE bench:00001"), "said VALUE bench:00001",
      },
      ["a shorter value"] = { but(but(right, " 100", " 99"), "%.", "", 1), "said VALUE" },
      ["a length that wraps around to the right one"] = {
        but(right, "100\r", "18446744073709551716\r"), "0 184467440737095",
      },
      ["a length without its line end"] = { but(right, "100\r\n", "100\rx"), "said VALUE" },
      ["no length"] = { but(right, " 100\r", " \r"), "the server said VALUE" },
      ["another first byte"] = { but(right, "\nb", "\nx"), "said VALUE" },
      ["another last byte"] = { but(right, "0\r\nEND", "1\r\nEND"), "the server said VALUE" },
      ["a value without its line end"] = { but(right, "\r\nEND", "\rxEND"), "said VALUE" },
      ["a reply too many"] = { right .. right, "what nobody had asked" },
    } do
      it("ends without a figure at " .. what, function()
        local text, status, errors = get_answered(case[1])
        assert.same({ "", 1 }, { text, status })
        assert.is_truthy(errors:find(case[2], 1, true), errors)
      end)
    end

    it("ends without a figure where a value is cut", function()
      local text, status, errors = get_answered(right:sub(1, 60), true)
      assert.same({ "", 1 }, { text, status })
      assert.matches("closed the connection with 1 requests unanswered", errors)
    end)

    it("ends without a figure where nobody answers", function()
      local text, status, errors = get_answered ""
      assert.same({ "", 1 }, { text, status })
      assert.equal("limit: the server does not answer\n", errors)
    end)

    it("ends without a figure where nobody listens", function()
      local text, status, errors = run("P1", "127.0.0.1", memcached.free_port(), "0.05")
      assert.same({ "", 1 }, { text, status })
      assert.matches("connect to 127%.0%.0%.1 port %d+: Connection refused", errors)
    end)
  end)

  it("has status 3 for a workload that it does not know", function()
    local text, status, errors = run("D-set", "127.0.0.1", "1", "0.05")
    assert.same({ "", 3, "limit: there is no mode D-set\n" }, { text, status, errors })
  end)

  it("has status 2 for arguments that make no sense", function()
    for _, words in ipairs {
      {}, { "get" }, { "get", "127.0.0.1" }, { "get", "127.0.0.1", "1", "x" },
      { "get", "127.0.0.1", "1", "1", "1" }, { "get", "--depth", "0", "127.0.0.1", "1" },
      { "get", "--depth" }, { "get", "--deep", "1", "127.0.0.1", "1" },
      { "set", "--size", "1e6", "--depth", "1000", "127.0.0.1", "1" },
    } do
      local text, status = run(unpack(words))
      assert.same({ "", 2 }, { text, status })
    end
  end)
end)
