-- { into = buf }: the value goes straight into the script's own buffer, whole or not at all.

local hand = require "spec.support.hand"
local mj = require "moonjay"
local wait = require "spec.support.wait"

local function cleaned(fn)
  return function()
    finally(hand.finish_all)
    fn()
  end
end

local function failed(kind, value, err)
  assert.is_nil(value)
  assert.equal(kind, err and err.kind, tostring(err))
  return err
end

describe("{ into = buf }", function()
  it("a buffer that is used while a value is read into it is no value", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("timeout=5s")
    local half = ("x"):rep(50000)
    local function read_into(buf) return mj.spawn(function()
      return conn:get("key", { into = buf })
    end) end

    local buf = require("string.buffer").new():put("before ")
    local one = read_into(buf)
    peer:send("VA 100000", hand.token(peer:line()), "\r\n", half)
    wait.until_true(5, "half of it to arrive", function() return #buf > 10 end)
    buf:put("meanwhile")
    peer:send(half, "\r\n")
    local err = failed("bad_value", one:wait())
    assert.equal("key", err.key)
    assert.equal("yes", err.sent)

    local fresh = require("string.buffer").new():put("before ")
    local two = read_into(fresh)
    peer:send("VA 100000", hand.token(peer:line()), "\r\n", half)
    wait.until_true(5, "half of it to arrive", function() return #fresh > 10 end)
    two:cancel()
    failed("cancelled", two:wait())
    assert.equal("before ", tostring(fresh))
    conn:close()
  end))

  it("two values that are read into one buffer at a time are never mixed", cleaned(function()
    local peers, conns, tasks = { hand.listen(), hand.listen() }, {}, {}
    local buf = require("string.buffer").new()
    local half = ("x"):rep(50000)
    for i, peer in ipairs(peers) do
      conns[i] = peer:connect("timeout=5s")
      tasks[i] = mj.spawn(function() return conns[i]:get("key", { into = buf }) end)
      peer.token = hand.token(peer:line())
    end
    for i, peer in ipairs(peers) do
      local before = #buf
      peer:send("VA 100000", peer.token, "\r\n", half)
      wait.until_true(5, "half of it to arrive", function() return #buf > before end)
      assert.is_true(#buf > 0, i)
    end
    for _, peer in ipairs(peers) do peer:send(half, "\r\n") end
    failed("bad_value", tasks[1]:wait())
    for _, conn in ipairs(conns) do conn:close() end
  end))
end)
