-- Nagle's algorithm, seen from outside: bench/link.lua against a memcached on loopback, and
-- over a link with 10 ms each way. The medians are compared, for a busy machine may make single
-- operations late.

local link = require "spec.support.link"
local memcached = require "spec.support.memcached"
local process = require "spec.support.process"
local program = require "spec.support.program"

local OPERATIONS, SECONDS = 21, 60
local STALL_MS = 35 -- a delayed acknowledgement takes 40; the system's clock ticks in 4

-- { [operation .. " true"] = { writes, median_ms }, ... }, the last word is tcp_nodelay.
local function figures_of(text)
  local out = {}
  local line = "(%S[^\n]-) +(%l+) +([%d.]+) +([%d.]+)[^\n]*"
  for name, nodelay, writes, median in text:gmatch(line) do
    out[name .. " " .. nodelay] = { writes = tonumber(writes), median = tonumber(median) }
  end
  return out
end

local function measure(words)
  local child = process.start(words)
  local text, status = child:finish(SECONDS)
  assert.equal(0, status)
  return figures_of(text)
end

local function bench(url)
  return { program.path, "bench/link.lua", tostring(OPERATIONS), env = { MEMCACHE_URL = url } }
end

-- Both places show the same; only the time that a reply takes at least differs.
local function describes_stall(measured)
  it("stalls what leaves in two writes, with tcp_nodelay=false", function()
    local slow = measured()["quiet set, next turn get false"]
    local fast = measured()["quiet set, next turn get true"]
    assert.equal(2, slow.writes)
    assert.equal(2, fast.writes)
    assert.is_true(slow.median >= STALL_MS, slow.median .. " ms")
    assert.is_true(slow.median >= fast.median + STALL_MS * 0.75, fast.median .. " ms")
  end)

  for _, operation in ipairs { "quiet set and get in one turn", "get alone",
                               "set of 20 kB alone" } do
    it(("writes once and stalls in neither: %s"):format(operation), function()
      local slow = measured()["quiet set, next turn get false"]
      for _, nodelay in ipairs { "true", "false" } do
        local one = measured()[operation .. " " .. nodelay]
        assert.equal(1, one.writes)
        assert.is_true(one.median <= slow.median - STALL_MS * 0.75, one.median .. " ms")
      end
    end)
  end
end

describe("Nagle's algorithm", function()
  teardown(function()
    memcached.stop_all()
    link.stop_all()
    process.stop_all()
  end)

  describe("over loopback", function()
    local figures
    describes_stall(function()
      figures = figures or measure(bench(memcached.start().url))
      return figures
    end)
  end)

  describe("over a link of 10 ms each way", function()
    local lacks = link.lacks()
    if lacks then
      pending("stalls what leaves in two writes: skipped: " .. lacks)
      return
    end
    local figures
    local function measured()
      if not figures then
        local wire = link.start { delay_ms = 10 }
        local server = memcached.start { inside = wire:server(), host = wire.server_host }
        figures = measure(wire:client(bench(server.url)))
      end
      return figures
    end

    it("takes a round trip for a reply", function()
      local median = measured()["get alone true"].median
      assert.is_true(median >= 20, median .. " ms")
    end)

    describes_stall(measured)
  end)
end)
