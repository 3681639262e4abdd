-- bench/start.lua: from the start of the program to its first reply, over a unix socket.
--
--   moonjay bench/start.lua [TIMES]       (200 times)
--
-- Each time a program is started that connects and gets a key (bench/first.lua). Its parts are
-- told by the clock, which all processes share: until the script's first line (process, shared
-- libraries, Lua state, library of moonjay, script read and compiled), until it is connected
-- (with the handshake that asks for the protocol), until the reply. `--version` is the same
-- program with nothing of Lua in it, from start to end; /bin/true, what any process costs.

local memcached = require "spec.support.memcached"
local posix = require "spec.support.posix"
local program = require "spec.support.program"

local MOST = 12 -- ms, until the first reply
local PATIENCE = 10

local times = tonumber(arg[1] or 200)
if not times or times < 1 then error("usage: moonjay bench/start.lua [TIMES]", 0) end

-- Runs a program to its end. Returns what it printed, and when it was started and had ended.
local function run(words)
  local out, theirs = posix.pipe()
  local begin = posix.now()
  local pid = assert(posix.spawn(words, { [0] = "/dev/null", [1] = theirs }))
  posix.close(theirs)
  local text = ""
  repeat -- this process alone waits: no task shall run meanwhile
    if not posix.poll({ { out, posix.POLLIN } }, PATIENCE)[out] then
      posix.kill(pid, posix.SIGKILL)
      error(words[1] .. " did not end", 0)
    end
    local data = assert(posix.read(out))
    text = text .. data
  until data == ""
  local finish = posix.now()
  posix.close(out)
  local status
  repeat status = posix.reap(pid) until status
  if status ~= 0 then error(("%s ended with status %d"):format(words[1], status), 0) end
  return text, begin, finish
end

local taken = {}
local function note(name, seconds)
  taken[name] = taken[name] or {}
  table.insert(taken[name], seconds * 1000)
end

local function note_whole(name, words)
  local _, begin, finish = run(words)
  note(name, finish - begin)
end

local function measure(server)
  local text, begin, finish = run { program.path, "bench/first.lua", server.url }
  local began, connected, replied = text:match "^(%S+) (%S+) (%S+)\n$"
  if not began then error("bench/first.lua printed " .. text, 0) end
  note("first reply", replied - begin)
  note("first line", began - begin)
  note("connected", connected - began)
  note("reply", replied - connected)
  note("end", finish - replied)
  note_whole("version", { program.path, "--version" })
  note_whole("true", { "/bin/true" })
end

local function row(text, name)
  local list = taken[name]
  table.sort(list)
  local function at(part) return list[math.max(1, math.ceil(#list * part))] end
  print(("%-44s %8.2f %8.2f %8.2f"):format(text, at(0.5), list[1], at(0.99)))
  return at(0.5)
end

local server = memcached.start { unix = true, args = { "-t", "1" } }
local fine, err = pcall(function()
  for _ = 1, times do measure(server) end
end)
memcached.stop_all()
if not fine then error(err, 0) end

print(("%-44s %8s %8s %8s"):format(("milliseconds, of %d times"):format(times),
  "median", "least", "p99"))
local median = row("program start to first reply", "first reply")
row("  to the first line of the script", "first line")
row("  from there until it is connected", "connected")
row("  from there to the reply", "reply")
row("and from there to the end of the program", "end")
row("moonjay --version, from start to end", "version")
row("/bin/true, from start to end", "true")
print(("at most %d ms is the target%s"):format(MOST, median <= MOST and "" or ": MISSED"))
