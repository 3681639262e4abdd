-- Tasks, deadlines, and waits in odd places. Every spec is a task itself.

local core = require "moonjay.core"
local errors = require "moonjay.errors"
local mj = require "moonjay"

local FOREVER = 1000 -- seconds; what is interrupted, or the spec never ends

local function sleeper() return mj.spawn(mj.sleep, FOREVER) end

-- Lets all that is ready run, turn by turn, until `probe` is true.
local function settle(probe)
  for _ = 1, 1000 do
    if probe() then return end
    mj.sleep(0)
  end
  error("it did not settle", 2)
end

describe("spawn", function()
  it("passes its arguments and never runs the function at once", function()
    local got
    local task = mj.spawn(function(...)
      got = { n = select("#", ...), ... }
    end, 1, nil, "x", nil)
    assert.is_nil(got)
    task:wait()
    assert.same({ n = 4, 1, nil, "x", nil }, got)
  end)

  it("throws where it gets no function, with the line of the script", function()
    local ok, message = pcall(mj.spawn, 1)
    assert.is_false(ok)
    assert.matches("spawn: a function is wanted, got number", message, 1, true)
    ok, message = pcall(function() mj.spawn() end)
    assert.is_false(ok)
    assert.matches("^spec/task_spec.lua:%d+: ", message)
  end)

  it("takes many arguments and gives many results", function()
    local many = {}
    for i = 1, 200 do many[i] = i end
    local task = mj.spawn(function(...) return select("#", ...), ... end, unpack(many))
    local got = { task:wait() }
    assert.equal(201, #got)
    assert.equal(200, got[1])
    assert.equal(200, got[201])
  end)

  it("uses finished coroutines again, but not those that failed", function()
    local before = mj.counters()
    for _ = 1, 100 do mj.spawn(function() end):wait() end
    local after = mj.counters()
    assert.equal(100, after.tasks_started - before.tasks_started)
    assert.is_true(after.tasks_reused - before.tasks_reused >= 99)
    assert.equal(before.tasks_live, after.tasks_live)
    mj.spawn(function() error("x") end):wait()
    assert.equal(5, mj.spawn(function() return 5 end):wait())
  end)

  it("gives a coroutine used again the script's globals", function()
    mj.spawn(function() setfenv(0, {}) end):wait()
    for _ = 1, 3 do
      assert.equal("function", mj.spawn(function()
        return loadstring("return type(print)")()
      end):wait())
    end
  end)

  it("runs 10,000 tasks at once in little memory", function()
    local tasks = {}
    collectgarbage()
    collectgarbage()
    local before = mj.counters()
    for i = 1, 10000 do tasks[i] = mj.spawn(mj.sleep, FOREVER) end
    mj.sleep(0)
    collectgarbage()
    collectgarbage()
    local after = mj.counters()
    assert.equal(10000, after.tasks_live - before.tasks_live)
    assert.is_true((after.memory - before.memory) / 10000 < 1200)
    for i = 1, 10000 do tasks[i]:cancel() end
    for i = 1, 10000 do
      local value, err = tasks[i]:wait()
      if value ~= nil or not errors.is(err, "cancelled") then error(tostring(err)) end
    end
  end)

  it("survives a full collection without a reference", function()
    local done = 0
    for _ = 1, 50 do
      mj.spawn(function()
        mj.sleep(0.002)
        done = done + 1
      end)
    end
    for _ = 1, 5 do
      collectgarbage()
      mj.sleep(0.001)
    end
    settle(function() return done == 50 end)
  end)
end)

describe("a finalizer", function()
  -- Aggressive collection calls finalizers inside many an allocation, also those that
  -- interrupting a task takes.
  local pause, step
  before_each(function()
    pause, step = collectgarbage("setpause", 10), collectgarbage("setstepmul", 1000)
  end)
  after_each(function()
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", step)
  end)

  local function litter(finalizer)
    getmetatable(newproxy(true)).__gc = finalizer
  end

  it("may cancel while deadlines pass", function()
    local tasks = {}
    for i = 1, 2000 do
      litter(function()
        local task = tasks[math.random(#tasks)]
        if task then task:cancel() end
      end)
      tasks[i] = mj.spawn(mj.deadline, i % 10 / 10000, mj.sleep, FOREVER)
      if i % 20 == 0 then mj.sleep(0.0001) end
    end
    for i = 1, #tasks do
      local _, err = tasks[i]:wait()
      assert.is_true(errors.is(err, "timeout") or errors.is(err, "cancelled"))
    end
  end)
end)

describe("task:wait", function()
  it("gives the results, as often as one asks", function()
    local task = mj.spawn(function() return 1, nil, 3, nil end)
    for _ = 1, 3 do
      local got = { n = select("#", task:wait()), task:wait() }
      assert.same({ n = 4, 1, nil, 3 }, got)
    end
    assert.equal(0, select("#", mj.spawn(function() end):wait()))
  end)

  it("gives nil and the error as it was thrown", function()
    local thrown = { "a table" }
    local value, err = mj.spawn(function() error(thrown) end):wait()
    assert.is_nil(value)
    assert.equal(thrown, err)
    local _, message = mj.spawn(function() error("plain", 0) end):wait()
    assert.equal("plain", message)
    local _, none = mj.spawn(function() error(nil) end):wait()
    assert.is_not_nil(none)
  end)

  it("times out with kind timeout while the task runs on", function()
    local task = mj.spawn(function()
      mj.sleep(0.02)
      return "late"
    end)
    local value, err = task:wait(0.001)
    assert.is_nil(value)
    assert.is_true(errors.is(err, "timeout"))
    assert.matches("runs on", tostring(err))
    assert.equal("late", task:wait(FOREVER))
  end)

  it("only looks with 0 seconds", function()
    local task = sleeper()
    assert.is_true(errors.is(select(2, task:wait(0)), "timeout"))
    task:cancel()
    task:wait()
  end)

  it("tells several waiters, in their order", function()
    local order = {}
    local task = mj.spawn(function()
      mj.sleep(0.001)
      return "it"
    end)
    local waiters = {}
    for i = 1, 5 do
      waiters[i] = mj.spawn(function()
        local value = task:wait()
        order[#order + 1] = i
        return value
      end)
    end
    for i = 1, 5 do assert.equal("it", waiters[i]:wait()) end
    assert.same({ 1, 2, 3, 4, 5 }, order)
  end)

  it("refuses to wait for itself", function()
    local task
    task = mj.spawn(function() task:wait() end)
    local _, err = task:wait()
    assert.matches("cannot wait for itself", err)
  end)

  it("throws where it gets no task or no number", function()
    local task = mj.spawn(function() end)
    assert.has_error(function() task.wait(1) end)
    assert.has_error(function() task.wait() end)
    for _, bad in ipairs { -1, 0 / 0, math.huge, 1e10, "1", true } do
      assert.has_error(function() task:wait(bad) end)
    end
    task:wait()
  end)

  it("is interrupted without harm to the task it waits for", function()
    local task = sleeper()
    local waiter = mj.spawn(function() return task:wait(FOREVER) end)
    mj.sleep(0)
    mj.sleep(0)
    waiter:cancel()
    assert.is_true(errors.is(select(2, waiter:wait()), "cancelled"))
    assert.is_true(errors.is(select(2, task:wait(0)), "timeout"))
    task:cancel()
    task:wait()
  end)
end)

describe("task:cancel", function()
  it("makes the present wait and every later one throw", function()
    local seen = {}
    local task = mj.spawn(function()
      for i = 1, 3 do
        local ok, err = pcall(mj.sleep, FOREVER)
        seen[i] = not ok and err.kind
      end
      return "survived"
    end)
    mj.sleep(0)
    task:cancel()
    task:cancel()
    assert.equal("survived", task:wait())
    assert.same({ "cancelled", "cancelled", "cancelled" }, seen)
  end)

  it("ends a task that lets the error through", function()
    local task = sleeper()
    mj.sleep(0)
    task:cancel()
    local value, err = task:wait()
    assert.is_nil(value)
    assert.is_true(errors.is(err, "cancelled"))
    assert.equal("sleep", err.op)
    assert.is_false(err.retryable)
  end)

  it("keeps a task that never ran from running", function()
    local ran = false
    local task = mj.spawn(function() ran = true end)
    task:cancel()
    assert.is_true(errors.is(select(2, task:wait()), "cancelled"))
    assert.is_false(ran)
  end)

  it("is harmless on a task that has ended, also when its coroutine runs another", function()
    local task = mj.spawn(function() return 1 end)
    task:wait()
    mj.sleep(0)
    local others = {}
    for i = 1, 10 do
      others[i] = mj.spawn(function()
        mj.sleep(0.001)
        return "other"
      end)
    end
    mj.sleep(0)
    task:cancel()
    for i = 1, 10 do assert.equal("other", others[i]:wait()) end
    assert.equal(1, task:wait())
  end)

  it("takes effect at the next wait of a task that cancels itself", function()
    local task, reached
    task = mj.spawn(function()
      task:cancel()
      reached = true
      mj.sleep(0)
    end)
    assert.is_true(errors.is(select(2, task:wait()), "cancelled"))
    assert.is_true(reached)
  end)

  it("lets a result through that had come already", function()
    local inner = mj.spawn(function()
      mj.sleep(0.001)
      return "came"
    end)
    local waiter
    local canceller = mj.spawn(function()
      inner:wait()
      waiter:cancel() -- which was woken by the same end, and has not run yet
    end)
    waiter = mj.spawn(function()
      local value = inner:wait()
      return value, select(2, pcall(mj.sleep, 0)).kind
    end)
    canceller:wait()
    assert.same({ "came", "cancelled" }, { waiter:wait() })
  end)
end)

describe("sleep", function()
  it("lasts at least as long as it says, also after a long computation", function()
    local start = mj.now()
    while mj.now() - start < 0.005 do end -- luacheck: ignore 542
    local slept = mj.now()
    mj.sleep(0.003)
    assert.is_true(mj.now() - slept >= 0.003)
  end)

  it("of 0 lets every other ready task run once", function()
    local log = {}
    local tasks = {}
    for i = 1, 2 do
      tasks[i] = mj.spawn(function()
        for _ = 1, 3 do
          log[#log + 1] = i
          mj.sleep(0)
        end
      end)
    end
    mj.check(mj.all(tasks))
    assert.equal("121212", table.concat(log))
  end)

  it("throws on what is no span", function()
    for _, bad in ipairs { -0.1, 0 / 0, math.huge, -math.huge, 2e9, "1", {}, true } do
      local ok, message = pcall(mj.sleep, bad)
      assert.is_false(ok)
      assert.matches("sleep: seconds: ", message)
    end
    assert.has_error(function() mj.sleep() end)
  end)

  it("takes one clock per turn at most, and no timer for 0", function()
    local before = mj.counters()
    for _ = 1, 100 do mj.sleep(0) end
    local after = mj.counters()
    assert.equal(before.timer_arms, after.timer_arms)
    assert.is_true(after.clock_reads - before.clock_reads <= after.turns - before.turns)
    assert.equal(100, after.resumes - before.resumes)
  end)
end)

describe("now", function()
  it("never goes back", function()
    local last = mj.now()
    for _ = 1, 1000 do
      local now = mj.now()
      assert.is_true(now >= last)
      last = now
    end
  end)
end)

describe("deadline", function()
  it("gives the function's results when they come in time", function()
    local got = { mj.deadline(FOREVER, function(...)
      mj.sleep(0)
      return ...
    end, 1, nil, 3) }
    assert.same({ 1, nil, 3 }, got)
  end)

  it("gives nil and an error of kind timeout when it passes", function()
    local value, err = mj.deadline(0.002, mj.sleep, FOREVER)
    assert.is_nil(value)
    assert.is_true(errors.is(err, "timeout"))
    assert.equal("sleep", err.op)
    assert.matches("0.002 s", tostring(err))
  end)

  it("refuses every later wait until its scope ends", function()
    local kinds = {}
    local result = mj.deadline(0.001, function()
      for i = 1, 3 do kinds[i] = select(2, pcall(mj.sleep, FOREVER)).kind end
      return "normal"
    end)
    assert.equal("normal", result)
    assert.same({ "timeout", "timeout", "timeout" }, kinds)
    mj.sleep(0)
  end)

  it("takes the minimum where they nest", function()
    local inner_err
    local value, err = mj.deadline(0.002, function()
      inner_err = select(2, mj.deadline(FOREVER, mj.sleep, FOREVER))
      return "not reached"
    end)
    assert.is_nil(value)
    assert.is_nil(inner_err)
    assert.is_true(errors.is(err, "timeout"))
    local outer = mj.deadline(FOREVER, function()
      local _, inner = mj.deadline(0.002, mj.sleep, FOREVER)
      mj.sleep(0)
      return inner.kind
    end)
    assert.equal("timeout", outer)
  end)

  it("passes other errors through unchanged", function()
    local thrown = {}
    local ok, err = pcall(mj.deadline, FOREVER, function() error(thrown) end)
    assert.is_false(ok)
    assert.equal(thrown, err)
    ok, err = pcall(mj.deadline, 0.001, function()
      pcall(mj.sleep, FOREVER)
      error("own", 0)
    end)
    assert.is_false(ok)
    assert.equal("own", err)
  end)

  it("tells its own errors from those of another deadline", function()
    local _, stale = mj.deadline(0.001, mj.sleep, FOREVER)
    local ok, err = pcall(mj.deadline, FOREVER, function() error(stale) end)
    assert.is_false(ok)
    assert.equal(stale, err)
  end)

  it("is not inherited by spawned tasks", function()
    local task
    mj.deadline(0.001, function()
      task = mj.spawn(function()
        mj.sleep(0.004)
        return "free"
      end)
      mj.sleep(FOREVER)
    end)
    assert.equal("free", task:wait())
  end)

  it("interrupts a wait for a task, and cancel wins over it", function()
    local task = sleeper()
    assert.is_true(errors.is(select(2, mj.deadline(0.001, task.wait, task)), "timeout"))
    local other = mj.spawn(function() return mj.deadline(FOREVER, mj.sleep, FOREVER) end)
    mj.sleep(0)
    other:cancel()
    assert.is_true(errors.is(select(2, other:wait()), "cancelled"))
    task:cancel()
    task:wait()
  end)

  it("of 0 interrupts the first wait that lasts", function()
    assert.is_true(errors.is(select(2, mj.deadline(0, mj.sleep, FOREVER)), "timeout"))
    assert.equal("quick", mj.deadline(0, function() return "quick" end))
  end)

  it("leaves nothing behind when its task dies in it", function()
    for _ = 1, 10 do
      mj.spawn(function() mj.deadline(0.001, error, "dead") end):wait()
    end
    mj.sleep(0.003)
  end)

  it("throws on what is no span or no function", function()
    assert.has_error(function() mj.deadline(-1, print) end)
    assert.has_error(function() mj.deadline("1", print) end)
    assert.has_error(function() mj.deadline(1, "print") end)
  end)
end)

describe("all", function()
  it("gives the packed results in order", function()
    local results = mj.all {
      mj.spawn(function()
        mj.sleep(0.002)
        return "slow", nil
      end),
      mj.spawn(function() return end),
      mj.spawn(function() return false, "no" end),
    }
    assert.same({ { n = 2, "slow" }, { n = 0 }, { n = 2, false, "no" } }, results)
    assert.same({}, mj.all {})
  end)

  it("gives the first failure in time at once and cancels the rest", function()
    local slow = sleeper()
    local value, err = mj.all { slow, mj.spawn(function() error("first", 0) end) }
    assert.is_nil(value)
    assert.equal("first", err)
    assert.is_true(errors.is(select(2, slow:wait()), "cancelled"))
  end)

  it("takes nil and an error as a failure, a lone nil as an answer", function()
    local failure = errors.new { kind = "closed", message = "gone" }
    local _, err = mj.all { mj.spawn(function() return nil, failure end) }
    assert.equal(failure, err)
    assert.same({ { n = 1 } }, mj.all { mj.spawn(function() return nil end) })
  end)

  it("cancels its tasks when it is interrupted itself", function()
    local one, two = sleeper(), sleeper()
    local _, err = mj.deadline(0.001, mj.all, { one, two })
    assert.is_true(errors.is(err, "timeout"))
    assert.equal("all", err.op)
    assert.is_true(errors.is(select(2, one:wait()), "cancelled"))
    assert.is_true(errors.is(select(2, two:wait()), "cancelled"))
  end)

  it("takes a task twice, and tasks that have ended", function()
    local task = mj.spawn(function() return 1 end)
    task:wait()
    assert.same({ { n = 1, 1 }, { n = 1, 1 } }, mj.all { task, task })
  end)

  it("throws on what is no list of tasks", function()
    assert.has_error(function() mj.all() end)
    local ok, message = pcall(mj.all, { mj.spawn(function() end), 5 })
    assert.is_false(ok)
    assert.matches("all: [2]: a task is wanted, got number", message, 1, true)
    local task
    task = mj.spawn(function() mj.all { task } end)
    assert.matches("cannot wait for itself", select(2, task:wait()))
  end)

  it("waits for many", function()
    local tasks = {}
    for i = 1, 1000 do
      tasks[i] = mj.spawn(function()
        mj.sleep(i % 7 / 10000)
        return i
      end)
    end
    local sum = 0
    for _, packed in ipairs(mj.check(mj.all(tasks))) do sum = sum + packed[1] end
    assert.equal(500500, sum)
  end)
end)

describe("any", function()
  it("gives the first success and its place and cancels the rest", function()
    local slow = sleeper()
    local value, index = mj.any {
      slow,
      mj.spawn(function() error("no") end),
      mj.spawn(function()
        mj.sleep(0.001)
        return "yes"
      end),
    }
    assert.equal("yes", value)
    assert.equal(3, index)
    assert.is_true(errors.is(select(2, slow:wait()), "cancelled"))
  end)

  it("gives an error that lists all when all fail", function()
    local failure = errors.new { kind = "closed", message = "gone" }
    local value, err = mj.any {
      mj.spawn(function() error("first", 0) end),
      mj.spawn(function() return nil, failure end),
    }
    assert.is_nil(value)
    assert.same({ "first", failure }, err.cause)
    assert.equal("closed", err.kind)
    assert.matches("all 2 tasks failed", tostring(err))
  end)

  it("gives an error that is no safer to repeat than the least safe of them", function()
    local function any(...)
      local tasks = {}
      for i, failure in ipairs { ... } do
        tasks[i] = mj.spawn(function() return nil, failure end)
      end
      local _, err = mj.any(tasks)
      return err
    end
    local refused = errors.new { kind = "connect_refused", message = "x", op = "connect" }
    local counted = errors.new { kind = "timeout", message = "x", op = "incr", sent = "maybe" }
    local read = errors.new { kind = "timeout", message = "x", op = "get", sent = "maybe" }
    local err = any(refused, counted)
    assert.equal("connect_refused", err.kind)
    assert.equal("maybe", err.sent)
    assert.is_false(err.retryable)
    assert.is_true(any(refused, read).retryable)
    err = any(refused, refused)
    assert.equal("no", err.sent)
    assert.is_true(err.retryable)
    assert.is_false(any(refused, "words").retryable)
  end)

  it("throws on an empty list", function()
    assert.has_error(function() mj.any {} end)
  end)
end)

describe("check", function()
  it("raises a failure and lets all else through", function()
    local failure = errors.new { kind = "closed", message = "gone" }
    local ok, err = pcall(mj.check, nil, failure)
    assert.is_false(ok)
    assert.equal(failure, err)
    assert.equal("v", (mj.check("v")))
    assert.is_nil((mj.check(nil)))
    assert.same({ false, "exists" }, { mj.check(false, "exists") })
    assert.matches("^spec/task_spec.lua:%d+: words$",
      select(2, pcall(function() mj.check(nil, "words") end)))
  end)
end)

describe("a wait", function()
  it("passes through pcall, metamethods and iterators", function()
    assert.is_true(pcall(mj.sleep, 0))
    local slow = setmetatable({}, {
      __index = function(_, key)
        mj.sleep(0)
        return key
      end,
    })
    assert.equal("key", slow.key)
    local count = 0
    for _ in function()
      mj.sleep(0)
      count = count + 1
      return count <= 3 or nil
    end do end -- luacheck: ignore 542
    assert.equal(4, count)
  end)

  it("throws in a sort comparator or gsub callback, and the task lives on", function()
    for _, call in ipairs {
      function() table.sort({ 3, 2, 1 }, function(a, b)
        mj.sleep(0)
        return a < b
      end) end,
      function() string.gsub("x", "x", function() mj.sleep(FOREVER) end) end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.matches("spec/task_spec.lua:%d+: sleep: cannot wait inside table.sort", message)
      mj.sleep(0)
    end
  end)

  it("works inside a generator of the script's own", function()
    local generate = coroutine.wrap(function(first)
      local got = first
      while true do
        mj.sleep(0)
        got = coroutine.yield(got * 2)
        mj.sleep(0.0001)
      end
    end)
    assert.equal(2, generate(1))
    assert.equal(20, generate(10))
    assert.equal(40, generate(20))
  end)

  it("hands several values through nested coroutines", function()
    local co = coroutine.create(function(...)
      local inner = coroutine.create(function(...)
        local task = mj.spawn(function()
          mj.sleep(0.001)
          return "a", nil, "c"
        end)
        local a, b, c = task:wait()
        local back = coroutine.yield(a, b, c)
        return back, ...
      end)
      local ok, a, b, c = coroutine.resume(inner, ...)
      coroutine.yield(ok, a, b, c)
      return select(2, coroutine.resume(inner, "back"))
    end)
    assert.same({ true, true, "a", nil, "c" }, { coroutine.resume(co, "x") })
    assert.same({ true, "back", "x" }, { coroutine.resume(co) })
    assert.equal("dead", coroutine.status(co))
  end)

  it("in a generator is interrupted as anywhere", function()
    local value, err = mj.deadline(0.001, function()
      return coroutine.wrap(function() mj.sleep(FOREVER) end)()
    end)
    assert.is_nil(value)
    assert.is_true(errors.is(err, "timeout"))
  end)

  it("between the steps of a generator is not bound by the generator's own deadline", function()
    local function steps(seconds)
      return coroutine.wrap(function()
        return select(2, mj.deadline(seconds, function()
          coroutine.yield("one")
          coroutine.yield("two")
          mj.sleep(FOREVER)
        end))
      end)
    end
    local step, never = steps(0.001), steps(FOREVER)
    assert.equal("one", never())
    assert.equal("one", step())
    mj.sleep(0.003)
    assert.equal("two", step())
    mj.sleep(0)
    assert.is_true(errors.is(step(), "timeout"))
    mj.sleep(0)
    local other = steps(0.001)
    assert.equal("one", mj.spawn(other):wait())
    assert.equal("two", other())
    assert.is_true(errors.is(mj.spawn(other):wait(), "timeout"))
  end)

  it("in a coroutine that a finalizer resumes throws", function()
    local said, after = {}, nil
    local function wait_in(depth)
      if depth == 0 then mj.sleep(0) end
      return coroutine.wrap(wait_in)(depth - 1)
    end
    getmetatable(newproxy(true)).__gc = function()
      for depth = 0, 2 do said[depth] = select(2, pcall(wait_in, depth)) end
      after = coroutine.wrap(function() return "done" end)()
    end
    collectgarbage()
    assert.matches("sleep: cannot wait inside table.sort", said[0])
    assert.matches("sleep: cannot wait in a coroutine .* a finalizer", said[1])
    assert.matches("sleep: cannot wait in a coroutine .* a finalizer", said[2])
    assert.equal("done", after)
    coroutine.wrap(mj.sleep)(0)
  end)

  it("in a coroutine inside a sort comparator throws, and does not begin", function()
    for _, seconds in ipairs { 0, FOREVER } do
      local ok, message = pcall(table.sort, { 3, 2, 1 }, function()
        coroutine.wrap(function() mj.sleep(seconds) end)()
      end)
      assert.is_false(ok)
      assert.matches("cannot wait in a coroutine that is resumed inside table.sort", message)
      mj.sleep(0.001)
    end
  end)

  it("cannot be ended by somebody else's resume", function()
    local co = coroutine.create(function()
      mj.sleep(0.002)
      return "own"
    end)
    local owner = mj.spawn(function() return coroutine.resume(co) end)
    mj.sleep(0)
    local ok, message = coroutine.resume(co, "stolen")
    assert.is_false(ok)
    assert.matches("waits", message)
    assert.same({ true, "own" }, { owner:wait() })
  end)

  it("of a task cannot be ended by a resume of its coroutine", function()
    local base
    local task = mj.spawn(function()
      base = coroutine.running()
      mj.sleep(0.002)
      return "slept"
    end)
    settle(function() return base end)
    assert.is_false((coroutine.resume(base)))
    assert.equal("slept", task:wait())
  end)

  it("of the script's own, outside a coroutine, is an error that says what to do", function()
    local _, err = mj.spawn(function() coroutine.yield(1) end):wait()
    assert.matches("mj.sleep%(0%)", err)
  end)
end)

describe("coroutine.wrap and resume", function()
  it("behave as before without waits", function()
    local thrown = {}
    local wrapped = coroutine.wrap(function() error(thrown) end)
    local ok, err = pcall(wrapped)
    assert.is_false(ok)
    assert.equal(thrown, err)
    assert.is_false((pcall(wrapped)))
    local co = coroutine.create(function(...)
      return select("#", ...), coroutine.yield(...)
    end)
    assert.same({ true, 1, nil, 3 }, { coroutine.resume(co, 1, nil, 3) })
    assert.same({ true, 3, "x" }, { coroutine.resume(co, "x") })
    assert.same({ false, "cannot resume dead coroutine" }, { coroutine.resume(co) })
    assert.has_error(function() coroutine.wrap(1) end)
    assert.has_error(function() coroutine.resume(1) end)
  end)

  it("are not wrapped twice when the library is loaded again", function()
    local resume, settle_before = coroutine.resume, require("moonjay.wait").settle
    for name in pairs(package.loaded) do
      if name:match("^moonjay") then package.loaded[name] = nil end
    end
    local again = require "moonjay"
    assert.equal(resume, coroutine.resume)
    assert.is_false(settle_before == require("moonjay.wait").settle)
    assert.equal(core, require "moonjay.core")
    local task = mj.spawn(function() again.sleep(FOREVER) end)
    mj.sleep(0)
    task:cancel()
    assert.is_true(again.errors.is(select(2, again.spawn(task.wait, task):wait()), "cancelled"))
  end)
end)
