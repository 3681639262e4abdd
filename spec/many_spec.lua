-- Many keys in one call: what they cost, what is thrown, what check makes of their failures.

local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      hand.finish_all()
    end)
    fn()
  end
end

-- The least processor time of this process that `fn` took in three runs.
local function cost(fn)
  local least = math.huge
  for _ = 1, 3 do
    collectgarbage()
    local started = os.clock()
    fn()
    least = math.min(least, os.clock() - started)
  end
  return least
end

local COUNT = 20000

-- A connection and COUNT keys, which are all there.
local function filled(options)
  local server = memcached.start { unix = true, args = { "-R", "200" } }
  local conn = assert(mj.connect(server:with("timeout=60s&stall_timeout=60s" .. options)))
  local keys, values = {}, {}
  for i = 1, COUNT do
    keys[i] = ("key:%06d"):format(i)
    values[keys[i]] = "x"
  end
  assert(conn:set_many(values))
  return conn, keys
end

local function cost_of_pipeline(conn, keys)
  return cost(function()
    local pipeline = conn:pipeline()
    for _, key in ipairs(keys) do pipeline:get(key) end
    assert.equal(0, pipeline:run().failed)
  end)
end

describe("get_many of 20,000 keys", function()
  it("costs little more than as many gets in a pipeline", cleaned(function()
    local conn, keys = filled("")
    local gets = cost_of_pipeline(conn, keys)
    local many = cost(function()
      local found = conn:get_many(keys)
      assert.equal("x", found[keys[COUNT]])
    end)
    assert.truthy(many < 4 * gets, ("%g s, the gets %g s"):format(many, gets))
    conn:close()
  end))

  it("also with keys that need encoding among them", cleaned(function()
    local conn, keys = filled("&binary_keys=true")
    local gets = cost_of_pipeline(conn, keys)
    for i = 1000, COUNT, 1000 do keys[i] = "b " .. i end
    local many = cost(function()
      local found = conn:get_many(keys)
      assert.equal("x", found[keys[COUNT - 1]])
      assert.is_nil(found[keys[COUNT]])
    end)
    assert.truthy(many < 6 * gets, ("%g s, the gets %g s"):format(many, gets))
    conn:close()
  end))
end)

describe("a table that is no list of keys", function()
  it("is thrown, and not taken for an empty list", cleaned(function()
    local conn = assert(mj.connect(memcached.start { unix = true }.url))
    for _, name in ipairs { "get_many", "delete_many" } do
      for _, keys in ipairs { { a = 1 }, { a = "b" }, { [2] = "b" } } do
        local ok, err = pcall(conn[name], conn, keys)
        assert.is_false(ok, name)
        assert.truthy(tostring(err):find("list of strings", 1, true), tostring(err))
        assert.has_error(function() conn:pipeline()[name](conn:pipeline(), keys) end)
      end
      assert.has_error(function() conn[name](conn, { "a", 2 }) end)
    end
    assert.same({}, (conn:get_many {}))
    conn:close()
  end))

  it("ends also when a metatable has keys without end", cleaned(function()
    local conn = assert(mj.connect(memcached.start { unix = true }.url))
    conn:set("a", "x")
    local asked = 0
    local keys = setmetatable({ "a" }, { __index = function(_, i)
      asked = asked + 1
      assert(asked < 100000, "it goes on and on")
      return "key:" .. tostring(i)
    end })
    assert.same({ a = "x" }, (conn:get_many(keys)))
    conn:close()
  end))
end)

describe("a get_many that throws", function()
  it("leaves its pipeline as it was", cleaned(function()
    local conn = assert(mj.connect(memcached.start { unix = true }.url))
    local keys = {}
    for i = 1, 2500 do keys[i] = "key:" .. i end
    keys[2400] = true
    local pipeline = conn:pipeline():set("a", "1")
    assert.has_error(function() pipeline:get_many(keys) end)
    keys[2400] = "no key"
    local replies = pipeline:get("a"):get_many(keys):get_many { "a" }:incr("a"):run()
    assert.same({ true, "1", nil, { a = "1" }, 2 }, { unpack(replies, 1, replies.n) })
    assert.equal("bad_key", replies.errors[3].kind)
    assert.equal(1, replies.failed)
    conn:close()
  end))
end)

describe("the values of a get_many", function()
  local function answered(keys, reply)
    local peer = hand.listen()
    local conn = peer:connect("timeout=10s")
    local task = mj.spawn(conn.get_many, conn, keys)
    peer:line()
    peer:send(reply)
    return task:wait()
  end

  it("may come in any order, and some not at all", cleaned(function()
    local values = answered({ "a", "bb", "b", "c", "bb" },
      "VALUE c 0 1\r\nC\r\nVALUE b 7 2\r\nBB\r\nVALUE a 0 1\r\nA\r\nEND\r\n")
    assert.same({ a = "A", b = "BB", c = "C" }, values)
  end))

  it("may come as often as their keys were asked", cleaned(function()
    local values = answered({ "a", "b", "a" },
      "VALUE a 0 1\r\nA\r\nVALUE b 0 1\r\nB\r\nVALUE a 0 1\r\nA\r\nEND\r\n")
    assert.same({ a = "A", b = "B" }, values)
  end))

  it("are never those of a key that has one of them within", cleaned(function()
    for _, key in ipairs { "b", "bc", "abc", "ab b", "c", "" } do
      local _, errors = answered({ "ab", "cb" }, "VALUE ab 0 1\r\nA\r\nVALUE " .. key ..
        " 0 1\r\nB\r\nEND\r\n")
      assert.equal("protocol", errors.cb.kind, key)
    end
  end))
end)

describe("mj.check", function()
  it("raises a failure of many keys", cleaned(function()
    local conn = assert(mj.connect(memcached.start { unix = true }.url))
    conn:set("fine", "x")
    local too_large = { fine = "y", large = ("x"):rep(2 * 1024 * 1024) }
    local ok, err = pcall(function() return mj.check(conn:set_many(too_large)) end)
    assert.is_false(ok)
    assert.equal("large", err.key)
    conn:close()
    ok, err = pcall(function() return mj.check(conn:get_many { "fine", "large" }) end)
    assert.is_false(ok)
    assert.equal("closed", err.kind)
  end))

  it("raises one of a call that got other keys", cleaned(function()
    local peer = hand.listen()
    local conn = peer:connect("timeout=10s")
    local task = mj.spawn(function()
      return pcall(function() return mj.check(conn:get_many { "a", "b" }) end)
    end)
    peer:line()
    peer:send("VALUE a 0 1\r\nA\r\n")
    peer:close()
    local ok, err = task:wait()
    assert.is_false(ok)
    assert.equal("closed", err.kind)
  end))

  it("lets through what is no failure", cleaned(function()
    local conn = assert(mj.connect(memcached.start { unix = true }.url))
    conn:set("a", "x")
    assert.same({ a = "x" }, (mj.check(conn:get_many { "a", "none" })))
    assert.same({ 1, { 2 } }, { mj.check(1, { 2 }) })
    assert.same({ 1, { key = "text" } }, { mj.check(1, { key = "text" }) })
    conn:close()
  end))
end)
