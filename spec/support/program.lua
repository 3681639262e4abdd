-- spec.support.program: runs the moonjay program itself, as its users do: by a shell.
--
--   local result = program.run("$MOONJAY run --memcached " .. program.script("print(1)"))
--   result.status, result.out, result.err
--   local running = program.start("$MOONJAY --memcached " .. script)
--   running:signal("INT")

local lfs = require "lfs"

local M = {}

local DEADLINE = 30 -- seconds, for anything that is waited for

local function read_all(name)
  local file = io.open(name, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

-- Makes a file of this text.
function M.write(name, text)
  local file = assert(io.open(name, "wb"))
  file:write(text)
  file:close()
end

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return (text:gsub("\n$", ""))
end

-- The program that runs these specs.
M.path = output_of("readlink /proc/$PPID/exe")

-- A new folder of its own; M.clean removes all of them.
local folders = {}
function M.folder()
  local name = output_of("mktemp -d /tmp/spec-XXXXXX")
  folders[#folders + 1] = name
  return name
end

function M.clean()
  for _, name in ipairs(folders) do os.execute("rm -rf " .. name) end
  folders = {}
end

-- Writes a script of this text. Returns its path.
function M.script(text)
  local name = M.folder() .. "/script.lua"
  M.write(name, text)
  return name
end

-- Runs a shell command, in which $MOONJAY is the program, until it ends. Returns its status and
-- what it wrote.
function M.run(command)
  local folder = M.folder()
  M.write(folder .. "/command", command)
  local status = output_of(([[
    cd %s
    MOONJAY=%s timeout %d sh command >out 2>err
    echo $?
  ]]):format(folder, M.path, DEADLINE))
  return {
    status = tonumber(status),
    out = read_all(folder .. "/out"),
    err = read_all(folder .. "/err"),
  }
end

-- Asks until `probe` gives a true value, and returns it; nil once the deadline has passed.
function M.wait_for(probe)
  local last = os.time() + DEADLINE
  repeat
    local value = probe()
    if value then return value end
    os.execute("sleep 0.01")
  until os.time() > last
end

-- ---- processes ----

function M.alive(pid)
  local stat = read_all("/proc/" .. pid .. "/stat")
  return stat ~= nil and stat ~= "" and not stat:find("^%d+ %b() Z")
end

function M.parent(pid)
  return tonumber(read_all("/proc/" .. pid .. "/status"):match("PPid:%s*(%d+)"))
end

-- The process of a memcached that serves this socket, or nil.
function M.memcached_of(socket)
  for pid in lfs.dir("/proc") do
    local words = pid:find("^%d+$") and read_all("/proc/" .. pid .. "/cmdline") or ""
    if words:find("^memcached%z") and words:find(socket, 1, true) then return tonumber(pid) end
  end
end

-- A started program: pid, and its output so far by :output().
local Running = {}
Running.__index = Running

-- Starts a command that becomes $MOONJAY, with the signals as a terminal gives them, and waits
-- until the script has printed the word "ready".
function M.start(command)
  local folder = M.folder()
  local running = setmetatable({ folder = folder }, Running)
  -- env: a shell starts its background jobs with SIGINT ignored.
  M.write(folder .. "/command", ([[
    export MOONJAY=%s
    cd %s
    timeout %d env --default-signal sh -c 'echo $$ >pid; exec %s' >out 2>&1
    echo $? >status.new; mv status.new status
  ]]):format(M.path, folder, 4 * DEADLINE, command))
  os.execute(("sh %s/command </dev/null >/dev/null 2>&1 &"):format(folder))
  assert(M.wait_for(function() return running:output():find("ready", 1, true) end),
    "the program did not get ready: " .. running:output())
  running.pid = tonumber(read_all(folder .. "/pid"))
  return running
end

function Running:output()
  return read_all(self.folder .. "/out") or ""
end

function Running:signal(name)
  os.execute(("kill -%s %d"):format(name, self.pid))
end

-- Waits for its end. Returns the status as a shell has it: 128 and the signal.
function Running:wait()
  return tonumber(M.wait_for(function() return read_all(self.folder .. "/status") end))
end

return M
