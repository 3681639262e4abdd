-- The "script" cases: whole scripts, each in a moonjay of its own.

local cases = require "spec.support.cases"
local memcached = require "spec.support.memcached"
local player = require "spec.support.player_script"
local process = require "spec.support.process"

describe("script cases", function()
  local server

  setup(function() server = memcached.start { unix = true } end)
  teardown(function()
    memcached.stop_all()
    process.stop_all()
  end)

  for _, case in ipairs(cases.of_kind("script")) do
    local name = ("%s %s"):format(case.id, case.title)
    local lacks = player.lacks(case)
    if lacks then
      pending(("%s: %s"):format(name, lacks))
    else
      it(name, function() player.play(case, server) end)
    end
  end
end)
