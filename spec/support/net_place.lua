-- Where the processes of a net case run: network namespaces, a private /etc/hosts, limits.
--
--   local lacks = net_place.lacks(setup)          -- nil, or what this machine cannot do
--   local place = net_place.new(setup, fill)      -- fill(text): puts {port} and the like in
--   place:server { "memcached", ... }             -- the words of a command, to be run there
--   place:client { "moonjay", ... }
--   place.server_host                             -- what 127.0.0.1 of the case has become
--   place:close()
--
-- The words of a case's setup that are read here:
--
--   netns                 client and server are alone in a network namespace
--   netem                 they are in one each, with a wire between: "delay 200ms 10ms",
--                         "loss 5%", "rate 1mbit"
--   count_connects, dns   a namespace too: to count what connects, for a name server
--   hosts                 the text of /etc/hosts, as the client sees it
--   resolv_conf           the text of /etc/resolv.conf, likewise; by default nobody is asked
--   client_rlimit_nofile  how many descriptors the client may have
--   client_unprivileged   permissions of files bind the client, even if it is root

local link = require "spec.support.link"
local posix = require "spec.support.posix"

local M = {}
M.__index = M

-- ------------------------------------------------------------------- netem

local SCALES = {
  delay = { us = 0.001, ms = 1, s = 1000 },
  loss = { ["%"] = 1 },
  rate = { kbit = 1, mbit = 1000, gbit = 1e6 },
}
local ORDERS = { delay = "delay_ms", jitter = "jitter_ms", loss = "loss_percent",
                 rate = "rate_kbit" }

local function figure(word, scales)
  local digits, unit = (word or ""):match("^([%d.]+)(%D*)$")
  if not tonumber(digits) or not scales[unit] then
    error(("netem: %q is no figure"):format(tostring(word)), 0)
  end
  return tonumber(digits) * scales[unit]
end

-- "delay 200ms 10ms loss 5%" as the options of link.start.
function M.netem(text)
  local words, options, i = {}, {}, 1
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  while words[i] do
    local name = words[i]
    if not SCALES[name] then error(("netem: %q is not known here"):format(name), 0) end
    options[ORDERS[name]] = figure(words[i + 1], SCALES[name])
    i = i + 2
    if name == "delay" and words[i] and words[i]:find("^%d") then
      options.jitter_ms = figure(words[i], SCALES.delay)
      i = i + 1
    end
  end
  return options
end

-- ----------------------------------------------------- what the machine can do

local function wants_network(setup)
  return setup.netns or setup.netem or setup.count_connects or setup.dns
end

local function wants_files(setup)
  return setup.hosts or setup.resolv_conf or setup.dns
end

local function wants_ipv6(setup)
  for _, host in ipairs(setup.dead_hosts or {}) do
    if host:find(":", 1, true) then return true end
  end
  return tostring(setup.args):find("-l %S*::1") ~= nil
end

local mounts

-- Whether files of our own can be laid over the system's; tried once.
local function can_mount()
  if mounts == nil then
    -- A number in some builds of LuaJIT, a boolean in others.
    local status = posix.is_root() and os.execute("unshare --mount true 2>/dev/null")
    mounts = status == 0 or status == true
  end
  return mounts
end

local function has_ipv6()
  return ("\n" .. (posix.read_file("/proc/net/if_inet6") or "")):find("\n0+1 ") ~= nil
end

-- Why a case cannot be played here, or nil.
function M.lacks(setup)
  local reason = wants_network(setup) and link.lacks()
  if not reason and wants_files(setup) and not can_mount() then
    reason = posix.is_root() and "needs a mount namespace" or "needs root"
  end
  if not reason and wants_ipv6(setup) and not has_ipv6() then reason = "needs IPv6" end
  return reason and "skipped: " .. reason or nil
end

-- ------------------------------------------------------------------- places

local function appended(words, more)
  local all = {}
  for name, value in pairs(more) do
    if type(name) == "string" then all[name] = value end
  end
  for _, list in ipairs { words, more } do
    for _, word in ipairs(list) do all[#all + 1] = word end
  end
  return all
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text, "\n")
  file:close()
end

-- A mount namespace in which these files lie over those of the system.
local MOUNTED = [[
  while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 9; shift 2; done
  shift
  exec "$@"
]]

local function file_words(files)
  local words = { "unshare", "--mount", "--", "sh", "-c", MOUNTED, "sh" }
  for path, own in pairs(files) do
    words[#words + 1] = own
    words[#words + 1] = path
  end
  words[#words + 1] = "--"
  return words
end

-- What the client sees of /etc. A resolver on loopback that nobody plays refuses at once.
local function private_files(self, setup, fill)
  local files = {}
  if not can_mount() then return files end
  if setup.hosts then
    files["/etc/hosts"] = self.directory .. "/hosts"
    write(files["/etc/hosts"], self:translate(fill(setup.hosts)))
  end
  files["/etc/resolv.conf"] = self.directory .. "/resolv.conf"
  write(files["/etc/resolv.conf"], setup.resolv_conf or "nameserver 127.0.0.1")
  return files
end

local function client_words(self, setup, fill)
  local words = self.wire and self.wire:client() or {}
  local files = private_files(self, setup, fill)
  if next(files) then words = appended(words, file_words(files)) end
  if setup.client_unprivileged and posix.is_root() then
    words = appended(words, { "setpriv", "--bounding-set=-dac_override,-dac_read_search" })
  end
  local limit = setup.client_rlimit_nofile
  if limit then
    words = appended(words, { "prlimit", ("--nofile=%d:%d"):format(limit, limit) })
  end
  return words
end

-- fill puts the case's {port} and the like into a text.
function M.new(setup, fill)
  local self = setmetatable({ server_host = "127.0.0.1" }, M)
  self.directory = posix.make_directory()
  local server = {}
  if wants_network(setup) then
    self.wire = link.start(setup.netem and M.netem(setup.netem))
    server = setup.netem and self.wire:server() or self.wire:client()
    if setup.netem then self.server_host = self.wire.server_host end
  end
  self.server_words = server
  self.client_words = client_words(self, setup, fill)
  return self
end

-- The loopback that a case speaks of is on the other side of the wire, where there is one.
function M:translate(text)
  return (text:gsub("127%.0%.0%.1", self.server_host))
end

function M:server(words) return appended(self.server_words, words) end
function M:client(words) return appended(self.client_words, words) end

function M:close()
  if self.wire then self.wire:stop() end
  os.execute("rm -rf " .. self.directory)
end

return M
