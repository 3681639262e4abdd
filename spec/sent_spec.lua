-- What an error says of its request: how far it came (phase), whether the server may have acted
-- (sent), and whether the same call may be made again (retryable). One table holds all of it
-- (support/sent_rows.lua), and the judge is what the server really received.

local errors = require "moonjay.errors"
local hand = require "spec.support.hand"
local heard = require "spec.support.heard"
local measured = require "spec.support.measured"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local rows = require "spec.support.sent_rows"
local standing = require "spec.support.standing"
local wait = require "spec.support.wait"

local PROTOCOLS, CARRIERS = { "meta", "ascii" }, { "call", "pipeline" }

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

local function complain(how, place, op, text, ...)
  error(("%s, %s, %s: "):format(how, place, op) .. text:format(...), 0)
end

-- Holds one error against the rows of how it was provoked.
local function check(how, place, op, err)
  if not errors.is(err) then complain(how, place, op, "no error, but %s", tostring(err)) end
  local row, complaint = rows.find(how, place, err)
  if not row then complain(how, place, op, "%s", complaint) end
  if err.retryable ~= rows.retryable(row, op, standing.repeatable[op]) then
    complain(how, place, op, "retryable is %s in %s", tostring(err.retryable), tostring(err))
  end
  return row
end

-- A spec that is named by how its errors are provoked, and meets every row about it.
local function spec(how, fn)
  it(how, cleaned(function()
    if fn(how) == "skipped" then return end
    local row = rows.unmet(how)
    assert(row == nil, row and ("no error is %s, phase %s, sent %s, where it was %s"):format(
      row.kind, row.phase, row.sent, row.place))
  end))
end

-- ---- requests that stand in line ----

local function play(how, options, happen)
  local stage = standing.start(options)
  happen(stage)
  local results, have = stage:finish()
  local seen = {}
  for _, result in ipairs(results) do
    local place = result.place
    if result.key == "written/get" and rows.has(how, "oldest") then place = "oldest" end
    local row = check(how, place, result.op, result.err)
    seen[result.place] = true
    if result.key then
      -- A multi-get's stands under its key; a cancel's is told without, where it was parked.
      if result.err.key ~= result.key and result.op ~= "get_many" and
        result.err.kind ~= "cancelled" and not options.within then
        complain(how, place, result.op, "its key is %s", tostring(result.err.key))
      end
      if not rows.fits(row, have[result.key]) then
        complain(how, place, result.op, "%s; the server has %s of it", tostring(result.err),
          have[result.key] or "nothing")
      end
    end
  end
  for place in pairs(stage.places) do assert(seen[place], how .. ": nothing " .. place) end
end

-- Every op that can be half written, and the quiet request at every place, over both protocols
-- and by both carriers.
local function variants(quiet)
  local list = {}
  local bigs, places = { "set", "append", "cas" }, { "written", "behind", "parked" }
  for _, protocol in ipairs(PROTOCOLS) do
    for _, carrier in ipairs(CARRIERS) do
      for i, big in ipairs(bigs) do
        list[#list + 1] = {
          protocol = protocol, carrier = carrier, big = big, quiet = quiet and places[i] or nil,
        }
      end
    end
  end
  return list
end

local function standing_spec(how, happen, options)
  options = options or {}
  spec(how, function()
    local tasks = {}
    for i, variant in ipairs(variants(not options.no_quiet)) do
      for name, value in pairs(options) do variant[name] = value end
      tasks[i] = mj.spawn(play, how, variant, happen)
    end
    local _, err = mj.all(tasks)
    assert(err == nil, tostring(err))
  end)
end

describe("the error of requests at every place of a connection, when", function()
  local function nothing() end
  standing_spec("their time is up", nothing, { timeout = "1s" })
  standing_spec("nothing comes any more", nothing, { stall = "1s" })
  standing_spec("their tasks are cancelled", function(stage) stage:cancel() end)
  -- The half written one is the last: giving it up costs the connection.
  standing_spec("a deadline of the script's passes", nothing, {
    no_quiet = true,
    within = { written = 0.3, parked = 0.3, behind = 0.3, ["half written"] = 2 },
  })
  standing_spec("the server closes", function(stage) stage:end_server(false) end)
  standing_spec("the server resets", function(stage) stage:end_server(true) end)
  standing_spec("the server closes in a value", function(stage)
    stage:reply(10, "abc")
    stage:end_server(false)
  end)
  standing_spec("the server resets in a value", function(stage)
    stage:reply(10, "abc")
    stage:end_server(true)
  end)
  standing_spec("the server closes in a line", function(stage)
    stage.peer:send "VA"
    stage:end_server(false)
  end)
  standing_spec("their time is up in a value", function(stage)
    stage:reply(10, "abc")
  end, { timeout = "1s", no_quiet = true })
  standing_spec("their tasks are cancelled in a value", function(stage)
    stage:reply(10, "abc")
    wait.until_true(10, "the value to begin", function()
      return stage.conn:counters().bytes_read > 0
    end)
    stage:cancel()
  end, { no_quiet = true })
  standing_spec("a reply makes no sense", function(stage)
    stage.peer:send "NONSENSE\r\n"
  end)
  standing_spec("a value does not end where it should", function(stage)
    stage:reply(1, "xyz\r\n")
  end)
  standing_spec("a reply announces too much", function(stage)
    stage:reply("9999999999999999999")
  end)
  standing_spec("the script closes", function(stage)
    stage.conn:close()
  end, { no_quiet = true })
end)

-- ---- one request ----

-- Each op over both protocols by both carriers. ask(conn, key, options...) gives its error.
local function each_op(fn)
  for _, protocol in ipairs(PROTOCOLS) do
    for _, carrier in ipairs(CARRIERS) do
      for _, op in ipairs(standing.OPS) do
        fn(protocol, op[1], function(conn, key, ...)
          return standing.ask_one(conn, carrier, op, key, ...)
        end)
      end
    end
  end
end

local function no_trace(peer, key)
  local have = heard.of((peer:received()))
  assert(have[key] == nil, "the server has seen " .. key)
end

describe("the error of a request, when", function()
  -- A big quiet one is half written, and has no deadline; the request stands behind it.
  local function behind(protocol, options)
    local peer = hand.listen { rcvbuf = 4096 }
    local conn = peer:connect(("protocol=%s&send_buffer=4096&stall_timeout=60s&%s"):format(
      protocol, options))
    assert(conn:set("big", ("x"):rep(200000), { quiet = true }))
    wait.until_true(10, "a part to leave", function()
      return conn:counters().bytes_written > 0
    end)
    return peer, conn
  end

  -- In one world the server reads on and has it whole; in the other it never has a byte.
  local function in_line(how, options, give_up)
    for _, protocol in ipairs(PROTOCOLS) do
      for _, reads_on in ipairs { true, false } do
        local peer, conn = behind(protocol, options)
        local task = mj.spawn(function() return conn:incr("counter") end)
        mj.sleep(0)
        give_up(task)
        local _, err = task:wait()
        check(how, "behind", "incr", err)
        assert.is_true(conn:is_open())
        if reads_on then
          wait.until_true(10, "the rest to come", function()
            return heard.of((peer:received())).counter == "whole"
          end)
        else
          no_trace(peer, "counter")
        end
        peer:close(true)
      end
    end
  end

  spec("its time is up in line", function(how)
    in_line(how, "timeout=100ms", function() end)
  end)

  spec("its task is cancelled in line", function(how)
    in_line(how, "timeout=60s", function(task) task:cancel() end)
  end)

  spec("the first write fails", function(how)
    each_op(function(protocol, op, ask)
      if op == "quiet" then return end -- told to on_error, and below
      local peer = hand.listen()
      local conn = peer:connect("protocol=" .. protocol)
      peer:close(true) -- in this same turn
      check(how, "behind", op, ask(conn, "key"))
    end)
    local peer, quiet = hand.listen(), nil
    local conn = peer:connect("", { on_error = function(err) quiet = err end })
    peer:close(true)
    assert(conn:set("key", "value", { quiet = true }))
    wait.until_true(5, "on_error to be called", function() return quiet end)
    check(how, "behind", "quiet", quiet)
  end)

  spec("the server had closed before", function(how)
    local peer = hand.listen()
    local conn = peer:connect ""
    peer:close() -- in this same turn
    check(how, "written", "incr", select(2, conn:incr("key")))
  end)

  -- Both the quiet and the ordinary ones; a classic error names no quiet request.
  local function answered(how, words, kinds)
    each_op(function(protocol, op, ask)
      local quiet, peer = nil, hand.listen()
      local conn = peer:connect("protocol=" .. protocol, {
        on_error = function(err) quiet = err end,
      })
      local err
      if op ~= "quiet" then
        local task = mj.spawn(function() err = ask(conn, "key") end)
        peer:line()
        peer:send(words .. "\r\n")
        assert(task:wait(10) == nil)
      elseif protocol == "meta" and kinds ~= "ordinary" then
        assert(conn:incr("key", 1, { quiet = true }))
        peer:line()
        peer:send(words .. "\r\n")
        while peer:line() ~= "mn" do end
        peer:send("MN\r\n")
        wait.until_true(10, "on_error to be called", function() return quiet end)
        err = quiet
      else
        return
      end
      check(how, "answered", op, err)
    end)
  end

  spec("the server refuses it", function(how) answered(how, "CLIENT_ERROR it will not") end)
  spec("the server fails at it", function(how) answered(how, "SERVER_ERROR out of memory") end)
  spec("the server wants a login", function(how)
    answered(how, "CLIENT_ERROR unauthenticated", "ordinary")
  end)

  local function one_of_two(how, words)
    local peer = hand.listen()
    local conn = peer:connect "timeout=20s"
    local tasks = {}
    for i = 1, 2 do
      tasks[i] = mj.spawn(function() return conn:meta("md", "key" .. i, { "q" }) end)
    end
    peer:lines(3) -- and the fence
    peer:send(words, "\r\nMN\r\n")
    for i = 1, 2 do
      local _, err = tasks[i]:wait(10)
      check(how, "doubted", "meta", err)
    end
    assert.is_true(conn:is_open())
  end

  spec("the server fails at one of two", function(how)
    one_of_two(how, "SERVER_ERROR out of memory")
  end)
  spec("the server refuses one of two", function(how)
    one_of_two(how, "CLIENT_ERROR it will not")
  end)

  -- `ask` as in each_op; prepare(conn, peer) makes it one that is refused.
  local function refused(how, options, key, prepare, ...)
    local more = { n = select("#", ...), ... }
    each_op(function(protocol, op, ask)
      local peer = hand.listen()
      local conn = peer:connect(("protocol=%s&%s"):format(protocol, options))
      if prepare then prepare(conn, peer) end
      local before = conn:counters().bytes_written
      check(how, "refused", op, ask(conn, key, unpack(more, 1, more.n)))
      assert.equal(before, conn:counters().bytes_written)
      if peer.fd then no_trace(peer, key) end
      conn:close()
    end)
  end

  spec("no server takes its key", function(how) refused(how, "", "bad key") end)

  spec("the connection was closed before", function(how)
    refused(how, "", "key", function(conn) conn:close() end)
  end)

  spec("the server had taken its leave before", function(how)
    refused(how, "", "key", function(conn, peer)
      peer:send("SERVER_ERROR shutting down\r\n")
      wait.until_true(10, "the connection to close", function() return not conn:is_open() end)
    end)
  end)

  local OVER = {
    set = function(conn) return conn:set("key", "v", { ttl = 1e12 }) end,
    quiet = function(conn) return conn:set("key", "v", { quiet = true, flags = 2 ^ 32 }) end,
    incr = function(conn) return conn:incr("key", -1) end,
    append = function(conn) return conn:append("key", "v", { flags = -1 }) end,
    cas = function(conn) return conn:cas("key", "v", "no token") end,
  }

  spec("a number is out of range", function(how)
    for _, protocol in ipairs(PROTOCOLS) do
      local peer = hand.listen()
      local conn = peer:connect("protocol=" .. protocol)
      for op, ask in pairs(OVER) do check(how, "refused", op, select(2, ask(conn))) end
      mj.sleep(0)
      no_trace(peer, "key")
    end
  end)

  spec("its value is above max_value", function(how)
    for _, protocol in ipairs(PROTOCOLS) do
      local peer = hand.listen()
      local conn = peer:connect("max_value=10&protocol=" .. protocol)
      for _, op in ipairs { "set", "append" } do
        check(how, "refused", op, select(2, conn[op](conn, "key", ("x"):rep(11))))
      end
      check(how, "refused", "quiet",
        select(2, conn:set("key", ("x"):rep(11), { quiet = true })))
      check(how, "refused", "cas", select(2, conn:cas("key", ("x"):rep(11), "1")))
      mj.sleep(0)
      no_trace(peer, "key")
    end
  end)

  spec("the protocol cannot do it", function(how)
    local peer = hand.listen()
    local conn = peer:connect "protocol=ascii&binary_keys=true"
    check(how, "refused", "get", select(2, conn:get("bad key")))
    check(how, "refused", "incr", select(2, conn:incr("bad key")))
    check(how, "refused", "meta", select(2, conn:meta("mg", "key", { "v" })))
    check(how, "refused", "quiet", select(2, conn:set("bad key", "v", { quiet = true })))
    mj.sleep(0)
    no_trace(peer, "key")
  end)

  -- Whatever waits for `ask` was interrupted before it begins.
  local function interrupted(how, interrupt)
    each_op(function(protocol, op, ask)
      if op == "quiet" then return end -- what is told then is not about the request
      local peer = hand.listen()
      local conn = peer:connect("protocol=" .. protocol)
      local err
      interrupt(function()
        pcall(mj.sleep, 60)
        err = ask(conn, "key")
      end)
      wait.until_true(10, "the call to fail", function() return err end)
      check(how, "refused", op, err)
      no_trace(peer, "key")
    end)
  end

  spec("its task was cancelled before", function(how)
    interrupted(how, function(fn)
      local task = mj.spawn(fn)
      mj.sleep(0)
      task:cancel()
    end)
  end)

  spec("a deadline had passed before", function(how)
    interrupted(how, function(fn) mj.spawn(mj.deadline, 0.001, fn) end)
  end)

  -- Its block does not fit the address space; the value of the other is never looked at.
  spec("there is no memory for its value", function(how)
    if measured.sanitized then
      pending("a sanitizer takes more address space than there may be")
      return "skipped"
    end
    local peer = hand.listen()
    local child = process.start {
      "prlimit", "--as=268435456", "--", program.path, program.script [[
        local mj = require "moonjay"
        local url = arg[1] .. "?protocol=meta&max_value=1g&timeout=30s"
        local conn = assert(mj.connect(url))
        local function ask(place, op, fn, ...)
          local _, err = fn(conn, ...)
          print(place, op, err.kind, err.phase, err.sent, tostring(err.retryable))
        end
        local tasks = { mj.spawn(ask, "oldest", "get", conn.get, "oldest") }
        tasks[2] = mj.spawn(ask, "written", "incr", conn.incr, "later")
        assert(mj.all(tasks))
      ]], peer.url,
    }
    peer.fd = wait.until_true(10, "the client to connect", function()
      return posix.accept(peer.listener)
    end)
    local line = peer:lines(2)[1]
    peer:send("VA 900000000", hand.token(line), "\r\n")
    local text, status = child:finish(20)
    assert.equal(0, status)
    for found in text:gmatch("[^\n]+") do
      local place, op, kind, phase, sent, retryable = found:match(
        "^(%S+)\t(%S+)\t(%S+)\t(%S+)\t(%S+)\t(%S+)$")
      local err = errors.new {
        message = found, kind = kind, phase = phase, sent = sent,
        retryable = retryable == "true",
      }
      check(how, place, op, err)
    end
  end)
end)

describe("answers that had come before the server reset the connection", function()
  it("are given, however many, also when it is a write that notices", cleaned(function()
    local peer, value, tasks = hand.listen(), ("v"):rep(1000), {}
    local conn = peer:connect("timeout=30s")
    for i = 1, 60 do tasks[i] = mj.spawn(function() return conn:get("key:" .. i) end) end
    local replies = {}
    for i, line in ipairs(peer:lines(60)) do
      replies[i] = ("VA 1000%s\r\n%s\r\n"):format(hand.token(line), value)
    end
    local all, from = table.concat(replies), 0
    while from < #all do from = from + assert(posix.send(peer.fd, all, from)) end
    peer:close(true)
    local _, err = conn:incr("key") -- all in one turn: its write is the first to hear of it
    assert.equal("reset", err.kind)
    assert.equal("no", err.sent)
    for i, task in ipairs(tasks) do assert.equal(value, (task:wait(10)), i) end
  end))
end)

-- ---- what maybe means ----

describe("a counter whose incr ended with sent == maybe", function()
  local function ask(protocol, happen)
    local server = memcached.start { unix = true }
    local own = assert(mj.connect(server:with "timeout=60s"))
    local conn = assert(mj.connect(server:with("timeout=300ms&stall_timeout=60s&protocol=" ..
      protocol)))
    assert(own:set("counter", "5"))
    server:pause()
    local _, err = conn:incr("counter")
    assert.equal("timeout", err.kind)
    assert.equal("read", err.phase)
    assert.equal("maybe", err.sent)
    assert.is_false(err.retryable)
    return happen(server, own)
  end

  for _, protocol in ipairs(PROTOCOLS) do
    it("was counted where the server went on, over " .. protocol, cleaned(function()
      ask(protocol, function(server, own)
        server:resume()
        wait.until_true(10, "the server to count", function()
          return own:get("counter") == "6"
        end)
      end)
    end))

    it("was not where the server died, over " .. protocol, cleaned(function()
      ask(protocol, function(server)
        server:restart() -- what it held is gone, and so is the incr
        local again = assert(mj.connect(server.url))
        assert.is_nil(again:get("counter"))
        assert.equal("0", tostring(again:incr("counter", 0, { initial = 0 })))
      end)
    end))
  end
end)
