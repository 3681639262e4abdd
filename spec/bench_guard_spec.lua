-- bench: the guard of instructions tells what grew, and the smaller benches run. How fast
-- anything is, is no matter here.

local callgrind = require "bench.callgrind"
local cjson = require "cjson"
local memcached = require "spec.support.memcached"
local process = require "spec.support.process"
local program = require "spec.support.program"
local rounds = require "bench.rounds"

local SECONDS = 120

-- Runs the program with these arguments to its end. Returns its status and what it wrote.
local function run(env, ...)
  local words = { program.path, env = env, errors = true, ... }
  local out, status, errors = process.start(words):finish(SECONDS)
  return status, out .. errors
end

local function clean()
  memcached.stop_all()
  process.stop_all()
  program.clean()
end

describe("callgrind.read", function()
  teardown(clean)

  it("counts a file's own instructions, wherever they were inlined", function()
    local path = program.script([[
events: Ir
ob=(1) /somewhere/build/moonjay
fl=(1) /somewhere/src/conn_read.c
fn=(1) parse
10 100
fi=(2) /somewhere/src/wire.c
+3 20
fe=(1)
* 3
cob=(2) /usr/lib/libluajit-5.1.so.2.1.0
cfi=(3) ???
cfn=(2) lua_resume
calls=1 0
-4 1000

ob=(2)
fl=(3)
fn=(2)
0 700
ob=(3) ???
fn=(3) 0x1234
0 300
]])
    local parts, total = callgrind.read(path, "moonjay")
    assert.same({ ["src/conn_read.c"] = 103, ["src/wire.c"] = 20, libluajit = 700,
                  ["compiled Lua"] = 300 }, parts)
    assert.equal(1123, total)
  end)
end)

describe("bench/check.lua", function()
  local COST = 1000
  -- Runs the program, and says that each operation took COST instructions.
  local FAKE = [[
#!/bin/sh
for word; do
    case $word in --callgrind-out-file=*) out=${word#*=} ;; esac
done
while [ "$1" != -- ]; do shift; done
shift
"$@" || exit
for count; do :; done
printf 'ob=(1) /x/moonjay\nfl=(1) /x/src/conn_read.c\n1 %d\n' $((123456 + count * COST)) >"$out"
]]

  local server
  setup(function()
    server = memcached.start { unix = true, args = { "-t", "1", "-R", "200" } }
  end)
  teardown(clean)

  -- A record in which each workload took so many instructions an operation.
  local function check(totals)
    local folder = program.folder()
    program.write(folder .. "/valgrind", (FAKE:gsub("COST", COST)))
    os.execute("chmod +x " .. folder .. "/valgrind")
    local instructions = {}
    for _, name in ipairs(rounds.names) do
      local total = totals[name] or COST
      instructions[name] = { total = total, parts = { ["src/conn_read.c"] = total } }
    end
    program.write(folder .. "/recorded.json", cjson.encode { instructions = instructions })
    return run({ MEMCACHE_URL = server.url, PATH = folder .. ":" .. os.getenv "PATH" },
      "bench/check.lua", "check", folder .. "/recorded.json")
  end

  it("lets a growth of a tenth pass, and names what changed", function()
    local status, said = check { P1 = 910, P3 = 1500 }
    assert.equal(0, status, said)
    assert.truthy(said:find("src/conn_read.c +90", 1, true), said)
    assert.truthy(said:find("src/conn_read.c -500", 1, true), said)
  end)

  it("fails on more, and names it", function()
    local status, said = check { P2 = 900 }
    assert.equal(1, status, said)
    assert.truthy(said:find("P2 grew by more than 10%", 1, true), said)
  end)

  it("fails without valgrind, and says so", function()
    local folder = program.folder()
    os.execute(("ln -s /bin/sh %s/sh"):format(folder))
    os.execute(("ln -s %s %s/readlink"):format("$(command -v readlink)", folder))
    local words = { "PATH=" .. folder, program.path, "bench/check.lua", "check" }
    local child = process.start {
      "env", errors = true, env = { MEMCACHE_URL = server.url }, unpack(words),
    }
    local out, status, errors = child:finish(SECONDS)
    assert.equal(1, status)
    assert.truthy(errors:find("valgrind is not there", 1, true), out .. errors)
  end)
end)

describe("the smaller benches", function()
  local server
  setup(function() server = memcached.start { unix = true } end)
  teardown(clean)

  it("run: bench/growth.lua, a part of it", function()
    for _, words in ipairs {
      { "gets", "0.05", "10", "2" }, { "tasks", "sleep", "1000" }, { "tasks", "get", "1000" },
      { "tasks", "deadline", "1000" }, { "connections", "100" },
    } do
      words[#words + 1] = server.url
      local status, said = run(nil, "bench/growth.lua", "play", unpack(words))
      assert.equal(0, status, said)
      local figures = cjson.decode(said)
      assert.equal("number", type(figures.cpu or figures.resident), said)
    end
  end)

  for _, words in ipairs {
    { "bench/tail.lua", "0.1", says = "computing 1 ms in each turn" },
    { "bench/start.lua", "3", says = "program start to first reply" },
    { "bench/interpreted.lua", "0.05", "1", says = "moonjay, interpreted" },
  } do
    it("run: " .. words[1], function()
      local status, said = run(nil, unpack(words))
      assert.equal(0, status, said)
      assert.truthy(said:find(words.says, 1, true), said)
    end)
  end
end)
