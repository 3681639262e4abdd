-- bench/nagle.lua: what Nagle's algorithm costs a request that leaves in two writes.
--
--   moonjay bench/nagle.lua [operations]      starts its own servers: one on loopback and, as
--                                             root, one behind a link of 10 ms each way
--   MEMCACHE_URL=memcache://127.0.0.1:11211 moonjay bench/nagle.lua [operations]
--
-- With tcp_nodelay=false the kernel keeps a small write back until the other side has
-- acknowledged the one before it. A server that has nothing to say yet acknowledges 40 ms late.
-- So whatever is written in two parts, with no reply between them, waits. Each line is one kind
-- of operation under one setting: writes per operation (the runtime's own count), and how long
-- it took, in milliseconds. Run it from the project's folder.

local mj = require "moonjay"

local LINK_MS = 10
local operations = tonumber(arg[1] or 50)
if not operations or operations < 1 then error("operations is a number from 1 up", 0) end

local large = ("x"):rep(20000)

-- The kinds in order: a name, and one operation.
local KINDS = {
  { "quiet set, next turn get", function(conn)
    conn:set("nagle", "1", { quiet = true })
    mj.sleep(0) -- the turn ends here, and the set leaves
    mj.check(conn:get("nagle"))
  end },
  { "quiet set and get in one turn", function(conn)
    conn:set("nagle", "1", { quiet = true })
    mj.check(conn:get("nagle"))
  end },
  { "get alone", function(conn) mj.check(conn:get("nagle")) end },
  { "set of 20 kB alone", function(conn) mj.check(conn:set("nagle", large)) end },
}

local function median_and_most(list)
  table.sort(list)
  return list[math.ceil(#list / 2)], list[#list]
end

local function measure(url, kind, nodelay)
  local conn = mj.check(mj.connect(("%s?tcp_nodelay=%s"):format(url, nodelay)))
  mj.check(conn:set("nagle", "1"))
  local before, took = conn:counters().writes, {}
  for i = 1, operations do
    local start = mj.now()
    kind(conn)
    took[i] = (mj.now() - start) * 1000
  end
  local writes = (conn:counters().writes - before) / operations
  conn:close()
  return writes, median_and_most(took)
end

local function measure_all(url)
  print(("%-30s %11s %7s %10s %10s"):format(
    "operation", "tcp_nodelay", "writes", "median ms", "most ms"))
  for _, kind in ipairs(KINDS) do
    for _, nodelay in ipairs { "true", "false" } do
      print(("%-30s %11s %7.2f %10.3f %10.3f"):format(
        kind[1], nodelay, measure(url, kind[2], nodelay)))
    end
  end
end

local function measure_own_servers()
  local link = require "spec.support.link"
  local memcached = require "spec.support.memcached"
  local process = require "spec.support.process"
  local program = require "spec.support.program"

  print "over loopback"
  measure_all(memcached.start().url)
  local reason = link.lacks()
  if reason then
    print("over a link: skipped, " .. reason)
  else
    print(("over a link of %d ms each way"):format(LINK_MS))
    local wire = link.start { delay_ms = LINK_MS }
    local server = memcached.start { inside = wire:server(), host = wire.server_host }
    local child = process.start(wire:client {
      program.path, "bench/nagle.lua", tostring(operations),
      env = { MEMCACHE_URL = server.url },
    })
    io.write((child:finish(600)))
  end
  memcached.stop_all()
  link.stop_all()
end

local url = os.getenv "MEMCACHE_URL"
if url then measure_all(url) else measure_own_servers() end
