-- Plays a "net" case: a server that is stopped, killed, slow or not there, and a client that is
-- a moonjay of its own.
--
--   local lacks = player_net.lacks(case)      -- nil, or why it cannot be played here
--   player_net.play(case, "meta")             -- throws where the case is not as expected
--
-- The client is net_client.lua. It connects again by itself, by a small client of its own
-- (reconnecting.lua), for moonjay's is yet to come.
--
-- A word of `setup`, a step, a word of it or an expectation that nobody knows here fails the
-- case by name.

local cjson = require "cjson"
local lfs = require "lfs"
local mj = require "moonjay"
local net_expect = require "spec.support.net_expect"
local net_place = require "spec.support.net_place"
local net_server = require "spec.support.net_server"
local memcached = require "spec.support.memcached"
local ops = require "spec.support.ops"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"

local M = {}

local BINARY = os.getenv("MOONJAY_BIN") or program.path
local DEFAULT_TIMEOUT_MS, SECONDS = 1000, 60

local function set_of(text)
  local set = {}
  for word in text:gmatch("%S+") do set[word] = true end
  return set
end

local SETUP_WORDS = set_of [[
  server port url args backlog fill_connections accept fill_until preload preload_fill hosts
  netns netem note client_rlimit_nofile client_lsof count_connects dead_hosts resolv_conf
  client_unprivileged dns proxy connections server_chunks connections_meta server_chunks_meta
]]

-- The words of a request, as ops.lua and net_client.lua read them.
local REQUEST = [[
  do note op key key_b64 keys keys_b64 value_b64 value_fill ttl flags delta initial cas cmd
  noreply count timeout_ms
]]

-- The steps, and the words that each may have.
local STEP_WORDS = {
  client = set_of(REQUEST .. "times"),
  client_bg = set_of(REQUEST .. "tasks ms pool_size"),
  signal = set_of "do sig after_ms note",
  signal_client = set_of "do sig after_ms note",
  kill = set_of "do sig after_ms note",
  start = set_of "do after_ms preload preload_fill note",
  netem = set_of "do netem after_ms note",
  link = set_of "do state after_ms note",
  proxy = set_of "do set act on seconds after_ms note",
  sleep = set_of "do ms note",
}

-- ------------------------------------------------------------- what is there

local function wants_tls(case)
  local setup = case.setup
  for _, name in ipairs { "tls", "client_tls", "cert_names", "ca", "connect_name" } do
    if setup[name] ~= nil then return true end
  end
  return tostring(setup.url):find("^memcache%+tls:") ~= nil
end

-- Why a case cannot be played here, or nil.
function M.lacks(case)
  if case.class == "hashing" then return "needs a client of several servers" end
  if wants_tls(case) then return "TLS is not built in yet" end
  return net_server.lacks(case.setup) or net_place.lacks(case.setup)
end

local PROTOCOLS = { classic = { "ascii" }, meta = { "meta" } }

-- The protocols a case is to be played over.
function M.protocols(case)
  if tostring(case.setup.url):find("protocol=", 1, true) then return { "its own" } end
  return PROTOCOLS[case.proto] or { "ascii", "meta", "auto" }
end

-- Calls that net_client.lua makes of several; all others are those of ops.lua.
local SEVERAL = set_of "pipeline_get set_get_many"

local function check_words(case)
  for name in pairs(case.setup) do
    if not SETUP_WORDS[name] then error(("setup: %q is not known here"):format(name), 0) end
  end
  for _, step in ipairs(case.steps) do
    local known = STEP_WORDS[step["do"]]
    if not known then error(("no step %q is known here"):format(tostring(step["do"])), 0) end
    if step.op and not SEVERAL[step.op] and not ops.knows(step.op) then
      error(("no op %q is known here"):format(step.op), 0)
    end
    for name in pairs(step) do
      if not known[name] then
        error(("step %s: %q is not known here"):format(step["do"], name), 0)
      end
    end
  end
end

-- ------------------------------------------------------------------- client

-- The time that a step's call may take; nil where it makes none.
local function timeout_of(step)
  local calls = step["do"] == "client" or step["do"] == "client_bg"
  return calls and (step.timeout_ms or DEFAULT_TIMEOUT_MS) or nil
end

-- The timeout of the connection, which shorter calls undercut.
local function longest_timeout(case)
  local longest = 0
  for _, step in ipairs(case.steps) do longest = math.max(longest, timeout_of(step) or 0) end
  return longest > 0 and longest or DEFAULT_TIMEOUT_MS
end

local function pool_size(case)
  local size = 1
  for _, step in ipairs(case.steps) do size = math.max(size, step.pool_size or 1) end
  return size
end

local function start_client(self)
  local url = self.server.url
  if self.protocol ~= "its own" then
    local mark = url:find("?", 1, true) and "&" or "?"
    url = ("%s%sprotocol=%s"):format(url, mark, self.protocol)
  end
  local words = self.place:client {
    BINARY, "spec/support/net_client.lua", url, tostring(longest_timeout(self.case)),
    tostring(pool_size(self.case)), input = true, errors = true,
  }
  self.client = process.start(words)
  assert(self.client:read_line(SECONDS) == "READY", "the client did not start")
  self.answers, self.ordered, self.connected = {}, 0, 0
end

-- Gives an order; its answer is waited for by answer_to.
local function order(self, what)
  self.ordered = self.ordered + 1
  what.id = self.ordered
  self.client:write(cjson.encode(what) .. "\n")
  return what.id
end

-- Errors read as ours do, in the message of a failed case.
local READABLE = { __tostring = function(err) return err.text end }

local function make_readable(outcome)
  if outcome.error then setmetatable(outcome.error, READABLE) end
  for _, one in ipairs(outcome.list or outcome.seen or {}) do make_readable(one) end
end

local function answer_to(self, id)
  while not self.answers[id] do
    local answer = cjson.decode(self.client:read_line(SECONDS))
    make_readable(answer.outcome or answer)
    self.answers[answer.id], self.connected = answer, answer.connected
  end
  return self.answers[id]
end

-- The sockets that the client has open: { [inode] = true }, and how many.
local function sockets_of(pid)
  local set, count = {}, 0
  local folder = ("/proc/%d/fd"):format(pid)
  for name in lfs.dir(folder) do
    local inode = (lfs.symlinkattributes(folder .. "/" .. name, "target") or ""):match(
      "^socket:%[(%d+)%]$")
    if inode then set[inode], count = true, count + 1 end
  end
  return set, count
end

-- What can be seen of the client from outside, and what is new since the last look.
local function look(self, outcome)
  outcome.alive = self.client:running()
  if not outcome.alive then return outcome end
  local before, known = self.sockets or {}, self.connected_before or 0
  self.sockets, outcome.sockets = sockets_of(self.client.pid)
  self.connected_before = self.connected
  local fresh = 0
  for inode in pairs(self.sockets) do
    if not before[inode] then fresh = fresh + 1 end
  end
  outcome.connections = math.max(fresh, self.connected - known)
  outcome.attempts = self.attempts
  return outcome
end

-- ------------------------------------------------------- counting attempts

local WINDOW, SAMPLE = 1, 0.02 -- seconds

-- How often anybody in the client's network namespace has tried to connect.
local function active_opens(pid)
  local text = posix.read_file(("/proc/%d/net/snmp"):format(pid)) or ""
  return tonumber(text:match("Tcp: %d+ %d+ %d+ %-?%d+ (%d+)"))
end

-- Keeps the most attempts in any window up to date, until the session is over.
local function count_attempts(self)
  local samples, first = {}, 1
  self.attempts = 0
  while not self.over do
    local count, now = active_opens(self.client.pid), posix.now()
    if not count then return end
    samples[#samples + 1] = { now, count }
    while samples[first][1] < now - WINDOW do first = first + 1 end
    self.attempts = math.max(self.attempts, count - samples[first][2])
    mj.sleep(SAMPLE)
  end
end

-- -------------------------------------------------------------------- steps

local STEPS = {}

local function finish_step(self, outcome)
  self.outcomes[#self.outcomes + 1] = look(self, outcome)
end

function STEPS.client(self, step)
  local id = order(self, {
    what = "call", request = step, times = step.times,
    timeout_ms = timeout_of(step),
  })
  finish_step(self, answer_to(self, id).outcome)
end

-- It goes on while the next steps are done; its outcome is filled in at the end.
function STEPS.client_bg(self, step)
  local id = order(self, {
    what = "background", request = step, tasks = step.tasks or 1, ms = step.ms,
    timeout_ms = timeout_of(step),
  })
  local outcome = {}
  self.outcomes[#self.outcomes + 1] = outcome
  self.background[#self.background + 1] = { id = id, outcome = outcome }
end

-- What ends a fault is remembered: recovery counts from there.
local function restored(self)
  self.restored_ms = posix.now() * 1000
end

function STEPS.signal(self, step)
  self.server:signal(step.sig)
  if step.sig == "CONT" then restored(self) end
end

function STEPS.signal_client(self, step)
  self.client:signal(net_server.signal_number(step.sig))
  if step.sig == "CONT" then restored(self) end
end

function STEPS.kill(self, step)
  self.server:kill(step.sig)
end

function STEPS.start(self, step)
  self.server:start(step)
  restored(self)
end

function STEPS.netem(self, step)
  for name, value in pairs(net_place.netem(step.netem)) do
    self.place.wire:order(("%s %g"):format(name:gsub("_", "-"), value))
  end
end

function STEPS.link(self, step)
  self.place.wire:order(step.state)
  if step.state == "up" then restored(self) end
end

-- Settings, or a deed, of the fault proxy: see proxy.lua.
function STEPS.proxy(self, step)
  if step.set then self.server.route:set(step.set) end
  if not step.act then return end
  local done = self.server.route:act(step.act, step.on or "all", step.seconds)
  if done == 0 then error(("the proxy had no link to %s"):format(step.act), 0) end
end

function STEPS.sleep(_, step)
  mj.sleep(step.ms / 1000)
end

-- after_ms counts from the start of the load in the background, or from the step before.
local function do_step(self, step)
  if step.after_ms then
    mj.sleep(math.max(0, self.base + step.after_ms / 1000 - posix.now()))
  end
  STEPS[step["do"]](self, step)
  if #self.background == 0 or step["do"] == "client_bg" then self.base = posix.now() end
end

local function start_late(self)
  mj.sleep(self.server.absent_seconds)
  self.server:start()
  restored(self)
end

-- The load goes on for long enough to see it recover, however late the fault was over.
local function let_recover(self)
  local longest = 0
  for _, wanted in ipairs(self.case.expect) do
    longest = math.max(longest, wanted.recovers_within_ms or 0)
  end
  local rest = (self.restored_ms or 0) + longest - posix.now() * 1000
  if rest > 0 then mj.sleep(rest / 1000) end
end

local function wait_for_background(self)
  if #self.background == 0 then return end
  let_recover(self)
  order(self, { what = "enough" })
  for _, one in ipairs(self.background) do
    one.outcome.background = answer_to(self, one.id)
    one.outcome.restored_ms = self.restored_ms
    look(self, one.outcome)
  end
end

-- The client is there before anything happens to its server: where that comes first, it has
-- connected already.
local function connect_first(self)
  local first = self.case.steps[1]
  if first and timeout_of(first) then return end
  answer_to(self, order(self, { what = "connect", timeout_ms = DEFAULT_TIMEOUT_MS }))
  look(self, {})
end

local function do_steps(self)
  connect_first(self)
  self.base = posix.now()
  if self.server.absent_seconds then self.late = mj.spawn(start_late, self) end
  for _, step in ipairs(self.case.steps) do do_step(self, step) end
  if self.late then mj.check(self.late:wait()) end
  wait_for_background(self)
end

-- ----------------------------------------------------------------- checking

-- Each expectation belongs to a client step, in turn; those behind the last one are of the
-- client as a whole, at the end.
local function check_expected(self)
  local last = look(self, {})
  for i, wanted in ipairs(self.case.expect) do
    local wrong = net_expect.mismatch(wanted, self.outcomes[i] or last)
    if wrong then error(("expectation %d: %s"):format(i, wrong), 0) end
  end
end

-- The client must end well, and have nothing to complain of, whatever the case expects.
local function check_end(self)
  if not self.client:running() and self.case.expect[1].process_alive == false then return end
  local _, status, errors = self.client:finish(SECONDS)
  if status ~= 0 or errors ~= "" then
    error(("the client ended with status %d: %s"):format(status, errors), 0)
  end
end

-- --------------------------------------------------------------------- play

-- Puts {port}, {tmp} and {rand} into a text of the case.
local function filler_of(self)
  local values = { rand = ("%08x"):format(math.random(0, 2 ^ 31 - 1)) }
  return function(text)
    values.port, values.tmp = self.port, self.tmp
    return (text:gsub("{(%l+)}", function(name)
      return values[name] or error(("{%s} is not known here"):format(name), 0)
    end))
  end
end

local function open(self)
  local setup = self.case.setup
  self.tmp = posix.make_directory()
  self.port = type(setup.port) == "number" and setup.port or memcached.free_port()
  local fill = filler_of(self)
  self.place = net_place.new(setup, fill)
  self.server = net_server.new {
    setup = setup, place = self.place, protocol = self.protocol, fill = fill,
  }
  self.server:open()
  start_client(self)
  if setup.count_connects then self.counter = mj.spawn(count_attempts, self) end
end

local function close(self)
  self.over = true
  if self.counter then self.counter:wait() end
  if self.client then self.client:stop() end
  if self.server then self.server:stop() end
  if self.place then self.place:close() end
  if self.tmp then os.execute("rm -rf " .. self.tmp) end
end

local function run(self)
  check_words(self.case)
  open(self)
  do_steps(self)
  check_expected(self)
  check_end(self)
end

-- Throws where the client did not do what the case expects.
function M.play(case, protocol)
  local self = { case = case, protocol = protocol, outcomes = {}, background = {} }
  local fine, reason = pcall(run, self)
  close(self)
  if not fine then error(reason, 0) end
end

return M
