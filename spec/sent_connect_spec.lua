-- What the errors of mj.connect say: how far it came, and that nothing was sent. The rows are
-- in support/sent_rows.lua, and this file checks that they are complete.

local errors = require "moonjay.errors"
local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local peers = require "spec.support.peers"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local rows = require "spec.support.sent_rows"
local wait = require "spec.support.wait"

-- A spec that is named by how connecting fails; fn gives what mj.connect returned, or threw.
local function spec(how, fn)
  it(how, function()
    local closes = {}
    finally(function()
      for _, close in ipairs(closes) do close() end
      memcached.stop_all()
      process.stop_all()
      hand.finish_all()
      program.clean()
    end)
    local value, err = fn(closes)
    if value == "skipped" then return pending(err) end
    assert.is_nil(value)
    assert(errors.is(err), tostring(err))
    local row, complaint = rows.find(how, "connect", err)
    assert(row, complaint)
    assert.equal(rows.retryable(row, "connect"), err.retryable, tostring(err))
    assert.equal("no", err.sent)
    assert.equal("connect", err.op)
  end)
end

-- What a task that is cancelled, when `ready` says so, throws.
local function cancelled(url, ready)
  local task = mj.spawn(mj.connect, url)
  ready()
  task:cancel()
  return task:wait(10)
end

local function answering(text, options)
  return function()
    local peer = peers.start { { after_line = true, send = text } }
    local user = options and "user:password@" or ""
    return mj.connect((peer:with("connect_timeout=20s"):gsub("//", "//" .. user)))
  end
end

local function leaving(how)
  return function()
    local peer = peers.start({ { after_line = true, close = how } },
      { { after_line = true, close = how } })
    return mj.connect(peer:with("connect_timeout=20s"))
  end
end

-- The kernel takes the connection, nobody else.
local function silent(options)
  local peer = hand.listen()
  return peer.url .. "?" .. options, peer
end

describe("the error of connecting, when", function()
  spec("the URL is wrong", function() return mj.connect("memcache://h:0x") end)
  spec("the transport is not built in", function()
    return mj.connect("memcache+tls://127.0.0.1")
  end)
  spec("the name means nothing", function() return mj.connect("memcache://nothing.invalid") end)
  spec("nobody listens", function()
    return mj.connect("memcache://127.0.0.1:" .. memcached.free_port())
  end)

  -- Faster than any look-up, but for one that is done before the clock is read again.
  spec("the look-up takes too long", function()
    local value, err
    for _ = 1, 50 do
      value, err = mj.connect("memcache://localhost:1?connect_timeout=1us")
      if err and err.phase == "resolve" then break end
    end
    return value, err
  end)

  spec("nobody takes the connection", function(closes)
    local hole = peers.blackhole()
    closes[1] = hole.close
    return mj.connect(hole.url .. "?connect_timeout=100ms")
  end)
  spec("nobody answers the handshake", function()
    return mj.connect((silent "connect_timeout=100ms"))
  end)
  spec("a deadline passes before it is taken", function(closes)
    local hole = peers.blackhole()
    closes[1] = hole.close
    return mj.deadline(0.1, mj.connect, hole.url .. "?connect_timeout=20s")
  end)
  spec("a deadline passes in the handshake", function()
    return mj.deadline(0.1, mj.connect, (silent "connect_timeout=20s"))
  end)

  -- In a network namespace of its own: no route leads out of it.
  spec("there is no way there", function()
    local text, status, problem = process.start {
      "unshare", "-rn", program.path, program.script [[
        local mj = require "moonjay"
        local _, err = mj.connect("memcache://192.0.2.1?connect_timeout=20s")
        print(err.kind, err.phase, err.sent, tostring(err.retryable))
      ]], errors = true,
    }:finish(60)
    if status ~= 0 then return "skipped", "needs root, for a network namespace: " .. problem end
    local kind, phase, sent, retryable = text:match("^(%S+)\t(%S+)\t(%S+)\t(%S+)\n$")
    return nil, errors.new {
      message = text, kind = kind, phase = phase, sent = sent, op = "connect",
      retryable = retryable == "true",
    }
  end)

  spec("no descriptor is left", function()
    local server = memcached.start()
    local text, _, problem = process.start {
      "prlimit", "--nofile=16:16", "--", program.path, program.script [[
        local mj = require "moonjay"
        local conns, err = {}, nil
        repeat conns[#conns + 1], err = mj.connect(arg[1]) until err
        print(err.kind, err.phase, err.sent, tostring(err.retryable))
      ]], server.url, errors = true,
    }:finish(60)
    local kind, phase, sent, retryable = text:match("^(%S+)\t(%S+)\t(%S+)\t(%S+)\n$")
    assert(kind, problem)
    return nil, errors.new {
      message = text, kind = kind, phase = phase, sent = sent, op = "connect",
      retryable = retryable == "true",
    }
  end)

  spec("the server closes in the handshake", leaving "fin")
  spec("the server resets in the handshake", leaving "rst")
  spec("the server is another", answering "HTTP/1.1 400 Bad Request\r\n")
  spec("the login is refused", answering("CLIENT_ERROR authentication failure\r\n", true))
  spec("a login is wanted", answering "CLIENT_ERROR unauthenticated\r\n")
  spec("the server knows no version", answering "MN\r\nERROR\r\n")
  spec("the server is full", answering "ERROR Too many open connections\r\n")

  spec("it is cancelled at once", function()
    local task = mj.spawn(mj.connect, "memcache://127.0.0.1:1")
    mj.spawn(function() task:cancel() end) -- in the same turn, before anything is looked up
    return task:wait(10)
  end)
  spec("it is cancelled before it is taken", function(closes)
    local hole = peers.blackhole()
    closes[1] = hole.close
    return cancelled(hole.url .. "?connect_timeout=20s", function() mj.sleep(0.05) end)
  end)
  spec("it is cancelled in the handshake", function()
    local url, peer = silent "connect_timeout=20s"
    return cancelled(url, function()
      wait.until_true(10, "its first bytes", function()
        peer.fd = peer.fd or posix.accept(peer.listener)
        return peer.fd and peer:received() ~= ""
      end)
    end)
  end)
end)

-- ---- is the table complete? ----

local function text_of(name)
  local file = assert(io.open(name))
  local text = file:read("*a")
  file:close()
  return text
end

-- The enumerators of src/error.h behind this prefix that some source makes an error of.
local function made(prefix)
  local found = {}
  local list = process.start { "sh", "-c", "ls src/*.c" }:finish(10)
  for name in list:gmatch("%S+") do
    if name ~= "src/error.c" and name ~= "src/lua_error.c" then
      for word in text_of(name):gmatch("%f[%w_]" .. prefix .. "([A-Z_]+)%f[^%w_]") do
        found[word:lower()] = true
      end
    end
  end
  return found
end

-- Where each kind may arise: every phase that the sources can give it.
local ARISES = {
  bad_url = "none", bad_key = "none", bad_value = "none", unsupported = "none connect",
  too_large = "none queue write read",
  resolve = "resolve", connect_refused = "connect", unreachable = "connect",
  connect_timeout = "resolve connect handshake",
  auth = "handshake read",
  timeout = "none queue write read",
  closed = "none handshake queue write read",
  reset = "connect handshake queue write read",
  protocol = "handshake queue write read",
  client_error = "handshake read",
  server_error = "none handshake read",
  cancelled = "none resolve connect handshake queue write read",
  no_memory = "none resolve connect handshake queue write read",
}

describe("the table of what errors say", function()
  it("has a row for every kind that the sources can make, and for no other", function()
    local known = made "MJ__"
    for _, kind in ipairs(errors.kinds) do
      assert((ARISES[kind] ~= nil) == (known[kind] == true), kind)
    end
  end)

  it("has a row for every phase in which a kind may arise, and for no other", function()
    for kind, phases in pairs(ARISES) do
      local rest = {}
      for phase in phases:gmatch("%S+") do rest[phase] = true end
      for _, row in ipairs(rows) do
        if row.kind == kind then
          assert(rest[row.phase] ~= nil, kind .. " has a row for phase " .. row.phase)
          rest[row.phase] = false
        end
      end
      for phase, missing in pairs(rest) do
        assert(not missing, ("%s has no row for phase %s"):format(kind, phase))
      end
    end
  end)

  it("has a row for every phase that there is", function()
    local phases = {}
    for _, row in ipairs(rows) do phases[row.phase] = true end
    for phase in pairs(made "MJ__PHASE_") do assert.is_true(phases[phase], phase) end
  end)

  it("says no only where the server has nothing, and yes only where it read", function()
    for _, row in ipairs(rows) do
      if row.sent == "no" then assert.equal("nothing", row.has, row.how) end
      if row.sent == "yes" then assert.equal("read", row.phase, row.how) end
      if row.phase == "none" or row.phase == "connect" or row.phase == "resolve" then
        assert.equal("no", row.sent, row.how)
      end
    end
  end)
end)
