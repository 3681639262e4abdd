-- lua/examples: every example runs to its end and says what it promises, so that none rots.

local lfs = require "lfs"
local memcached = require "spec.support.memcached"
local program = require "spec.support.program"

local folder = lfs.currentdir() .. "/lua/examples/"

-- Runs an example on a private memcached; fails unless it ends with this status (0).
local function run(name, words, status)
  local result = program.run(("$MOONJAY run --memcached %s%s.lua %s"):format(
    folder, name, words or ""))
  assert.equal(status or 0, result.status, result.out .. result.err)
  return result.out, result.err
end

local function assert_says(text, ...)
  for _, part in ipairs { ... } do assert.truthy(text:find(part, 1, true), text) end
end

local function key_file(keys)
  local name = program.folder() .. "/keys"
  program.write(name, table.concat(keys, "\n") .. "\n")
  return name
end

-- What each example is run for; the last spec sees to it that none is forgotten.
local EXAMPLES = {}

function EXAMPLES.demo()
  it("shows a cache workflow in seven steps", function()
    local out, err = run "demo"
    assert.equal("", err)
    for number = 1, 7 do assert_says(out, "\n" .. number .. ". ") end
    assert.truthy(out:find("miss +[%d.]+ ms +jar of moonlight no. 7\n"), out)
    assert.truthy(out:find("hit +[%d.]+ ms +jar of moonlight no. 7\n"), out)
    assert.truthy(out:find("get a +%-%->  1\n"), out)
    assert.truthy(out:find("incr a by 41 +%-%->  42\n"), out)
    assert.truthy(out:find("get b +%-%->  nil\n"), out)
    assert.truthy(out:find("add a x +%-%->  false\n"), out)
    assert_says(out, "the counter is 50, and the tasks drew 50 different numbers")
    for _, guest in ipairs { "jay", "owl", "wren", "lark" } do
      assert.truthy(out:match("guests:[^\n]*"):find(" " .. guest, 1, true), out)
    end
    for _, kind in ipairs { "bad_key", "client_error", "timeout", "connect_refused" } do
      assert_says(out, "-->  " .. kind .. " (sent: ")
    end
    assert_says(out, "as good as ever: jar of moonlight no. 7", ", 0 timeouts.")
  end)

  it("shows that a hundred tasks share one write", function()
    local out = run "demo"
    assert_says(out, "requests 5, writes 1\n", "requests 100, writes 1:")
    assert.truthy(out:find("warm:  hits 100 "), out)
  end)

  it("shows the same every time but for the times", function()
    local function without_times(text) return (text:gsub(" *[%d.]+ ms", " ms")) end
    assert.equal(without_times(run "demo"), without_times(run "demo"))
  end)
end

function EXAMPLES.fast()
  -- The last figure of a line.
  local function writes(out, way)
    return tonumber(out:match("\n" .. way .. "[^\n]* (%d+)\n"))
  end

  it("shows how many gets share a write, in four ways", function()
    local out, err = run("fast", "2000")
    assert.equal("", err)
    assert_says(out, "2000 gets of 99 bytes each way\n")
    assert.equal(2000, writes(out, "one get at a time"))
    assert.is_true(writes(out, "100 tasks on one connection") < 1000, out)
    assert.equal(20, writes(out, "pipelines of 100"))
    assert.equal(20, writes(out, "get_many of 100 keys"))
  end)

  it("takes a hundred gets at least", function()
    local _, err = run("fast", "99", 2)
    assert_says(err, "usage: moonjay fast.lua [GETS]; at least 100\n")
  end)
end

function EXAMPLES.warm()
  it("warms a list of its own", function()
    assert_says(run "warm", "200 keys: 200 warmed, 0 kept, 0 failed; 8 workers")
  end)

  it("keeps what is there, and fails with the key that cannot be one", function()
    local name = key_file { "one", "two", "", "one", "no key" }
    local out, err = run("warm", name .. " 1", 1)
    assert_says(out, "4 keys: 2 warmed, 1 kept, 1 failed; 1 workers")
    assert_says(err, "warm: bad_key: ", '"no key"')
  end)

  it("says in one line that there is no such list", function()
    local out, err = run("warm", "/nowhere/keys", 2)
    assert.equal("", out)
    assert_says(err, "warm: /nowhere/keys: No such file")
  end)

  it("says how to call it", function()
    assert_says(select(2, run("warm", "keys none", 2)), "usage: moonjay warm.lua [KEYS-FILE")
  end)
end

EXAMPLES["limit"] = function()
  it("lets three pass, each user for itself", function()
    assert.equal(table.concat({
      "jay  allowed  2 left", "jay  allowed  1 left", "owl  allowed  2 left",
      "jay  allowed  0 left", "jay  refused  0 left", "owl  allowed  1 left",
      "jay  refused  0 left", "" }, "\n"), (run "limit"))
  end)

  it("says how to call it", function()
    assert_says(select(2, run("limit", "many", 2)), "usage: moonjay limit.lua [LIMIT")
  end)

  it("takes another limit", function()
    assert_says(run("limit", "1 5"), "jay  allowed  0 left\njay  refused  0 left\n")
  end)
end

EXAMPLES["lock"] = function()
  it("asks the source once for all who miss at once", function()
    assert.equal("200 of 200 readers have the report; the source was asked 1 time(s)\n" ..
      "the lock is free\n", (run("lock", "200")))
  end)

  it("says how to call it", function()
    assert_says(select(2, run("lock", "0", 2)), "usage: moonjay lock.lua [READERS]")
  end)
end

EXAMPLES["reconnect"] = function()
  it("goes on when its connection is closed", function()
    local start = os.time()
    local out, err = run "reconnect"
    assert.equal("", err)
    assert.equal("connected: 1\nready\nclosing the connection under it\nconnected: 2\n" ..
      "20 rounds, each answered, on 2 connection(s)\n", out)
    assert.is_true(os.time() - start < 10)
  end)

  it("goes on when the server is killed and started again", function()
    local server = memcached.start()
    local command = "env MEMCACHE_URL=%s $MOONJAY %sreconnect.lua 1e6 60"
    local running = program.start(command:format(server.url, folder))
    server:kill()
    assert.truthy(program.wait_for(function()
      return running:output():find("connect_refused (sent: no), and once more", 1, true)
    end), running:output())
    server:restart()
    assert.truthy(program.wait_for(function()
      return running:output():find("connected: 2\n", 1, true)
    end), running:output())
    running:signal "INT"
    assert.equal(130, running:wait(), running:output())
  end)

  it("gives up when its patience ends, or when no retry can help", function()
    local function on(url)
      return program.run(("MEMCACHE_URL=%s $MOONJAY %sreconnect.lua 5 0.1"):format(url, folder))
    end
    local nobody = on("memcache://127.0.0.1:" .. memcached.free_port())
    assert.equal(1, nobody.status, nobody.err)
    assert_says(nobody.out, "connect_refused (sent: no), and once more\n")
    assert_says(nobody.err, "reconnect: connect_refused: ")
    local wrong = on "nonsense"
    assert.same({ 1, "" }, { wrong.status, wrong.out })
    assert_says(wrong.err, "reconnect: bad_url: ")
  end)

  it("says how to call it", function()
    assert_says(select(2, run("reconnect", "0", 2)), "usage: moonjay reconnect.lua [ROUNDS")
  end)
end

EXAMPLES["copy"] = function()
  it("copies items with flags and time left, and keeps what is there", function()
    local from, to = memcached.start(), memcached.start()
    local fill = program.script(([[
      local mj = require "moonjay"
      local from, to = mj.check(mj.connect(%q)), mj.check(mj.connect(%q))
      for i = 1, 600 do from:set("key" .. i, "value" .. i, { ttl = 100, flags = i }) end
      from:set("forever", "x")
      to:set("key1", "newer")
    ]]):format(from.url, to.url))
    local filled = program.run("$MOONJAY " .. fill)
    assert.equal(0, filled.status, filled.err)

    local keys = { "nothing", "", "forever" }
    for i = 1, 600 do keys[#keys + 1] = "key" .. i end
    local words = ("%s %s %s"):format(from.url, to.url, key_file(keys))
    assert.equal("600 copied, 1 kept, 1 missing, 0 failed\n", (run("copy", words)))
    assert.equal("0 copied, 601 kept, 1 missing, 0 failed\n", (run("copy", words)))

    local conn = assert(require("moonjay").connect(to.url))
    local item = conn:item("key600")
    assert.same({ "value600", 600 }, { item.value, item.flags })
    assert.is_true(item.ttl > 50 and item.ttl <= 100)
    assert.equal(0, conn:item("forever").ttl)
    assert.equal("newer", conn:get("key1"))
    conn:close()
  end)

  it("says how to call it, and what it cannot do", function()
    local out, err = run("copy", "memcache://a", 2)
    assert.equal("", out)
    assert_says(err, "usage: moonjay copy.lua FROM-URL TO-URL KEYS-FILE\n")
    out, err = run("copy", "memcache://a memcache://b /nowhere/keys", 2)
    assert.equal("", out)
    assert_says(err, "copy: /nowhere/keys: No such file")
    assert_says(select(2, run("copy", "a b " .. key_file {}, 2)), "copy: bad_url: ")
    local ascii = "\"$MEMCACHE_URL?protocol=ascii\""
    local result = program.run(("$MOONJAY run --memcached %s"):format(program.script(([[
      os.exit(os.execute('%s "%scopy.lua" %s "$MEMCACHE_URL" -') / 256)
    ]]):format(program.path, folder, ascii))))
    assert.equal(2, result.status, result.err)
    assert_says(result.err, "speaks the ascii protocol")
  end)
end

describe("the examples", function()
  teardown(memcached.stop_all)
  after_each(program.clean)

  for name, specs in pairs(EXAMPLES) do describe(name, specs) end

  it("are all run here", function()
    for name in lfs.dir(folder) do
      local example = name:match("^(.*)%.lua$")
      assert.is_true(not example or EXAMPLES[example] ~= nil, name)
    end
  end)
end)
