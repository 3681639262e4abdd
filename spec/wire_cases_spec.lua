-- The "wire" cases: bytes that no real server would send, or not at that moment.

local cases = require "spec.support.cases"
local player = require "spec.support.player_wire"
local process = require "spec.support.process"

describe("wire cases", function()
  after_each(process.stop_all)

  for _, case in ipairs(cases.of_kind("wire")) do
    for _, protocol in ipairs(player.protocols(case)) do
      local name = ("%s %s (%s)"):format(case.id, case.title, protocol)
      local lacks = player.lacks(case)
      if lacks then
        pending(("%s: %s"):format(name, lacks))
      else
        it(name, function() player.play(case, protocol) end)
      end
    end
  end
end)
