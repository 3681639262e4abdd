-- Items: how long they live, and those that are only promised.

local memcached = require "spec.support.memcached"
local mj = require "moonjay"

local function connected(fn)
  return function()
    finally(memcached.stop_all)
    local server = memcached.start { unix = true }
    fn(assert(mj.connect(server:with("timeout=30s"))), server)
  end
end

describe("the ttl of an item", function()
  it("is the new one where the item is touched as it is read", connected(function(conn)
    conn:set("key", "value", { ttl = 100000 })
    local item = conn:item("key", { touch = 500 })
    assert.truthy(item.ttl <= 500 and item.ttl > 400, item.ttl)
    item = conn:item("key")
    assert.truthy(item.ttl <= 500 and item.ttl > 400, item.ttl)
    conn:close()
  end))

  it("is never guessed: touch and gat without one are thrown", connected(function(conn, server)
    for _, protocol in ipairs { "meta", "ascii" } do
      local other = assert(mj.connect(server:with("protocol=" .. protocol)))
      other:set("key", "value", { ttl = 100000 })
      for _, name in ipairs { "touch", "gat" } do
        local ok, err = pcall(other[name], other, "key")
        assert.is_false(ok, name)
        assert.truthy(tostring(err):find("ttl", 1, true), tostring(err))
        assert.has_error(function() other[name](other, "key", "60") end)
        assert.has_error(function() other:pipeline()[name](other:pipeline(), "key") end)
      end
      other:close()
    end
    assert.truthy(conn:item("key").ttl > 90000) -- untouched
    conn:close()
  end))

  it("is 0 for ever, and flush_all needs none", connected(function(conn)
    conn:set("key", "value", { ttl = 100000 })
    assert.is_true(conn:touch("key", 0)) -- 0: for ever
    assert.equal(0, conn:item("key").ttl)
    assert.is_true(conn:flush_all())
    assert.is_nil(conn:get("key"))
    conn:close()
  end))
end)

describe("a stub that a lease left", function()
  it("is a miss, and counted as one", connected(function(conn)
    local won = conn:meta("mg", "key", { "v", "N30" })
    assert.truthy(won)
    local before = conn:counters()
    assert.is_nil(conn:get("key"))
    assert.is_nil(conn:item("key"))
    local after = conn:counters()
    assert.equal(0, after.hits - before.hits)
    assert.equal(2, after.misses - before.misses)
    conn:set("key", "")
    assert.equal("", conn:get("key"))
    after = conn:counters()
    assert.equal(1, after.hits - before.hits)
    assert.equal(2, after.misses - before.misses)
    conn:close()
  end))
end)
