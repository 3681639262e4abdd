-- bench/link.lua: a thousand gets, and a thousand pairs of a quiet set and a get, with and
-- without tcp_nodelay, on loopback and over a slow link.
--
--   moonjay bench/link.lua [operations [ms]]  starts its own servers: one on loopback and, as
--                                             root, one behind a link of 1 ms each way
--   MEMCACHE_URL=memcache://127.0.0.1:11211 moonjay bench/link.lua [operations]
--
-- With tcp_nodelay=false the kernel keeps a small write back until the other side has
-- acknowledged the one before it (Nagle's algorithm). A server that has nothing to say yet
-- acknowledges 40 ms late. So whatever is written in two parts, with no reply between them,
-- waits. Each line is one kind of operation under one setting: writes per operation (the
-- runtime's own count), how long one took, in milliseconds, and all, in seconds. Run it from
-- the project's folder.

local mj = require "moonjay"

local function argument(place, default, least, most)
  local number = tonumber(arg[place] or default)
  if not number or number < least or number > most then
    error(("argument %d is %s; it takes %g to %g"):format(place, arg[place], least, most), 0)
  end
  return number
end

local operations = argument(1, 1000, 1, 100000)
local link_ms = argument(2, 1, 0, 1000)

local large = ("x"):rep(20000)

-- The kinds in order: a name, and one operation.
local KINDS = {
  { "get alone", function(conn) mj.check(conn:get("nagle")) end },
  { "quiet set and get in one turn", function(conn)
    conn:set("nagle", "1", { quiet = true })
    mj.check(conn:get("nagle"))
  end },
  { "quiet set, next turn get", function(conn)
    conn:set("nagle", "1", { quiet = true })
    mj.sleep(0) -- the turn ends here, and the set leaves
    mj.check(conn:get("nagle"))
  end },
  { "set of 20 kB alone", function(conn) mj.check(conn:set("nagle", large)) end },
}

local function median_and_most(list)
  table.sort(list)
  return list[math.ceil(#list / 2)], list[#list]
end

-- Writes per operation; median and most milliseconds; seconds for all.
local function measure(url, kind, nodelay)
  local conn = mj.check(mj.connect(("%s?tcp_nodelay=%s"):format(url, nodelay)))
  mj.check(conn:set("nagle", "1"))
  local before, took, begun = conn:counters().writes, {}, mj.now()
  for i = 1, operations do
    local start = mj.now()
    kind(conn)
    took[i] = (mj.now() - start) * 1000
  end
  local seconds = mj.now() - begun
  local writes = (conn:counters().writes - before) / operations
  conn:close()
  local median, most = median_and_most(took)
  return writes, median, most, seconds
end

local function measure_all(url)
  print(("%-30s %11s %7s %10s %10s %10s"):format(
    "operation", "tcp_nodelay", "writes", "median ms", "most ms", "all, s"))
  for _, kind in ipairs(KINDS) do
    for _, nodelay in ipairs { "true", "false" } do
      print(("%-30s %11s %7.2f %10.3f %10.3f %10.3f"):format(
        kind[1], nodelay, measure(url, kind[2], nodelay)))
    end
  end
end

local function measure_own_servers()
  local link = require "spec.support.link"
  local memcached = require "spec.support.memcached"
  local process = require "spec.support.process"
  local program = require "spec.support.program"

  print(("%d operations of each kind, over loopback"):format(operations))
  measure_all(memcached.start().url)
  local reason = link.lacks()
  if reason then
    print("over a link: left out, it " .. reason)
  else
    print(("over a link of %g ms each way"):format(link_ms))
    local wire = link.start { delay_ms = link_ms }
    local server = memcached.start { inside = wire:server(), host = wire.server_host }
    local child = process.start(wire:client {
      program.path, "bench/link.lua", tostring(operations),
      env = { MEMCACHE_URL = server.url },
    })
    io.write((child:finish(3600)))
  end
  memcached.stop_all()
  link.stop_all()
end

local url = os.getenv "MEMCACHE_URL"
if url then measure_all(url) else measure_own_servers() end
