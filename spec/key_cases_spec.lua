-- The "key" cases: keys, values, times to live, counters and flags, on a real memcached.

local cases = require "spec.support.cases"
local memcached = require "spec.support.memcached"
local player = require "spec.support.player_key"
local process = require "spec.support.process"

describe("key cases", function()
  local server

  setup(function() server = memcached.start { unix = true } end)
  teardown(function()
    memcached.stop_all()
    process.stop_all()
  end)

  for _, case in ipairs(cases.of_kind("key")) do
    for _, protocol in ipairs(player.protocols(case)) do
      it(("%s %s (%s)"):format(case.id, case.title, protocol), function()
        player.play(case, protocol, server)
      end)
    end
  end
end)
