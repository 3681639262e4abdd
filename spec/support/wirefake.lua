-- A scripted fake memcached: plays one "wire" case of the case files for one client.
--
--   luajit spec/support/wirefake.lua --case FILE --id ID [--port N] [--unix PATH]
--          [--max-seconds S] [--linger-ms N]
--
-- It listens on loopback, prints "READY <host> <port>" (or the path) and, when the script has
-- been played or its standard input ends (the client is done), one JSON object: complete,
-- extra_connections and, for each connection, what it received. Exit status: 0 the whole script
-- was played, 3 it was not, 2 bad arguments or a bad case.
--
-- server_chunks is the script of the first connection, connections those of each in turn, one
-- past the end is closed at once; the lists with _meta replace them where the client's first
-- request on a connection is a meta command. The steps are described in wire_script.lua.

package.path = "./?.lua;" .. package.path

local cases = require "spec.support.cases"
local cjson = require "cjson"
local loop = require "spec.support.loop"
local posix = require "spec.support.posix"
local wire_script = require "spec.support.wire_script"

local function refuse(message)
  io.stderr:write("wirefake: ", message, "\n")
  os.exit(2)
end

local DEFAULTS = { ["max-seconds"] = 15, ["linger-ms"] = 300, port = 0 }

local function parse(words)
  local options = {}
  for i = 1, #words, 2 do
    local name = words[i]:match("^%-%-(.+)$")
    if not name or not words[i + 1] then refuse("bad argument " .. words[i]) end
    options[name] = words[i + 1]
  end
  for name, value in pairs(DEFAULTS) do options[name] = tonumber(options[name]) or value end
  if not options.case or not options.id then refuse("--case FILE and --id ID are needed") end
  return options
end

local function listed(case, many, one)
  return case[many] or case[one] and { { chunks = case[one] } } or {}
end

local function needed(scripts)
  local count = 0
  for _, script in ipairs(scripts) do
    if not script.optional then count = count + 1 end
  end
  return count
end

-- The server's whole state: scripts, connections, how many came too many, whether to hurry.
local function new_server(case, options)
  local scripts = listed(case, "connections", "server_chunks")
  if #scripts == 0 then refuse(("case %s has no script"):format(case.id)) end
  return {
    case = case, scripts = scripts,
    scripts_meta = listed(case, "connections_meta", "server_chunks_meta"),
    conns = {}, extra = 0, hurry = false,
    deadline = posix.now() + options["max-seconds"], linger = options["linger-ms"] / 1000,
  }
end

local function accept(server, listener)
  local fd = posix.accept(listener)
  if not fd then return end
  local number = #server.conns + 1
  if number > #server.scripts then
    server.extra = server.extra + 1
    posix.close(fd)
    return
  end
  posix.setsockopt(fd, posix.IPPROTO_TCP, posix.TCP_NODELAY, 1)
  local conn = wire_script.new {
    fd = fd, number = number, script = server.scripts[number],
    script_meta = server.scripts_meta[number], deadline = server.deadline,
    linger = server.linger, hurry = function() return server.hurry end,
  }
  server.conns[number] = conn
  loop.start(function() conn:play() end)
end

local function finished(server)
  for _, conn in ipairs(server.conns) do
    if not conn.done then return false end
  end
  return #server.conns >= needed(server.scripts)
end

-- Takes connections until every script is played and a moment has passed, or time is out.
local function serve(server, listener)
  local grace
  while posix.now() < server.deadline do
    if server.hurry and not loop.readable(listener, 0) then
      break
    elseif finished(server) then
      grace = grace or posix.now() + server.linger
      if posix.now() > grace then break end
    else
      grace = nil
    end
    if loop.readable(listener, 0.02) then accept(server, listener) end
  end
  posix.close(listener)
end

-- The end of our standard input says that the client is done.
local function watch_input(server)
  while posix.now() < server.deadline and not server.over do
    if loop.readable(0, 0.02) and (posix.read(0) or "") == "" then
      server.hurry = true
      return
    end
  end
end

local function complete(server)
  if #server.conns < needed(server.scripts) then return false end
  for i, conn in ipairs(server.conns) do
    local excused = server.scripts[i].optional or server.case.client_may_leave
    if conn.step < #conn.script.chunks and not excused then return false end
  end
  return true
end

local function report(server)
  local conns = {}
  for i, conn in ipairs(server.conns) do conns[i] = conn:report() end
  return {
    id = server.case.id, complete = complete(server), extra_connections = server.extra,
    connections = conns,
  }
end

local options = parse(arg)
local case, reason = cases.find(options.case, options.id)
if not case then refuse(reason) end
if case.kind ~= "wire" then refuse(options.id .. " is no wire case") end
local server = new_server(case, options)
local listener, where = posix.listen {
  port = options.port, unix = options.unix, rcvbuf = tonumber(case.rcvbuf),
}
if not listener then refuse(where) end
print("READY " .. (options.unix or "127.0.0.1 " .. where))
io.stdout:flush()

loop.start(function() serve(server, listener) server.over = true end)
loop.start(watch_input, server)
loop.run()
local result = report(server)
print(cjson.encode(result))
os.exit(result.complete and 0 or 3)
