-- The player of the net cases itself: what it does not know fails a case by name, and what did
-- not come as expected fails it too. Cases are made up here, all on a real memcached.

local net_place = require "spec.support.net_place"
local player = require "spec.support.player_net"
local process = require "spec.support.process"

local LOAD = { ["do"] = "client_bg", op = "get", key = "a", tasks = 2, ms = 300 }

-- A case of one get, or of these steps.
local function case_of(expected, steps, setup)
  local case = {
    kind = "net", setup = { server = "memcached", preload = { a = "1" } },
    steps = steps or { { ["do"] = "client", op = "get", key = "a" } }, expect = { expected },
  }
  for name, value in pairs(setup or {}) do case.setup[name] = value end
  return case
end

local function reason_of(case)
  local fine, reason = pcall(player.play, case, "meta")
  return not fine and tostring(reason) or "it passed"
end

local function get(more)
  local step = { ["do"] = "client", op = "get", key = "a" }
  for name, value in pairs(more) do step[name] = value end
  return step
end

describe("the player of net cases", function()
  teardown(process.stop_all)

  describe("names what it does not know:", function()
    for what, case in pairs {
      ["a word of the setup"] = case_of({}, nil, { strange = 1 }),
      ["a server"] = case_of({}, nil, { server = "strange" }),
      ["a step"] = case_of({}, { { ["do"] = "strange" } }),
      ["a word of a step"] = case_of({}, { get { strange = 1 } }),
      ["an op"] = case_of({}, { get { op = "strange" } }),
      ["a signal"] = case_of({}, { { ["do"] = "signal", sig = "strange" } }),
      ["an expectation"] = case_of { strange = 1 },
      ["an expectation of a load"] = case_of({ strange = 1 }, { LOAD }),
      ["an expectation beyond the last step"] = case_of({ strange = 1 }, {}),
      ["a place in a text"] = case_of({}, nil, { args = "-p {port} {strange}" }),
    } do
      it(what, function() assert.matches("strange", reason_of(case)) end)
    end

    it("a word of netem", function()
      local fine, reason = pcall(net_place.netem, "delay 1ms strange 5%")
      assert.is_false(fine)
      assert.matches("strange", reason)
    end)
  end)

  describe("fails a case that is not as expected:", function()
    for name, wrong in pairs {
      miss = { miss = true }, value_b64 = { value_b64 = "Mg==" }, value_len = { value_len = 2 },
      error_kind = { error_kind = "timeout" },
      error_kind_any = { error_kind_any = { "closed" } },
      within_ms = { within_ms = 0 }, process_alive = { process_alive = false },
      client_open_sockets_max = { client_open_sockets_max = 0 },
      new_connections = { new_connections = 0 }, any = { any = { { miss = true } } },
      sent = { sent = "no" }, phase = { phase = "connect" },
      never_b64 = { never_b64 = { "MQ==" } },
    } do
      it(name, function()
        assert.matches(name == "any" and "none of" or name, reason_of(case_of(wrong)))
      end)
    end

    for name, wrong in pairs {
      never = { never = { "miss" } }, errors_only = { errors_only = { "timeout" } },
      recovers_within_ms = { recovers_within_ms = 100 },
      max_latency_ms = { max_latency_ms = 0 }, count = { count = 3 },
    } do
      it(name .. ", of a load where nobody listens", function()
        local setup = { server = "none", preload = {} }
        if name == "never" then setup = { preload = {} } end
        assert.matches(name, reason_of(case_of(wrong, { LOAD }, setup)))
      end)
    end

    it("all_value_b64, with one of many wrong", function()
      local steps = { get { op = "pipeline_get", key = "a", count = 3 } }
      assert.equal("it passed", reason_of(case_of({ all_value_b64 = "MQ==" }, steps)))
      assert.matches("result 1", reason_of(case_of({ all_value_b64 = "Mg==" }, steps)))
    end)
  end)

  it("passes a case that is", function()
    local expected = {
      value_b64 = "MQ==", within_ms = 5000, process_alive = true, new_connections = 1,
      client_open_sockets_max = 1, any = true, never = { "miss" }, errors_only = {},
    }
    assert.equal("it passed", reason_of(case_of(expected)))
  end)
end)
