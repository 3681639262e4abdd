-- The torture run (`make torture`), for three seconds; and that its judges can see what they
-- look for: each of them is shown a wrong answer, and the proxy tells lies of every kind.

local Appendix = require "spec.torture.appendix"
local Counter = require "spec.torture.counter"
local Lane = require "spec.torture.lane"
local mj = require "moonjay"
local moves = require "spec.torture.moves"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local Pulse = require "spec.torture.pulse"
local Race = require "spec.torture.race"
local Random = require "spec.torture.random"
local Register = require "spec.torture.register"
local Report = require "spec.torture.report"
local values = require "spec.torture.values"

local SECONDS = 60 -- for a run to end
local KEEPER = { name = "keeper" }
local LOSSY = { name = "lossy", lossy = true }

-- ---- the run ----

-- Runs a moonjay of its own: its exit status, and what it said.
local function torture(...)
  local child = process.start { program.path, "spec/torture/run.lua", errors = true, ... }
  local text, status, errors = child:finish(SECONDS)
  return status, text .. errors
end

local function wrong_answers(text)
  return tonumber(text:match("wrong answers: (%d+)   late"))
end

describe("a torture run", function()
  teardown(process.stop_all)

  it("sees nothing wrong in three seconds of faults", function()
    local status, text = torture("3", "1234", "tasks=150", "pace=0.3", "short=yes")
    assert.equal(0, status, text)
    assert.equal(0, wrong_answers(text))
    assert.matches("torture: seed 1234: passed", text)
  end)

  for lie, what in pairs {
    flip = "a value with a wrong byte", older = "an old value", other = "another key's value",
    stored = "a write that was not done",
  } do
    it("would see " .. what, function()
      local status, text = torture("20", "5", "tasks=60", "calm=yes", "till=wrong",
        "lie=" .. lie)
      assert.equal(1, status, text)
      assert.is_true(wrong_answers(text) > 0, text)
    end)
  end
end)

-- ---- the judges ----

-- A connection, and calls on it: each begins when it is made, and ends at once.
local function new_link()
  return { fence = 0, lane = { url = "memcache://nowhere" } }
end

local function call(link)
  return {
    op = "test", link = link, lane = link.lane, started = Lane.stamp(), ended = Lane.stamp(),
  }
end

-- A call that was answered, and so lets nothing of its connection that is older come later.
local function answered(link)
  local out = call(link)
  Lane.answered(out)
  return out
end

local MAYBE = mj.errors.new {
  kind = "timeout", phase = "read", sent = "maybe", message = "in doubt",
}
local NO = mj.errors.new { kind = "timeout", sent = "no", message = "never sent" }

local function new_report() return Report.new { seed = 1 } end

describe("the judge of a register", function()
  local report, link, register

  -- A write that is acknowledged, or in doubt: its value.
  local function written(err)
    register:settle()
    local version, value = register:create(100)
    local out = call(link)
    if err then
      register:failed(out, version, err)
    else
      Lane.answered(out)
      register:wrote(out, version)
    end
    return value
  end

  local function saw(value)
    register:settle()
    if value then register:saw(answered(link), value) else register:missed(answered(link)) end
    return report.counts.wrong
  end

  before_each(function()
    report, link = new_report(), new_link()
    register = Register.new("key", KEEPER, report)
  end)

  it("takes what was written last", function()
    written()
    assert.equal(0, saw(written()))
  end)

  it("sees an older value, a foreign one, a changed one and a cut one", function()
    local old = written()
    local new = written()
    assert.equal(1, saw(old))
    assert.equal(2, saw((new:gsub("^key", "yek"))))
    assert.equal(3, saw(new:sub(1, 50) .. "?" .. new:sub(52)))
    assert.equal(4, saw(new:sub(1, 99)))
  end)

  it("sees a miss where nothing may be lost, and takes it where the server may", function()
    written()
    assert.equal(1, saw(nil))
    register = Register.new("key", LOSSY, report)
    local gone = written()
    assert.equal(1, saw(nil))
    assert.equal(2, saw(gone)) -- what was lost does not come back
  end)

  it("takes a write in doubt, early or late, until its connection has answered", function()
    local old, doubted = written(), written(MAYBE)
    local other = link
    link = new_link()
    assert.equal(0, saw(old))
    assert.equal(0, saw(doubted))
    assert.equal(1, saw(old)) -- it has been overwritten now
    written(MAYBE)
    local last = written()
    answered(other)
    link = other
    assert.equal(1, saw(last))
  end)

  it("sees a write in doubt that comes after it could not come any more", function()
    local doubted = written(MAYBE)
    answered(link)
    written()
    assert.equal(1, saw(doubted))
  end)

  it("sees a write that an error had said was never sent", function()
    local old, never = written(), written(NO)
    assert.equal(0, saw(old))
    assert.equal(1, saw(never))
    assert.matches("never sent", report.faults.wrong[1])
  end)

  it("sees flags and sizes that are another's", function()
    local value = written()
    register:saw(answered(link), value, Register.flags_of(1), 100)
    assert.equal(0, report.counts.wrong)
    register:saw(answered(link), value, Register.flags_of(2), 100)
    register:saw(answered(link), value, Register.flags_of(1), 99)
    assert.equal(2, report.counts.wrong)
  end)

  it("sees an add over something, a replace of nothing, a delete of either", function()
    written()
    register:wrote(answered(link), register:create(100), "miss")
    assert.equal(1, report.counts.wrong)
    register:deleted(answered(link), true)
    register:wrote(answered(link), register:create(100), "hit")
    assert.equal(2, report.counts.wrong)
    register:deleted(answered(link), false)
    register:deleted(answered(link), true)
    assert.equal(4, report.counts.wrong)
    register:exists(answered(link))
    assert.equal(5, report.counts.wrong)
  end)

  it("sees what a reader must not get, and takes what was written meanwhile", function()
    local old = written()
    local new = written()
    local snapshot = register:snapshot()
    register:check(call(link), snapshot, new)
    register:check(call(link), snapshot, written())
    assert.equal(0, report.counts.wrong)
    register:check(call(link), snapshot, old)
    register:check(call(link), snapshot, nil)
    register:check(call(link), snapshot, written(NO))
    register:check(call(link), snapshot, values.make("yek", 1, 100))
    assert.equal(4, report.counts.wrong)
  end)

  it("sees a cas that wins with an old token, and one that loses with a fresh one", function()
    local random = Random.new(1, "cas")
    local function cas_with(version, stored, why)
      register.read = { version = version, token = "7" }
      local move
      repeat move = moves.any(random, register) until move.name == "cas"
      move.judge(stored, why, nil, answered(link))
      return report.counts.wrong
    end
    written()
    assert.equal(0, cas_with(1, true)) -- which writes version 2 or a later one
    assert.equal(1, cas_with(1, true))
    assert.equal(1, cas_with(1, false, "exists"))
    assert.equal(2, cas_with(next(register.possible), false, "exists"))
  end)
end)

describe("the judge of a row of records", function()
  local report, link, row

  local function record(op, err)
    local number, value = row:create(Random.new(1, "row"))
    local out = answered(link)
    if err then
      row:failed(call(link), op, number, err)
    elseif op == "set" then
      row:wrote(out, number)
    else
      row:grew(out, op, number)
    end
    return value
  end

  before_each(function()
    report, link = new_report(), new_link()
    row = Appendix.new("key", KEEPER, report)
  end)

  it("takes what was put together, with and without what is in doubt", function()
    local a, b, c, d = record "set", record "append", record "prepend", record("append", MAYBE)
    link = new_link() -- another: what is in doubt may still come
    row:saw(answered(link), c .. a .. b)
    row:saw(answered(link), c .. a .. b .. d)
    assert.equal(0, report.counts.wrong)
    row:saw(answered(link), c .. a .. b)
    assert.equal(1, report.counts.wrong)
  end)

  it("sees what is missing, twice, misplaced, cut, or was never sent", function()
    local a, b, never = record "set", record "append", record("append", NO)
    for _, value in ipairs { a, a .. b .. b, b .. a, a .. b:sub(1, -2), a .. b .. never } do
      local before = report.counts.wrong
      row:saw(answered(link), value)
      assert.equal(before + 1, report.counts.wrong)
    end
  end)
end)

describe("the judge of a counter", function()
  local report, link, counter

  before_each(function()
    report, link = new_report(), new_link()
    counter = Counter.new("key", KEEPER, report)
    counter:made(1000)
  end)

  it("takes exactly what was counted, and what is in doubt whole or not at all", function()
    counter:is(answered(link), 1005, 5)
    counter:doubted(call(link), 7, MAYBE)
    counter:doubted(call(link), 20, MAYBE)
    counter:is(call(new_link()), 1015, 10)
    counter:is(call(new_link()), 1022, 0)
    assert.equal(0, report.counts.wrong)
    counter:is(call(new_link()), 1029, 0)
    assert.equal(1, report.counts.wrong)
  end)

  it("sees a count that is lost, or happened though it was never sent", function()
    counter:is(answered(link), 1000, 5)
    assert.equal(1, report.counts.wrong)
    counter:doubted(call(link), 7, NO)
    counter:is(answered(link), 1007, 0)
    assert.equal(2, report.counts.wrong)
  end)
end)

describe("the judge of a race", function()
  local report, lane, race, said

  -- A server that answers as the spec says, on a lane that calls it.
  before_each(function()
    report = new_report()
    local link = new_link()
    link.conn = { protocol = function() return "meta" end }
    lane = { url = "memcache://nowhere", open = function() return link end }
    function lane.call(_, _, op)
      local out = call(link)
      local answer = table.remove(said, 1)
      out.op, out.value, out.more = op, answer[1], answer[2]
      return out
    end
    race = Race.new("key", KEEPER, report)
  end)

  local function step(...)
    said = { ... }
    race:step({ report = report }, Random.new(1, "race"), lane)
    return report.counts.wrong
  end

  local function item(version, token)
    return { { value = values.make("key", version, race.sizes[version]), cas = token } }
  end

  it("sees two winners for one token", function()
    assert.equal(0, step({}, { true }))                        -- added as version 1
    assert.equal(0, step(item(1, "10"), { true }))             -- version 2
    assert.equal(1, step(item(1, "10"), { true }))             -- version 3, and there was one
  end)

  it("sees a token that shows two values, one that goes back, a loser without a winner",
    function()
      step({}, { true })
      assert.equal(0, step(item(1, "10"), { true }))
      assert.equal(1, step(item(2, "10"), { false, "exists" }))
      assert.equal(1, step(item(2, "12"), { true }))
      assert.equal(2, step(item(1, "11"), { false, "exists" }))
      assert.equal(3, step(item(3, "13"), { false, "exists" }))
    end)
end)

describe("the judge of time", function()
  -- Beats, while a request ends `late` seconds after its deadline, and `still` seconds of that
  -- the process does nothing else: how many were late.
  local function lateness(late, still)
    local report, over = new_report(), false
    local pulse = Pulse.new(report)
    local beating = mj.spawn(pulse.run, pulse, function() return not over end)
    mj.sleep(0.02)
    local due = mj.now()
    posix.sleep(still)
    mj.sleep(late - still)
    pulse:ended("request", due - 0.1, due, "memcache://nowhere")
    over = true
    beating:wait()
    return report.counts.late
  end

  it("sees a request that ends late, but for what the process stood still", function()
    assert.equal(1, lateness(0.2, 0))
    assert.equal(1, lateness(0.4, 0.2))
    assert.equal(0, lateness(0.2, 0.2))
  end)
end)

describe("the report", function()
  it("fails a run with an error that should not be, or without a kind of fault", function()
    local report = new_report()
    report:failure("get", MAYBE)
    assert.is_true(report:passed())
    report:failure("get", mj.errors.new { kind = "protocol", message = "lost" })
    assert.is_false(report:passed())
    report = new_report()
    report:failure("get", "a text")
    assert.is_false(report:passed())
    report = new_report()
    report:demand { { "reset", 1 }, { "stall", 0 } }
    assert.is_false(report:passed())
  end)
end)
