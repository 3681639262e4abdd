-- What an error says of its request: how far it came (phase), whether the server may have acted
-- (sent), and whether the same call may be made again (retryable). One table holds all of it,
-- and the judge is what the server really received.

local errors = require "moonjay.errors"
local hand = require "spec.support.hand"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local process = require "spec.support.process"
local program = require "spec.support.program"
local rows = require "spec.support.sent_rows"
local standing = require "spec.support.standing"

local PROTOCOLS, CARRIERS = { "meta", "ascii" }, { "call", "pipeline" }

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      process.stop_all()
      hand.finish_all()
      program.clean()
    end)
    fn()
  end
end

-- Holds one error against the rows of how it was provoked.
local function check(how, place, op, err)
  local row, complaint = rows.find(how, place, err)
  assert(row, ("%s, %s, %s: %s"):format(how, place, op, complaint))
  local retryable = rows.retryable(row, op)
  assert(err.retryable == retryable, ("%s, %s, %s: retryable is %s in %s"):format(
    how, place, op, tostring(err.retryable), tostring(err)))
  return row
end

-- ---- requests that stand in line ----

local function play(how, options, happen)
  local stage = standing.start(options)
  happen(stage)
  local results, have = stage:finish()
  local seen = {}
  for _, result in ipairs(results) do
    assert(result.err, ("%s, %s, %s: no error"):format(how, result.place, result.op))
    local row = check(how, result.place, result.op, result.err)
    seen[result.place] = true
    if result.key then
      -- A multi-get's stands under its key; a cancel's is told without, where it was parked.
      assert(result.err.key == result.key or result.op == "get_many" or
        result.err.kind == "cancelled", tostring(result.err))
      assert(rows.fits(row, have[result.key]), ("%s, %s: %s; the server has %s"):format(
        how, result.key, tostring(result.err), have[result.key] or "nothing"))
    end
  end
  for place in pairs(stage.places) do assert(seen[place], how .. ": nothing " .. place) end
end

-- Every op that can be half written, and the quiet request at every place, over both protocols
-- and by both carriers.
local function variants(quiet)
  local list = {}
  local bigs, places = { "set", "append", "cas" }, { "written", "behind", "parked" }
  for _, protocol in ipairs(PROTOCOLS) do
    for _, carrier in ipairs(CARRIERS) do
      for i, big in ipairs(bigs) do
        list[#list + 1] = {
          protocol = protocol, carrier = carrier, big = big, quiet = quiet and places[i] or nil,
        }
      end
    end
  end
  return list
end

local function standing_spec(how, happen, options)
  options = options or {}
  it(how, cleaned(function()
    local tasks = {}
    for i, variant in ipairs(variants(not options.no_quiet)) do
      for name, value in pairs(options) do variant[name] = value end
      tasks[i] = mj.spawn(play, how, variant, happen)
    end
    local _, err = mj.all(tasks)
    assert(err == nil, tostring(err))
  end))
end

describe("the error of requests at every place of a connection, when", function()
  local function nothing() end
  standing_spec("their time is up", nothing, { timeout = "1s" })
  standing_spec("nothing comes any more", nothing, { stall = "1s" })
  standing_spec("their tasks are cancelled", function(stage) stage:cancel() end)
  standing_spec("the server closes", function(stage) stage:end_server(false) end)
  standing_spec("the server resets", function(stage) stage:end_server(true) end)
  standing_spec("a reply makes no sense", function(stage)
    stage.peer:send("NONSENSE\r\n")
  end)
  standing_spec("a reply announces too much", function(stage)
    stage.peer:send(stage:announce("9999999999999999999"))
  end)
  standing_spec("the script closes", function(stage)
    stage.conn:close()
  end, { no_quiet = true })
end)

describe("the table of what sent says", function()
  it("is about kinds that exist", function()
    local known = {}
    for _, kind in ipairs(errors.kinds) do known[kind] = true end
    for _, row in ipairs(rows) do assert.is_true(known[row.kind], row.kind) end
  end)
end)
