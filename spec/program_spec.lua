-- src/main.c and lua/moonjay/cli.lua: the program as a user meets it, in real processes.

local lfs = require "lfs"
local program = require "spec.support.program"
local servers = require "spec.support.memcached"

local run, script = program.run, program.script

-- A script that says where its memcached is and then stays.
local HOLD = [[
  print(os.getenv("MEMCACHE_URL"), "ready")
  require("moonjay").sleep(1000)
]]

local function lines(text)
  return select(2, text:gsub("\n", "\n"))
end

local function assert_one_line(text, ...)
  assert.equal(1, lines(text), text)
  for _, part in ipairs { ... } do assert.truthy(text:find(part, 1, true), text) end
end

-- The socket of the URL that a script printed.
local function socket_in(output)
  return assert(output:match("memcache://(/%S+)"), output)
end

local function nothing_left(socket)
  local folder = socket:match("^(.*)/")
  return not program.memcached_of(socket) and not lfs.attributes(folder)
end

describe("the program", function()
  after_each(program.clean)

  it("gives a script its arguments as lua does", function()
    local name = script([[
      print(arg[0], arg[1], arg[2], arg[3], #arg, ...)
      print(arg[-1], arg[-2], arg[-3])
    ]])
    local direct = run("$MOONJAY " .. name .. " one '' 'a b'")
    assert.equal(0, direct.status, direct.err)
    assert.equal(name .. "\tone\t\ta b\t3\tone\t\ta b\n" .. program.path .. "\tnil\tnil\n",
      direct.out)
    local named = run("$MOONJAY run " .. name .. " -x --help")
    assert.equal(name .. "\t-x\t--help\tnil\t2\t-x\t--help\nrun\t" .. program.path .. "\tnil\n",
      named.out)
  end)

  it("lets leave what is queued when the last task ends", function()
    local name = script([[
      local mj = require "moonjay"
      local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL"))
      if arg[1] == "set" then
        local value = ("x"):rep(500000)
        for i = 1, 40 do conn:set("k" .. i, value, { quiet = true }) end
      else
        local count = 0
        for i = 1, 40 do count = count + #(conn:get("k" .. i) or "") end
        print(count)
      end
    ]])
    finally(servers.stop_all)
    local server = servers.start()
    local command = "MEMCACHE_URL=" .. server.url .. " $MOONJAY " .. name
    assert.equal(0, run(command .. " set").status)
    assert.equal("20000000\n", run(command .. " get").out)
  end)

  it("reads a script from standard input", function()
    local result = run("echo 'print(arg[0], ...)' | $MOONJAY - 1 2")
    assert.equal("-\t1\t2\n", result.out)
    assert.equal(0, result.status)
  end)

  it("reads a script from a pipe", function()
    local result = run("echo 'print(6 * 7)' | $MOONJAY /dev/stdin")
    assert.equal("42\n", result.out, result.err)
  end)

  it("skips a first line that starts with #!", function()
    local result = run("$MOONJAY " .. script("#!/usr/bin/env moonjay\nprint(1)\nerror('x')\n"))
    assert.equal("1\n", result.out)
    assert.truthy(result.err:find("script.lua:3: x", 1, true), result.err)
  end)

  it("ends with a traceback and status 1 on an uncaught error", function()
    local result = run("$MOONJAY " .. script([[
      local function deep() error("it broke") end
      deep()
    ]]))
    assert.equal(1, result.status)
    assert.equal("", result.out)
    assert.truthy(result.err:find("script.lua:1: it broke\nstack traceback:", 1, true),
      result.err)
    assert.truthy(result.err:find("in function 'deep'", 1, true), result.err)
  end)

  it("reports an error that nobody waits for, lets other tasks end, status 1", function()
    local result = run("$MOONJAY " .. script([[
      local mj = require "moonjay"
      mj.spawn(function() error("lost") end)
      mj.spawn(function() mj.sleep(0.02) print("the other ended") end)
    ]]))
    assert.equal(1, result.status)
    assert.equal("the other ended\n", result.out)
    assert.equal(1, select(2, result.err:gsub("script.lua:2: lost", "")), result.err)
    assert.truthy(result.err:find("stack traceback:", 1, true), result.err)
  end)

  it("reports an error of a task for which a wait had been given up before", function()
    local result = run("$MOONJAY " .. script([[
      local mj = require "moonjay"
      local late = mj.spawn(function() mj.sleep(0.02) error("late") end)
      assert(not late:wait(0.001))
      local waiter = mj.spawn(late.wait, late)
      mj.sleep(0)
      waiter:cancel()
    ]]))
    assert.equal(1, result.status)
    assert.truthy(result.err:find("script.lua:2: late\nstack traceback:", 1, true), result.err)
  end)

  it("survives an error of nil and of a table", function()
    for _, value in ipairs { "nil", "{}", "setmetatable({}, { __tostring = error })" } do
      local result = run("$MOONJAY " .. script("error(" .. value .. ")"))
      assert.equal(1, result.status)
      assert.truthy(result.err:find("moonjay: ", 1, true), result.err)
    end
  end)

  it("ends with the last task, not with the script", function()
    local result = run("$MOONJAY " .. script([[
      local mj = require "moonjay"
      mj.spawn(function() mj.sleep(0.05) print("second") end)
      print("first")
    ]]))
    assert.equal("first\nsecond\n", result.out, result.err)
    assert.equal(0, result.status)
  end)

  it("ends although a connection is open and idle", function()
    local result = run("$MOONJAY --memcached " .. script([[
      local conn = assert(require("moonjay").connect(os.getenv("MEMCACHE_URL")))
      kept = conn
      print(conn:version())
    ]]))
    assert.equal(0, result.status, result.err)
    assert.truthy(result.out:find("^%d+%.%d+"), result.out)
  end)

  it("says in one line that a script does not exist", function()
    local result = run("$MOONJAY /nowhere/script.lua")
    assert.equal(2, result.status)
    assert_one_line(result.err, "/nowhere/script.lua", "No such file")
  end)

  it("says in one line that a script is a folder", function()
    local result = run("$MOONJAY /tmp")
    assert.equal(2, result.status)
    assert_one_line(result.err, "/tmp", "directory")
  end)

  it("says in one line, with file and line, that a script does not parse", function()
    local name = script("local a = 1\nlocal b = = 2\n")
    local result = run("$MOONJAY " .. name)
    assert.equal(1, result.status)
    assert_one_line(result.err, name .. ":2:", "unexpected symbol")
    local long = run("$MOONJAY " .. script("print(1)\nx [[a\nb\nc]] y z\n"))
    assert.equal(1, long.status)
    assert_one_line(long.err, "script.lua:4:")
  end)

  it("refuses bad usage in one line, with status 2", function()
    for _, words in ipairs { "", "run", "--memcached", "--menmcached x.lua", "-x", "--" } do
      local result = run("$MOONJAY " .. words)
      assert.equal(2, result.status, words)
      assert.equal("", result.out)
      assert_one_line(result.err, "moonjay: ")
    end
    assert_one_line(run("$MOONJAY --memcached-args").err, "--memcached-args needs a value")
  end)

  it("prints its help and its version", function()
    local shown = run("$MOONJAY --help")
    assert.equal(0, shown.status)
    assert.truthy(shown.out:find("--memcached-args", 1, true))
    assert.equal("", shown.err)
    assert.truthy(run("$MOONJAY --version").out:find("^moonjay %d+%.%d+%.%d+\n$"))
  end)

  it("ends with the status that os.exit was given", function()
    for words, status in pairs { ["3"] = 3, ["4, true"] = 4, ["true"] = 0, ["false"] = 1 } do
      local result = run("$MOONJAY " .. script("print('x') os.exit(" .. words .. ")"))
      assert.equal(status, result.status, words .. result.err)
      assert.equal("x\n", result.out)
    end
  end)

  it("goes on when os.exit refuses its status", function()
    local result = run("timeout 20 $MOONJAY " .. script([[
      local mj = require "moonjay"
      local task = mj.spawn(mj.sleep, 0.001)
      for _, status in ipairs { {}, "x", print } do
        assert(not pcall(os.exit, status, true))
      end
      task:wait()
      print(mj.spawn(function() return "alive" end):wait())
      os.exit("3", true)
    ]]))
    assert.equal("alive\n", result.out, result.err)
    assert.equal(3, result.status)
  end)

  it("leaves the signals alone without --memcached, and loses no printed line", function()
    for name, status in pairs { INT = 130, TERM = 143, HUP = 129 } do
      local running = program.start("$MOONJAY " .. script(HOLD))
      running:signal(name)
      assert.equal(status, running:wait())
      assert.truthy(running:output():find("ready", 1, true))
    end
  end)

  it("runs with its standard streams closed", function()
    local result = run("$MOONJAY --memcached " .. script([[
      io.stdin:close()
      local conn = assert(require("moonjay").connect(os.getenv("MEMCACHE_URL")))
      assert(conn:set("a", "1"))
      os.exit(conn:get("a") == "1" and 7 or 1)
    ]]) .. " <&- >&-")
    assert.equal(7, result.status, result.err)
  end)
end)

describe("--memcached", function()
  after_each(program.clean)

  it("gives the script a memcached of its own, whatever MEMCACHE_URL was", function()
    local name = script([[
      local conn = assert(require("moonjay").connect(os.getenv("MEMCACHE_URL")))
      assert(conn:set("k", "v"))
      print(os.getenv("MEMCACHE_URL"), conn:get("k"), conn:stats().curr_items)
    ]])
    local first = run("MEMCACHE_URL=memcache://192.0.2.1 $MOONJAY run --memcached " .. name)
    assert.equal(0, first.status, first.err)
    assert.truthy(first.out:find("^memcache:///%S+\tv\t1\n$"), first.out)
    local second = run("$MOONJAY --memcached " .. name)
    assert.not_equal(first.out, second.out)
  end)

  it("passes further arguments to memcached", function()
    local result = run("$MOONJAY --memcached-args '-R 123  -c 55' " .. script([[
      local conn = assert(require("moonjay").connect(os.getenv("MEMCACHE_URL")))
      local settings = conn:stats("settings")
      print(settings.reqs_per_event, settings.maxconns)
    ]]))
    assert.equal("123\t55\n", result.out, result.err)
  end)

  it("makes the socket for this user alone", function()
    local result = run("$MOONJAY --memcached " .. script([[
      local folder = os.getenv("MEMCACHE_URL"):match("^memcache://(.*)/")
      os.execute("stat -c %a " .. folder)
    ]]))
    assert.equal("700\n", result.out, result.err)
  end)

  local ENDINGS = {
    ["ended"] = "",
    ["failed"] = "error('x')",
    ["called os.exit"] = "os.exit(0)",
    ["called os.exit and closed the state"] = "os.exit(0, true)",
    ["crashed"] = "io.stdout:flush() require('ffi').cast('int *', 0)[0] = 1",
    ["killed its memcached"] = "os.execute('kill -9 ' .. pid)",
    ["left a process behind"] = "os.execute('sleep 60 </dev/null >/dev/null 2>&1 &')",
  }
  for how, code in pairs(ENDINGS) do
    it("leaves nothing behind when the script has " .. how, function()
      local result = run("$MOONJAY --memcached " .. script([[
        local url = os.getenv("MEMCACHE_URL")
        print(url)
        local socket = url:match("^memcache://(.*)$")
        local found = io.popen("grep -la '^memcached' /proc/[0-9]*/cmdline | cut -d/ -f3 | " ..
          "while read p; do grep -qa " .. socket .. " /proc/$p/cmdline && echo $p; done")
        local pid = assert(found:read("*n"), "no memcached runs")
        found:close()
      ]] .. code))
      local socket = socket_in(result.out)
      if how == "crashed" then -- then the guard is on its own
        assert.not_equal(0, result.status)
        program.wait_for(function() return nothing_left(socket) end)
      end
      assert.is_true(nothing_left(socket))
    end)
  end

  it("leaves nothing behind when the script does not parse", function()
    local before = run("ls -d /tmp/moonjay-* | wc -l").out
    assert.equal(1, run("$MOONJAY --memcached " .. script("x x x")).status)
    assert.equal(before, run("ls -d /tmp/moonjay-* | wc -l").out)
  end)

  for name, status in pairs { INT = 130, TERM = 143, HUP = 129 } do
    it("has stopped memcached when SIG" .. name .. " has ended moonjay", function()
      local running = program.start("$MOONJAY --memcached " .. script(HOLD))
      local socket = socket_in(running:output())
      assert.is_number(program.memcached_of(socket))
      running:signal(name)
      assert.equal(status, running:wait())
      assert.is_true(nothing_left(socket))
    end)
  end

  it("lets an ignored SIGHUP be ignored", function()
    local result = run("nohup $MOONJAY --memcached " .. script([[
      local stat = io.open("/proc/self/stat")
      os.execute("kill -HUP " .. stat:read("*n"))
      print("alive")
    ]]))
    assert.equal("alive\n", result.out, result.err)
    assert.equal(0, result.status)
  end)

  it("stops memcached when moonjay is killed, even while its children live", function()
    local running = program.start("$MOONJAY --memcached " .. script(
      "os.execute('sleep 60 </dev/null >/dev/null 2>&1 & echo child $!')" .. HOLD))
    local socket = socket_in(running:output())
    assert.is_number(program.memcached_of(socket))
    running:signal("KILL")
    assert.equal(137, running:wait())
    assert.is_true(program.wait_for(function() return nothing_left(socket) end))
    local child = running:output():match("child (%d+)")
    assert.is_true(program.alive(child))
    os.execute("kill " .. child)
  end)

  it("stops memcached when moonjay is killed, even with a process it forked", function()
    local running = program.start("$MOONJAY --memcached " .. script([[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int poll(void *, unsigned long, int); void _exit(int);"
      local child = ffi.C.fork()
      if child == 0 then
        ffi.C.poll(nil, 0, 60000)
        ffi.C._exit(0)
      end
      print("child " .. child)
    ]] .. HOLD))
    local output = running:output()
    local socket, child = socket_in(output), output:match("child (%d+)")
    running:signal("KILL")
    assert.equal(137, running:wait())
    local stopped = program.wait_for(function() return nothing_left(socket) end)
    assert.is_true(program.alive(child))
    os.execute("kill " .. child)
    assert.is_true(stopped)
  end)

  it("does not wait for a process that the script forked", function()
    local result = run("$MOONJAY --memcached " .. script([[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int poll(void *, unsigned long, int); void _exit(int);"
      local child = ffi.C.fork()
      if child == 0 then
        ffi.C.poll(nil, 0, 60000)
        ffi.C._exit(0)
      end
      print(os.getenv("MEMCACHE_URL"), "child " .. child)
    ]]))
    local child = result.out:match("child (%d+)")
    assert.is_true(program.alive(child))
    os.execute("kill " .. child)
    assert.is_true(nothing_left(socket_in(result.out)))
  end)

  it("stops memcached when its guard is killed, and sweeps up at the end", function()
    local running = program.start("$MOONJAY --memcached " .. script(HOLD))
    local socket = socket_in(running:output())
    local memcached = program.memcached_of(socket)
    local guard = program.parent(memcached)
    assert.equal(running.pid, program.parent(guard))
    os.execute("kill -9 " .. guard)
    assert.is_true(program.wait_for(function() return not program.alive(memcached) end))
    assert.is_true(program.alive(running.pid))
    running:signal("TERM")
    assert.equal(143, running:wait())
    assert.is_true(nothing_left(socket))
  end)

  it("keeps memcached and its guard out of reach of the terminal's Ctrl-C", function()
    local running = program.start("$MOONJAY --memcached " .. script(HOLD))
    local memcached = program.memcached_of(socket_in(running:output()))
    local function session(pid)
      local stat = io.open("/proc/" .. pid .. "/stat"):read("*a")
      return stat:match("^%d+ %b() %S %d+ %d+ (%d+)")
    end
    assert.not_equal(session(running.pid), session(memcached))
    assert.equal(session(program.parent(memcached)), session(memcached))
    running:signal("TERM")
    running:wait()
  end)

  it("lets no process of the script hold on to the guard", function()
    local result = run("$MOONJAY --memcached " .. script([[
      local list = io.popen("ls -l /proc/self/fd")
      print(list:read("*a"))
      list:close()
    ]]) .. " </dev/null")
    assert.truthy(result.out:find("/dev/null", 1, true), result.out)
    assert.falsy(result.out:find("socket:", 1, true), result.out)
  end)

  it("says in one line which package is missing", function()
    local result = run("PATH=/nowhere $MOONJAY --memcached " .. script("print('ran')"))
    assert.equal(2, result.status)
    assert.equal("", result.out)
    assert_one_line(result.err, "memcached is not on PATH", "package memcached")
  end)

  it("says that memcached did not start", function()
    local result = run("$MOONJAY --memcached-args '-R none' " .. script("print('ran')"))
    assert.equal(2, result.status)
    assert.equal("", result.out)
    assert.truthy(result.err:find("moonjay: memcached ended as soon as", 1, true), result.err)
  end)

  it("ends when its guard is killed while memcached starts", function()
    local folder = program.folder()
    program.write(folder .. "/memcached",
      "#!/bin/sh\necho ready $PPID $2 >&2; exec sleep 60\n")
    os.execute("chmod +x " .. folder .. "/memcached")
    local running = program.start(("env PATH=%s:$PATH $MOONJAY --memcached %s"):format(folder,
      script("print('ran')")))
    local guard, socket = running:output():match("ready (%d+) (%S+)")
    os.execute("kill -9 " .. guard)
    assert.equal(2, running:wait())
    assert_one_line(running:output():match("\n(.*)"), "the guard of memcached was killed")
    assert.is_true(nothing_left(socket))
  end)

  it("works for a user who is not root, also when the guard is killed", function()
    if run("id -u").out ~= "0\n" then
      pending("these specs run as an ordinary user already")
      return
    end
    local folder = program.folder()
    run(("cp %s %s/moonjay; chmod 755 %s"):format(program.path, folder, folder))
    program.write(folder .. "/script.lua", [[
      local conn = assert(require("moonjay").connect(os.getenv("MEMCACHE_URL")))
      assert(conn:set("a", "1"))
    ]] .. HOLD)
    local running = program.start(("setpriv --reuid=65534 --regid=65534 --clear-groups " ..
      "%s/moonjay --memcached %s/script.lua"):format(folder, folder))
    local socket = socket_in(running:output())
    local memcached = program.memcached_of(socket)
    assert.equal(65534, lfs.attributes("/proc/" .. memcached, "uid"))
    os.execute("kill -9 " .. program.parent(memcached))
    assert.is_true(program.wait_for(function() return not program.alive(memcached) end))
    running:signal("INT")
    assert.equal(130, running:wait())
    assert.is_true(nothing_left(socket))
  end)
end)
