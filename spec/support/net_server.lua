-- The server of a net case: a real memcached, a listener, a scripted fake, or none.
--
--   local server = net_server.new { setup = setup, place = place, fill = fill, ... }
--   server:start()       -- also after kill(); what the setup says about it has been done then
--   server:signal "STOP"  server:kill "KILL"  server:stop()
--   server.url           -- where the client is to go
--
-- The words of a case's setup that are read here:
--
--   server               "none", "memcached", "python_listener" (any listener), "wirefake", or
--                        "none for N s, then memcached"
--   args, port, url      memcached's arguments; "free" or a number; where the client goes
--   preload, preload_fill, fill_connections, fill_until  see net_filler.lua
--   backlog, accept, fill_connections                    see net_listener.lua
--   dead_hosts           addresses on which the same port never answers
--   dns                  { answers, rcode, delay_ms }: see name_server.lua
--   proxy                settings of a fault proxy in between (see proxy.lua); a note that asks
--                        for one that forwards byte by byte is one
--   connections, server_chunks, and their _meta              the fake's script; else it answers
--                        once, { a = "1" }, and resets

local cjson = require "cjson"
local memcached = require "spec.support.memcached"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local proxy = require "spec.support.proxy"
local wait = require "spec.support.wait"

local M = {}
M.__index = M

local SECONDS = 10
local DEFAULT_ARGS = "-l 127.0.0.1 -p {port} -m 16"
local SCRIPT_WORDS = {
  "connections", "server_chunks", "connections_meta", "server_chunks_meta",
}

local SIGNALS = {
  HUP = 1, INT = 2, QUIT = 3, ABRT = 6, KILL = 9, PIPE = 13, TERM = 15, CONT = 18, STOP = 19,
}

-- The number of a signal by its name, with or without SIG.
function M.signal_number(name)
  local number = SIGNALS[(name:gsub("^SIG", ""))]
  return number or error(("no signal %q is known"):format(name), 0)
end

local function words_of(text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return words
end

local function write_json(path, value)
  local file = assert(io.open(path, "w"))
  file:write(cjson.encode(value), "\n")
  file:close()
end

-- A process at the server's place; `name` says what it is, for stop().
local function launch(self, name, words)
  local child = process.start(self.place:server(words))
  self.children[#self.children + 1] = child
  self[name] = child
  return child
end

-- ---------------------------------------------------------------- memcached

-- Where memcached's own arguments say that it listens.
local function place_of(words)
  local where = { host = "127.0.0.1", port = 11211 }
  for i, word in ipairs(words) do
    if word == "-l" then where.host = words[i + 1]:match("^[^,]*") end
    if word == "-p" then where.port = tonumber(words[i + 1]) end
    if word == "-s" then where.path = words[i + 1] end
  end
  return where
end

local function url_of(where)
  if where.path then return "memcache://" .. where.path end
  local host = where.host:find(":", 1, true) and ("[%s]"):format(where.host) or where.host
  return ("memcache://%s:%d"):format(host, where.port)
end

-- Loads it and fills it up, from a process of its own that stays as long as the server does.
local function fill_up(self, more)
  local plan = {
    preload = more.preload, preload_fill = more.preload_fill, fill_until = more.fill_until,
    connections = more.fill_connections,
  }
  if not next(plan) then return end
  for name, value in pairs(self.where) do plan[name] = value end
  local path = self.place.directory .. "/plan.json"
  write_json(path, plan)
  local filler = launch(self, "filler", { "luajit", "spec/support/net_filler.lua", path,
                                          input = true })
  filler:read_line(SECONDS)
end

local function start_memcached(self, more)
  local words = { "memcached" }
  if posix.is_root() then
    words[2], words[3] = "-u", "root"
  end
  for _, word in ipairs(self.words) do words[#words + 1] = word end
  words.errors = true
  local child = launch(self, "main", words)
  wait.until_true(SECONDS, "memcached to listen", function()
    if not child:running() then
      local _, status, errors = child:finish(1)
      error(("memcached ended with status %d: %s"):format(status, errors), 0)
    end
    return memcached.listens(child.pid, self.where.path or self.where.port)
  end)
  fill_up(self, more or self.setup)
end

-- ---------------------------------------------------------- listener and fake

local function start_listener(self)
  local setup = self.setup
  local child = launch(self, "main", {
    "luajit", "spec/support/net_listener.lua", self.where.host, tostring(self.where.port),
    tostring(setup.accept), tostring(setup.backlog or 16),
    tostring(setup.fill_connections or 0), input = true,
  })
  child:read_line(SECONDS)
end

-- Each connection answers one request (and the two that auto asks first), then it is reset.
local function default_script(protocol)
  local store = { a = { value_b64 = "MQ==" } }
  local serve = { store = store, requests = protocol == "auto" and 3 or 1 }
  local chunks = { { serve = serve }, { close = "rst" } }
  local again = { chunks = chunks, optional = true }
  return { { chunks = chunks }, again, again, again }
end

local function start_fake(self)
  local case = { id = "net", kind = "wire", client_may_leave = true }
  for _, name in ipairs(SCRIPT_WORDS) do case[name] = self.setup[name] end
  if not case.connections and not case.server_chunks then
    case.connections = default_script(self.protocol)
  end
  local path = self.place.directory .. "/case.jsonl"
  write_json(path, case)
  local child = launch(self, "main", {
    "luajit", "spec/support/wirefake.lua", "--case", path, "--id", "net",
    "--port", tostring(self.where.port), "--max-seconds", "40", "--linger-ms", "5000",
    input = true,
  })
  child:read_line(SECONDS)
end

local STARTS = { memcached = start_memcached, python_listener = start_listener,
                 wirefake = start_fake, none = function() end }

-- ------------------------------------------------------------ what is beside

local function start_dead_hosts(self)
  for _, host in ipairs(self.setup.dead_hosts or {}) do
    local child = launch(self, "dead", {
      "luajit", "spec/support/net_listener.lua", host, tostring(self.where.port), "false", "0",
      "4", input = true,
    })
    child:read_line(SECONDS)
  end
end

local function start_name_server(self)
  local dns = self.setup.dns
  if not dns then return end
  local child = launch(self, "names", {
    "luajit", "spec/support/name_server.lua", table.concat(dns.answers or {}, ","),
    dns.rcode or "ok", tostring(dns.delay_ms or 0), input = true,
  })
  child:read_line(SECONDS)
end

local BYTE_BY_BYTE = { piece_up = 1, piece_down = 1, gap = 0.0001 }

local function proxy_settings(setup)
  if setup.proxy then return setup.proxy end
  return tostring(setup.note):find("byte by byte", 1, true) and BYTE_BY_BYTE
end

-- The proxy stands where the specs run, which has no way into a namespace.
local function start_proxy(self)
  local settings = proxy_settings(self.setup)
  if not settings then return end
  if self.place.wire then error("there is no proxy in a namespace", 0) end
  self.proxy = proxy.start()
  local options = { to = self.where }
  for name, value in pairs(settings) do options[name] = value end
  self.route = self.proxy:route(options)
  self.url = self.route.url
end

-- ------------------------------------------------------------------- server

-- Why there is no such server here, or nil.
function M.lacks(setup)
  if setup.servers or tostring(setup.server):find("^memcached x%d") then
    return "needs a client of several servers"
  end
end

-- "memcached", or "none" for so many seconds and then that.
local function kind_of(text)
  local seconds, kind = tostring(text):match("^none for ([%d.]+) s, then (%S+)$")
  kind = kind or text
  if not STARTS[kind] then error(("no server %q is known"):format(tostring(text)), 0) end
  return kind, tonumber(seconds)
end

-- options: setup, place, protocol, port, and fill(text). Starts nothing yet.
function M.new(options)
  local self = setmetatable(options, M)
  local setup, place = self.setup, self.place
  self.children = {}
  self.kind, self.absent_seconds = kind_of(setup.server)
  self.words = words_of(place:translate(self.fill(setup.args or DEFAULT_ARGS)))
  self.where = place_of(self.words)
  self.url = setup.url and place:translate(self.fill(setup.url)) or url_of(self.where)
  return self
end

-- The first start, with what stands beside the server. One that is absent at first comes later.
function M:open()
  start_dead_hosts(self)
  start_name_server(self)
  start_proxy(self)
  if not self.absent_seconds then self:start() end
end

-- more: what to load it with, instead of what the setup says.
function M:start(more)
  STARTS[self.kind](self, more)
  self.started_at = posix.now()
end

function M:signal(name)
  local number = M.signal_number(name)
  self.main:signal(number)
  if number == SIGNALS.STOP then
    wait.until_true(SECONDS, "the server to stop", function()
      local stat = posix.read_file(("/proc/%d/stat"):format(self.main.pid))
      return stat:match("^.*%) (%a)") == "T"
    end)
  end
end

-- Ends it by this signal, and waits until it is gone.
function M:kill(name)
  self.main:signal(M.signal_number(name or "KILL"))
  self.main:wait(SECONDS)
end

function M:stop()
  if self.proxy then self.proxy:stop() end
  for _, child in ipairs(self.children) do child:stop() end
end

return M
