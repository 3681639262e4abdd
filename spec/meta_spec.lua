-- What only the meta protocol can do, and what the others say when asked for it.

local memcached = require "spec.support.memcached"
local mj = require "moonjay"

describe("meta", function()
  local server, conn, binary, ascii

  setup(function()
    server = memcached.start { unix = true }
    conn = assert(mj.connect(server:with("protocol=meta")))
    binary = assert(mj.connect(server:with("protocol=meta&binary_keys=true")))
    ascii = assert(mj.connect(server:with("protocol=ascii")))
  end)
  before_each(function() assert(conn:flush_all()) end)
  teardown(function()
    for _, one in ipairs { conn, binary, ascii } do one:close() end
    memcached.stop_all()
  end)

  it("sends flags as they are and gives the reply's flags in order", function()
    assert.same({ rc = "HD", flags = {} }, (conn:meta("ms", "k", { "T100", "F7" }, "value")))
    local reply = conn:meta("mg", "k", { "v", "f", "t", "k", "Oabc" })
    assert.equal("VA", reply.rc)
    assert.equal("value", reply.value)
    assert.same({ "f7", "kk", "Oabc" }, { reply.flags[1], reply.flags[3], reply.flags[4] })
    assert.truthy(reply.flags[2]:find("^t%d+$"))
    assert.equal(4, #reply.flags)
  end)

  it("answers with the server's own code", function()
    assert.equal("EN", conn:meta("mg", "nothing", { "v" }).rc)
    assert.equal("NF", conn:meta("md", "nothing", {}).rc)
    assert.equal("NS", conn:meta("ms", "nothing", { "MR" }, "x").rc)
    assert.equal("NF", conn:meta("ma", "nothing", {}).rc)
    assert.equal("5", conn:meta("ma", "counter", { "N0", "J5", "v" }).value)
    assert.equal("EX", conn:meta("ms", "counter", { "C1" }, "x").rc)
    assert.equal("ME", conn:meta("me", "counter", {}).rc)
  end)

  it("a flag that the server refuses is a client_error, and the connection lives", function()
    local reply, err = conn:meta("mg", "k", { "v", "!" })
    assert.is_nil(reply)
    assert.equal("client_error", err.kind)
    assert.is_true(conn:noop())
  end)

  it("silence is the quiet answer, up to the fence", function()
    conn:set("b", "2")
    local pipeline = conn:pipeline()
    pipeline:meta("mg", "a", { "v", "q" })
    pipeline:meta("mg", "b", { "v", "q" })
    pipeline:meta("ms", "c", { "q" }, "3")
    pipeline:meta("md", "nothing", { "q" })
    pipeline:get("c")
    local replies = pipeline:run()
    assert.equal("EN", replies[1].rc)
    assert.equal("2", replies[2].value)
    assert.equal("HD", replies[3].rc)
    assert.equal("NF", replies[4].rc)
    assert.equal("3", replies[5])
  end)

  it("a quiet request alone is answered too", function()
    assert.equal("EN", conn:meta("mg", "nothing", { "v", "q" }).rc)
  end)

  it("item tells the ttl, the size and whether it was hit before", function()
    conn:set("k", "value", { ttl = 100 })
    local item = conn:item("k")
    assert.truthy(item.ttl > 90 and item.ttl <= 100)
    assert.equal(5, item.size)
    assert.is_false(item.hit_before)
    assert.is_true(conn:item("k").hit_before)
    assert.equal(0, conn:item("k").last_access)
  end)

  it("a lease stub is a miss, a stored empty value is not", function()
    local won = conn:meta("mg", "stub", { "v", "N30" })
    assert.equal("VA", won.rc)
    assert.is_nil((conn:get("stub")))
    assert.is_nil((conn:item("stub")))
    conn:set("empty", "")
    assert.same({ empty = "" }, (conn:get_many { "stub", "empty" }))
  end)

  it("item shows a stale value and who won it", function()
    conn:set("k", "old")
    conn:meta("md", "k", { "I", "T30" })
    local first, second = conn:item("k"), conn:item("k")
    assert.equal("old", first.value)
    assert.is_true(first.stale)
    assert.is_true(first.won)
    assert.is_true(second.stale)
    assert.is_falsy(second.won)
  end)

  it("with binary_keys any 1 to 186 bytes are a key", function()
    local keys = { "a b", "a\r\nb", "\0", ("\0"):rep(186), "plain", "\127", ("k"):rep(250) }
    for i, key in ipairs(keys) do
      assert.is_true(binary:set(key, tostring(i)))
      assert.equal(tostring(i), binary:get(key))
      assert.equal(tostring(i), binary:item(key).value)
      assert.is_true(binary:touch(key, 60))
    end
    local values = binary:get_many(keys)
    for i, key in ipairs(keys) do assert.equal(tostring(i), values[key]) end
    assert.equal(#keys, (binary:delete_many(keys)))
    local value, err = binary:get(("\0"):rep(187))
    assert.is_nil(value)
    assert.equal("bad_key", err.kind)
  end)

  it("ascii says unsupported, and sends nothing", function()
    local before = ascii:counters().bytes_written
    local reply, err = ascii:meta("mg", "k", { "v" })
    assert.is_nil(reply)
    assert.equal("unsupported", err.kind)
    assert.equal("no", err.sent)
    assert.equal(before, ascii:counters().bytes_written)
  end)

  it("binary_keys over ascii is unsupported where a key needs it", function()
    local other, err = mj.connect(server:with("protocol=ascii&binary_keys=true"))
    if other then
      local value
      value, err = other:get("a b")
      assert.is_nil(value)
      assert.equal(0, other:counters().bytes_written)
      other:close()
    end
    assert.equal("unsupported", err.kind)
  end)

  it("a wrong command or flag list is thrown", function()
    assert.has_error(function() conn:meta("xx", "k", {}) end)
    assert.has_error(function() conn:meta("mg", "k", "v") end)
    assert.has_error(function() conn:meta("mg", "k", { 1, {} }) end)
    assert.has_error(function() conn:meta("ms", "k", {}) end)
  end)
end)
