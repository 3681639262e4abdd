-- The "net" cases: servers that are stopped, killed, slow, full or not there. Those that take
-- seconds do so by waiting, so a case is played over all its protocols at the same time.

local cases = require "spec.support.cases"
local mj = require "moonjay"
local player = require "spec.support.player_net"
local process = require "spec.support.process"

describe("net cases", function()
  teardown(process.stop_all)

  for _, case in ipairs(cases.of_kind("net")) do
    local tasks = {}

    local function start_all()
      for _, protocol in ipairs(player.protocols(case)) do
        tasks[protocol] = mj.spawn(function()
          local fine, reason = pcall(player.play, case, protocol)
          return { fine = fine, reason = reason }
        end)
      end
    end

    for _, protocol in ipairs(player.protocols(case)) do
      local name = ("%s %s (%s)"):format(case.id, case.title, protocol)
      local lacks = player.lacks(case)
      if lacks then
        pending(("%s: %s"):format(name, lacks))
      else
        it(name, function()
          if not tasks[protocol] then start_all() end
          local played = tasks[protocol]:wait()
          if not played.fine then error(played.reason, 0) end
        end)
      end
    end
  end
end)
