-- The servers of a torture run, the fault proxy before them, and the lanes that lead to them.
--
--   local world = World.new(run, { proxy = ..., random = ... })
--   world.servers   world.lanes   world.routes
--
-- Four servers, each for something that the others must not have:
--
--   keeper   is never killed nor flushed, and has room: what it acknowledged must be there
--   small    4 MiB, one thread, one request a turn: it evicts; it is killed
--   crashy   four threads, many requests a turn: it is killed
--   flushed  flush_all again and again
--
-- Each is reached directly and through the proxy, by tcp and unix sockets, over each protocol,
-- with options that change from lane to lane. verify=false is among them: what it does without
-- is a check, and the order of replies must hold by itself.

local Lane = require "spec.torture.lane"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"
local proxy = require "spec.support.proxy"

local M = {}
M.__index = M

local SERVERS = {
  { name = "keeper", args = { "-m", "1024", "-t", "2", "-c", "4096" } },
  { name = "small", unix = true, lossy = true, small = true, killed = true,
    args = { "-m", "4", "-t", "1", "-R", "1", "-c", "4096" } },
  { name = "crashy", lossy = true, killed = true,
    args = { "-m", "256", "-t", "4", "-R", "200", "-c", "4096" } },
  { name = "flushed", unix = true, lossy = true, flushed = true,
    args = { "-m", "256", "-t", "2", "-c", "4096" } },
}

local OPTIONS = {
  protocol = { "meta", "ascii", "auto" },
  direct_read = { "true", "false" },
  tcp_nodelay = { "true", "false" },
  timeout = { 0.05, 0.2, 1 },
  max_inflight = { 65536, 65536, 3, 40 },
  verify = { "true", "true", "true", "false" },
  stall_timeout = { 0, 0, 0, 0.1 },
  receive_buffer = { 0, 0, 4096 },
  send_buffer = { 0, 0, 8192 },
}
local NAMES = {
  "protocol", "direct_read", "tcp_nodelay", "timeout", "max_inflight", "verify",
  "stall_timeout", "receive_buffer", "send_buffer",
}

local CONNECT_TIMEOUT = 0.3

local Server = {}
Server.__index = Server

function Server:has_pid(pid) return self.pids[pid] == true end

function Server:has_version(text) return text == self.version end

local function start_server(plan)
  local self = setmetatable({
    registers = {}, others = {}, pids = {}, lanes = {}, evictions = 0,
  }, Server)
  for name, value in pairs(plan) do self[name] = value end
  self.process = memcached.start { unix = plan.unix, args = plan.args }
  self.pids[self.process.pid] = true
  local conn = mj.check(mj.connect(self.process.url))
  self.version = mj.check(conn:version())
  conn:close()
  return self
end

-- A URL with options: each list is gone through in an order of its own, so that all of it comes
-- up whatever the number of lanes.
local function options_at(orders, index)
  local words, timeout = { ("connect_timeout=%gs"):format(CONNECT_TIMEOUT) }, nil
  for _, name in ipairs(NAMES) do
    local order = orders[name]
    local value = order[1 + index % #order]
    if name == "timeout" then timeout = value end
    if value ~= 0 then
      words[#words + 1] = name .. "=" .. value .. (type(value) == "number"
        and name:match("timeout$") and "s" or "")
    end
  end
  return table.concat(words, "&"), timeout
end

local function shuffled_orders(random, rounds)
  local orders = {}
  for _, name in ipairs(NAMES) do
    local order = {}
    for _ = 1, rounds do
      for _, value in ipairs(random:shuffle { unpack(OPTIONS[name]) }) do
        order[#order + 1] = value
      end
    end
    orders[name] = order
  end
  return orders
end

-- A new lane to a server, with the next options.
function M:lane(server, target)
  self.made = self.made + 1
  local options, timeout = options_at(self.orders, self.made)
  return Lane.new(self.run, server, target:with(options), {
    timeout = timeout, connect_timeout = CONNECT_TIMEOUT,
  })
end

local function open_routes(self, server)
  server.routes = {}
  for i, unix in ipairs { false, true } do
    local route = self.fault:route { to = server.process, unix = unix }
    server.routes[i] = route
    self.routes[#self.routes + 1] = route
  end
end

-- run: report, pulse, running(). lanes: how many of each server go one way.
function M.new(run, random, lanes)
  local self = setmetatable({
    run = run, servers = {}, lanes = {}, routes = {}, made = 0,
    orders = shuffled_orders(random, 8),
    fault = proxy.start { seed = run.report.seed },
  }, M)
  for i, plan in ipairs(SERVERS) do self.servers[i] = start_server(plan) end
  for _, server in ipairs(self.servers) do
    for _, other in ipairs(self.servers) do
      if other ~= server then server.others[#server.others + 1] = other end
    end
    open_routes(self, server)
    for _, target in ipairs { server.process, server.process, unpack(server.routes) } do
      for _ = 1, lanes do
        local lane = self:lane(server, target)
        server.lanes[#server.lanes + 1] = lane
        self.lanes[#self.lanes + 1] = lane
      end
    end
  end
  return self
end

-- A place of this server to connect to: itself, or one of its routes.
function M.target(random, server)
  return random:chance(0.5) and server.process or random:pick(server.routes)
end

-- A lane that nothing disturbs.
function M:calm_lane(server)
  return Lane.new(self.run, server, server.process:with "timeout=10s&connect_timeout=10s",
    { timeout = 10, connect_timeout = 10 })
end

-- Adds what a server has evicted, before it ends and forgets it.
function M.note_evictions(server)
  local conn = mj.check(mj.connect(server.process:with "timeout=10s&connect_timeout=10s"))
  server.evictions = server.evictions + tonumber(mj.check(conn:stats()).evictions)
  conn:close()
end

function M:stop()
  for _, lane in ipairs(self.lanes) do lane:drop() end
  proxy.stop_all()
  memcached.stop_all()
end

return M
