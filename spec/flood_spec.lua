-- Servers that send what no server should, or without end: each is told by its error, at once
-- and in bounded memory, and holds up nobody else.

local measured = require "spec.support.measured"
local memcached = require "spec.support.memcached"
local process = require "spec.support.process"
local program = require "spec.support.program"

local MIB, BLOCK = measured.MIB, measured.BLOCK
local OUT, STATS, AS_LUA = measured.OUT, measured.STATS, measured.AS_LUA
local STRAYS = measured.STRAYS
local run, check, start_flood = measured.run, measured.check, measured.flood

local function cleaned(fn)
  return function()
    finally(function()
      memcached.stop_all()
      process.stop_all()
      program.clean()
    end)
    fn()
  end
end

-- ---- replies that no server gives ----

local function both(text)
  return { meta = text, ascii = text }
end

-- Each: what it is, the kind of the error, what memory it may cost, and what is sent.
local REPLIES = {
  { "announces 2^62 bytes", "too_large", BLOCK,
    head = { meta = "VA 4611686018427387904$O\r\n",
             ascii = "VALUE $K 0 4611686018427387904\r\n" } },
  { "announces 2^64 bytes", "protocol", BLOCK,
    head = { meta = "VA 18446744073709551616$O\r\n",
             ascii = "VALUE $K 0 18446744073709551616\r\n" } },
  { "has a size of 30 digits", "protocol", BLOCK,
    head = { meta = "VA " .. ("9"):rep(30) .. "$O\r\n",
             ascii = "VALUE $K 0 " .. ("9"):rep(30) .. "\r\n" } },
  { "has a negative size", "protocol", BLOCK,
    head = { meta = "VA -1$O\r\n", ascii = "VALUE $K 0 -1\r\n" } },
  { "announces max_value + 1", "too_large", BLOCK,
    head = { meta = "VA 67108865$O\r\n", ascii = "VALUE $K 0 67108865\r\n" } },
  { "is a line without an end", "protocol", BLOCK, chunk = both(("x"):rep(1024)) },
  { "is a line of a megabyte", "protocol", BLOCK, head = both(("x"):rep(MIB) .. "\r\n") },
  { "echoes a key of a megabyte", "protocol", BLOCK,
    head = { meta = "VA 1 k" .. ("k"):rep(MIB) .. "$O\r\nx\r\n",
             ascii = "VALUE " .. ("k"):rep(MIB) .. " 0 1\r\nx\r\nEND\r\n" } },
  { "has 100,000 flags", "protocol", BLOCK,
    head = { meta = "VA 1$O" .. (" t0"):rep(100000) .. "\r\nx\r\n",
             ascii = "VALUE $K" .. (" 0"):rep(100000) .. "\r\nx\r\nEND\r\n" } },
  { "goes on behind its value", "protocol", 32 * MIB + BLOCK,
    head = { meta = "VA 20000000$O\r\n", ascii = "VALUE $K 0 20000000\r\n" },
    chunk = both(("x"):rep(65536)) },
}

local function combinations(protocol)
  local list = {}
  for _, direct in ipairs { "true", "false" } do
    for _, verify in ipairs { "true", "false" } do
      list[#list + 1] = ("?protocol=%s&direct_read=%s&verify=%s&timeout=20s"):format(
        protocol, direct, verify)
    end
  end
  return list
end

describe("a reply that", function()
  for _, case in ipairs(REPLIES) do
    for _, protocol in ipairs { "meta", "ascii" } do
      it(("%s is %s, over %s"):format(case[1], case[2], protocol), cleaned(function()
        local _, url = start_flood {
          wait = 1, head = case.head and case.head[protocol],
          chunk = case.chunk and case.chunk[protocol],
        }
        local lines, marks = run(([[
          local url = arg[1]
          ready()
          for _, options in ipairs { "%s" } do
            local conn = assert(mj.connect(url .. options))
            print(kind_of(conn:get("key")), conn:is_open())
            conn = assert(mj.connect(url .. options))
            local into = require("string.buffer").new()
            print(kind_of(conn:get("key", { into = into })), conn:is_open() or #into > 0)
            into = nil -- it is the script's own
            collectgarbage()
          end
        ]]):format(table.concat(combinations(protocol), '", "')), url)
        for _, line in ipairs(lines) do assert.equal(case[2] .. "\tfalse", line) end
        assert.equal(8, #lines)
        check(marks["end"], case[3], 20)
      end))
    end
  end
end)

-- Each: what is sent to whoever connects, or to the first line of the handshake.
local GREETINGS = {
  { "a line without an end", "protocol", { wait = 1, chunk = ("x"):rep(1024) } },
  { "a greeting that nobody asked for", "protocol", { chunk = "220 mail.example\r\n" } },
  { "an error without an end", "protocol", { chunk = "ERROR and so on " } },
  { "a value of 2^62 bytes", "protocol",
    { wait = 1, head = "VA 4611686018427387904\r\n", chunk = ("x"):rep(1024) } },
  { "errors without an end", "server_error", { wait = 1, chunk = "SERVER_ERROR no\r\n" } },
  { "versions without an end", "protocol", { wait = 1, chunk = "VERSION 1.6.18\r\n" } },
}

describe("a server that meets a handshake with", function()
  for _, case in ipairs(GREETINGS) do
    it(("%s: %s"):format(case[1], case[2]), cleaned(function()
      local _, url = start_flood(case[3])
      local lines, marks = run([[
        ready()
        for _ = 1, 10 do print(kind_of(mj.connect(arg[1]))) end
      ]], url)
      for _, line in ipairs(lines) do assert.equal(case[2], line) end
      assert.equal(10, #lines)
      check(marks["end"], BLOCK, 10)
    end))
  end
end)

-- ---- a server that does not stop ----

-- Each: what it sends, what is asked of it, how that ends, what memory it may cost.
local FLOODS = {
  { "STAT lines, each of another name", "too_large", 2 * AS_LUA * STATS,
    play = { wait = 1, chunk = "STAT name%d 1\r\n" }, ask = "conn:stats()" },
  { "STAT lines, all the same", "too_large", BLOCK,
    play = { wait = 1, chunk = "STAT name 1\r\n" }, ask = "conn:stats()" },
  { "values of a key that a multi-get asked for", "nil", BLOCK,
    play = { wait = 1, chunk = "VALUE key 0 1\r\nx\r\n" }, ask = "conn:get_many { 'key' }" },
  { "a million values of which ten were asked for", "protocol", BLOCK,
    play = { wait = 1, chunk = "VALUE key1 0 1\r\nx\r\n", count = 1000000 },
    ask = "conn:get_many { 'key1', 'key2', 'k3', 'k4', 'k5', 'k6', 'k7', 'k8', 'k9', 'k10' }" },
  { "errors behind quiet requests", "protocol", 2 * STRAYS + OUT,
    play = { wait = 1, chunk = "SERVER_ERROR out of memory storing object\r\n" },
    ask = "quiet(10000)" },
  { "errors that name nobody", "server_error", BLOCK,
    play = { wait = 1, chunk = "SERVER_ERROR out of memory\r\n" }, ask = "conn:get('key')" },
  { "replies that nobody asked for", "closed", BLOCK,
    play = { chunk = "HD\r\n" }, ask = "wait_for_end()" },
  { "the beginning of an error that nobody asked for", "closed", BLOCK,
    play = { chunk = "ERROR and so on " }, ask = "wait_for_end()" },
}

describe("a server that never stops sending", function()
  for _, case in ipairs(FLOODS) do
    for _, protocol in ipairs { "meta", "ascii" } do
      it(("%s: %s, over %s"):format(case[1], case[2], protocol), cleaned(function()
        local _, url = start_flood(case.play)
        local lines, marks = run(([[
          local url = arg[1]
          ready()
          for _, options in ipairs { "%s" } do
            local conn = assert(mj.connect(url .. options))
            local function quiet(count)
              for i = 1, count do conn:set("key" .. i, "v", { quiet = true }) end
              return conn:get("key")
            end
            local function wait_for_end()
              while conn:is_open() do mj.sleep(0) end
              return conn:get("key")
            end
            print(kind_of(%s))
            while conn:is_open() do mj.sleep(0) end -- what is not asked for ends it
          end
        ]]):format(table.concat(combinations(protocol), '", "'), case.ask), url)
        assert.equal(4, #lines)
        for _, line in ipairs(lines) do assert.equal(case[2], line) end
        check(marks["end"], case[3], 20)
      end))
    end
  end

end)

-- Each: what it sends, and how it is asked, again and again.
local HOGS = {
  { "STAT lines", { wait = 1, chunk = "STAT name%d 1\r\n" }, "flood:stats()" },
  { "values of a multi-get", { wait = 1, chunk = "VALUE key 0 1\r\nx\r\n" },
    "flood:get_many { 'key' }" },
  { "a large value", { wait = 1, head = "VA 67000000$O\r\n", chunk = ("x"):rep(65536) },
    "flood:get 'key'" },
  { "replies to nobody", { wait = 1, chunk = "EN\r\n" }, "flood:noop()" },
  { "errors behind quiet requests",
    { wait = 1, chunk = "SERVER_ERROR out of memory storing object\r\n" },
    "flood:set('key', 'value', { quiet = true }), mj.sleep(0.1)" },
}

describe("the other connections of a runtime are served", function()
  for _, hog in ipairs(HOGS) do
    it("while a server sends " .. hog[1], cleaned(function()
      local server = memcached.start { unix = true }
      local _, url = start_flood(hog[2])
      -- In time of this process alone: the machine may be busy.
      local lines = run(([[
        local conn = assert(mj.connect(arg[1] .. "?timeout=30s"))
        assert(conn:set("key", "value"))
        ready()
        local over, took = false, {}
        mj.spawn(function()
          while not over do
            local flood = mj.connect("%s?protocol=meta&timeout=100ms")
            if flood then
              local _ = %s
              flood:close()
            end
          end
        end)
        local last = mj.now() + 1
        repeat
          local before = os.clock()
          assert(conn:get("key") == "value")
          took[#took + 1] = os.clock() - before
        until #took >= 20 and mj.now() > last
        over = true
        table.sort(took)
        print(#took, took[math.ceil(#took * 0.9)], took[#took])
      ]]):format(url, hog[3]), server.url)
      local most, worst = lines[1]:match("^%S+\t(%S+)\t(%S+)$")
      if os.getenv "RESOURCES" then print("", lines[1]) end
      assert(tonumber(most) < 0.05 * measured.slowness, lines[1])
      assert(tonumber(worst) < 0.2 * measured.slowness, lines[1])
    end))
  end
end)
