-- The fault proxy itself: what it is told, it does, on either kind of socket.

local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local proxy = require "spec.support.proxy"
local wait = require "spec.support.wait"

local SECONDS = 10 -- for anything that must happen

describe("the fault proxy", function()
  local server, fault

  setup(function()
    server = memcached.start {}
    fault = proxy.start { seed = 7 }
  end)

  teardown(function()
    proxy.stop_all()
    memcached.stop_all()
  end)

  for _, unix in ipairs { false, true } do
    describe(unix and "on a unix socket" or "on a tcp port", function()
      local route, conn

      before_each(function()
        route = fault:route { to = server, unix = unix }
        conn = assert(mj.connect(route:with "protocol=meta&timeout=10s"))
      end)

      after_each(function() conn:close() end)

      -- What a get costs in seconds.
      local function time_get(key)
        local start = mj.now()
        mj.check(conn:get(key))
        return mj.now() - start
      end

      it("passes megabytes both ways, as they are", function()
        local value = ("0123456789abcdef"):rep(65000)
        assert.is_true(conn:set("large", value))
        assert.is_true(value == conn:get("large"))
        assert.equal(1, route:links())
      end)

      it("delays each direction, and keeps the order", function()
        route:set { delay_up = 0.02, delay_down = 0.03 }
        assert.is_true(time_get "nothing" >= 0.05)
        route:set { delay_up = 0, delay_down = 0 }
        local p = conn:pipeline()
        for i = 1, 100 do p:set("order:" .. i, tostring(i)):get("order:" .. i) end
        local replies = p:run()
        for i = 1, 100 do assert.equal(tostring(i), replies[2 * i]) end
      end)

      it("sends a byte at a time", function()
        conn:set("small", ("x"):rep(100))
        route:set { piece_down = 1, gap = 0.0002 }
        local before, reads = fault:counters().pieces, conn:counters().reads
        assert.is_true(time_get "small" >= 0.02)
        assert.is_true(fault:counters().pieces - before > 100)
        assert.is_true(conn:counters().reads - reads > 50)
      end)

      it("stalls, and goes on", function()
        assert.equal(1, route:act("stall", "all", 0.1))
        assert.is_true(time_get "nothing" >= 0.09)
      end)

      it("cuts in the middle of a value, in either direction", function()
        conn:set("value", ("x"):rep(1000))
        local before = fault:counters()
        route:act("cut_value_down", "newest")
        local value, err = conn:get("value")
        assert.is_nil(value)
        assert.matches("in the middle of a reply", err.message)
        conn = assert(mj.connect(route:with "protocol=meta"))
        route:act("cut_value_up", "newest")
        value, err = conn:set("value", ("y"):rep(1000))
        assert.is_nil(value)
        assert.equal("maybe", err.sent)
        local after = fault:counters()
        assert.equal(1, after.cut_values_down - before.cut_values_down)
        assert.equal(1, after.cut_values_up - before.cut_values_up)
      end)

      it("ends a new link after a number of bytes", function()
        route:set { cut_down = 2 }
        local short = assert(mj.connect(route:with "protocol=meta"))
        local fine, err = short:noop()
        assert.is_nil(fine)
        assert.equal("closed", err.kind)
      end)

      it("resets, closes and half closes", function()
        for deed, kind in pairs {
          reset = not unix and "reset" or nil, close = "closed", half_down = "closed",
          half_up = "closed",
        } do
          local victim = assert(mj.connect(route:with "protocol=meta&timeout=10s"))
          victim:noop()
          route:act("stall", "newest", 0.2) -- so that a request is outstanding
          local asking = mj.spawn(function() return victim:get("nothing") end)
          mj.sleep(0)
          assert.equal(1, route:act(deed, "newest"))
          local value, err = asking:wait()
          assert.is_nil(value)
          assert.equal(kind, err.kind, deed)
        end
      end)

      it("says nothing, resets at once, or refuses; and takes clients again", function()
        local again = route:with "protocol=meta&timeout=100ms&connect_timeout=1s"
        route:set { accept = "mute" }
        local mute = assert(mj.connect(again))
        assert.equal("timeout", select(2, mute:get("nothing")).kind)
        route:set { accept = "refuse" }
        assert.equal("connect_refused", select(2, mj.connect(again)).kind)
        route:set { accept = "reset" }
        wait.until_true(SECONDS, "a reset", function()
          local fresh, err = mj.connect(again)
          if fresh then _, err = fresh:noop() end
          return err and (err.kind == "reset" or err.kind == "closed")
        end)
        route:set { accept = "forward" }
        assert.is_true(mj.check(mj.connect(again)):noop())
      end)

      it("lies as it is told, and as often", function()
        conn:set("a", "a first")
        conn:set("b", "b other")
        route:set { lie = "flip", lies = 1 }
        assert.not_equal("a first", conn:get("a"))
        assert.equal("a first", conn:get("a"))
        route:set { lie = "other", lies = 1 }
        conn:get("a")
        assert.equal("a first", conn:get("b"))
        assert.equal("b other", conn:get("b"))
        route:set { lie = "older", lies = 1 }
        conn:get("a")
        conn:set("a", "a later")
        assert.equal("a first", conn:get("a"))
        assert.equal("a later", conn:get("a"))
        route:set { lie = "stored", lies = 1 }
        assert.is_true(conn:add("a", "x"))
        assert.is_false(conn:add("a", "x"))
      end)
    end)
  end
end)
