-- bench: every workload of moonjay's runs and checks what it gets, and the figures of a table
-- are what its rounds say. How fast it is, is no matter here.

local cjson = require "cjson"
local figures = require "bench.figures"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local plans = require "bench.plans"
local process = require "spec.support.process"
local program = require "spec.support.program"
local targets = require "bench.targets"
local wait = require "spec.support.wait"

local SECONDS = 60

local function start(server, workload, seconds)
  return process.start {
    program.path, "bench/workloads.lua", workload, server.path or server.host,
    tostring(server.port or 0), tostring(seconds), errors = true,
  }
end

local function workload_names()
  local names = {}
  local function add(name) names[#names + 1] = name end
  for _, workload in ipairs(targets.workloads) do
    add(workload.name)
    for _, other in ipairs(workload.others or {}) do add(other[1]) end
  end
  for _, row in ipairs(targets.dalli) do
    add(row.name)
    add(row.name .. "-gathered")
  end
  return names
end

describe("the workloads of bench", function()
  local server
  setup(function() server = memcached.start { args = { "-I", "2m", "-m", "256" } } end)
  teardown(function()
    memcached.stop_all()
    process.stop_all()
  end)

  for _, name in ipairs(workload_names()) do
    it("are all there: " .. name, function()
      local result
      for _, seconds in ipairs { 0.02, 1, 10 } do -- on a busy machine nothing comes in a moment
        local text, status, errors = start(server, name, seconds):finish(SECONDS)
        assert.equal("", errors)
        assert.equal(0, status)
        result = cjson.decode(text)
        if result.operations > 0 then break end
      end
      assert.equal(name, result.workload)
      for _, field in ipairs { "operations", "seconds", "calls" } do
        assert.is_true(result[field] > 0, field)
      end
    end)
  end

  it("run over a unix socket", function()
    local unix = memcached.start { unix = true }
    local _, status = start(unix, "P1", 0.02):finish(SECONDS)
    assert.equal(0, status)
  end)

  it("end with status 3 where there is no such workload", function()
    local text, status = start(server, "P99", 0.02):finish(SECONDS)
    assert.equal(3, status)
    assert.equal("", text)
  end)

  it("give no figure where a value is wrong", function()
    local fresh = memcached.start()
    local conn = mj.check(mj.connect(fresh.url))
    local child = start(fresh, "P1", SECONDS)
    wait.until_true(SECONDS, "gets to be answered", function()
      return tonumber(conn:stats().get_hits) > 0
    end)
    mj.check(conn:flush_all())
    local text, status, errors = child:finish(2 * SECONDS)
    assert.equal(1, status)
    assert.equal("", text)
    assert.truthy(errors:find("wrong answer", 1, true), errors)
  end)
end)

describe("the figures of bench", function()
  local function round(number, operations, cpu, disturbed)
    return { round = number, operations = operations, seconds = 2, user = cpu, system = 0,
             calls = operations * 3, disturbed = disturbed or {} }
  end

  it("are medians, with the least and the most", function()
    local odd, even = figures.spread { 3, 1, 2 }, figures.spread { 4, 1, 2, 3 }
    assert.same({ median = 2, least = 1, most = 3 }, odd)
    assert.equal(2.5, even.median)
    assert.is_nil(figures.spread {})
  end)

  it("compare each round with the floor's of the same number", function()
    local rows = {
      { name = "floor", rounds = { round(1, 100, 1), round(3, 1000, 1) } },
      { name = "moonjay", rounds = { round(1, 50, 1), round(2, 7, 1),
                                     round(3, 500, 2, { "steal 9%" }) } },
    }
    figures.add(rows)
    assert.equal(0.5, rows[2].of_floor.median)
    assert.equal(25, rows[2].rate.median)
    assert.same({ median = 3, least = 2, most = 4 }, rows[2].cpu_of_floor)
    assert.equal(3, rows[2].calls.median)
    assert.equal("1 of 3: steal 9%", rows[2].disturbed)
    assert.is_nil(rows[1].disturbed)
  end)

  it("are asked for by the name of a table or of a group", function()
    local here = { { name = "floor" }, { name = "moonjay" } }
    local function titles(only)
      local out = {}
      for i, one in ipairs(plans.make(here, only, false, false)) do out[i] = one.title end
      return table.concat(out, ", ")
    end
    assert.equal("P2, P2 with -R 200", titles "P2")
    assert.equal("P4a, P4b, D-get", titles "P4,D-get")
    assert.equal("P5s", titles "P5s")
    assert.equal(10, select(2, titles("P8"):gsub("D%-", "")))
    local plan, wrong = plans.make(here, "P1,P77", false, false)
    assert.is_nil(plan)
    assert.truthy(wrong:find "P77")
  end)
end)
