-- How many system calls requests take, as the runtime counts them: those of a connection, and
-- the waits of the loop.

local program = require "spec.support.program"

-- What a script on a private memcached prints.
local function run(text)
  local script = program.script([[
    local mj = require "moonjay"
    local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL"))
    mj.check(conn:set("k", "value"))
    local function count(gets)
      local c = conn:counters()
      local before, waits = c.reads + c.writes, mj.counters().turns
      gets()
      c = conn:counters()
      print(c.reads + c.writes - before, mj.counters().turns - waits)
    end
  ]] .. text)
  local result = program.run("$MOONJAY run --memcached " .. script)
  assert.equal(0, result.status, result.err)
  local calls, waits = result.out:match("^(%d+)%s+(%d+)\n$")
  return tonumber(calls), tonumber(waits)
end

describe("system calls", function()
  it("are two for a request alone: nothing else is watched, so its read is the wait", function()
    local calls, waits = run [[
      count(function() for _ = 1, 200 do assert(conn:get("k") == "value") end end)
    ]]
    assert.is_true(calls >= 400 and calls < 440, calls)
    assert.is_true(waits < 40, waits)
  end)

  it("are three where another connection is open", function()
    local calls, waits = run [[
      local other = mj.check(mj.connect(os.getenv "MEMCACHE_URL"))
      count(function() for _ = 1, 200 do assert(conn:get("k") == "value") end end)
      other:close()
    ]]
    assert.is_true(calls >= 400 and calls < 440, calls)
    assert.is_true(waits >= 200, waits)
  end)
end)
