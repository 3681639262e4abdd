-- A lane: one URL to one server, and the connection that many tasks share on it. When that is
-- closed, the next task that comes connects anew.
--
--   local lane = Lane.new(run, server, "memcache://...", { timeout = 0.2 })
--   local out = lane:call(random, "get", function(conn) return conn:get("key") end)
--
-- `out` is nil when there was no connection. Else: out.value and out.more, or out.err;
-- out.link, the connection; out.started and out.ended, places in the one order of all that
-- happens here.
--
-- Of two requests on one connection the server takes the first one first. So a request that was
-- given up has been carried out, or never will be, once a request that was begun later on the
-- same connection is answered: link.fence is the beginning of the latest one that was.

local mj = require "moonjay"

local M = {}
M.__index = M

local FOREVER = 60 -- seconds after which a call has hung

-- The place of now in the order of all events of the run.
local moment = 0
local function stamp()
  moment = moment + 1
  return moment
end
M.stamp = stamp

-- run: report, pulse, running(). options: timeout and connect_timeout in seconds, as the URL
-- has them.
function M.new(run, server, url, options)
  return setmetatable({
    run = run, server = server, url = url, timeout = options.timeout,
    connect_timeout = options.connect_timeout, rests_until = 0,
  }, M)
end

-- ---- the connection ----

-- A connection with what this run must know of it. Failures of quiet requests are counted.
local function connect(self)
  local run, link = self.run, { fence = 0, lost = 0 }
  local begun = mj.now()
  local conn, err = mj.connect(self.url, {
    on_error = function(failure)
      link.lost = link.lost + 1
      run.report:failure("quiet", failure, self.url)
    end,
  })
  run.pulse:ended("connect", begun, begun + self.connect_timeout, self.url)
  if conn then
    run.report:answer("connect", "yes")
    run.report.connections[conn] = true
    link.conn, link.lane, link.quiet_failed = conn, self, 0
    return link
  end
  run.report:failure("connect", err, self.url)
  return nil, err
end

-- Adds up the counters of a connection that ends.
local function account(self, link)
  local counters, report = link.conn:counters(), self.run.report
  report:event("late replies dropped", counters.late)
  report:event("requests abandoned", counters.abandoned)
  report:event("waits for room", counters.parked)
  report:event("quiet requests", counters.quiet)
  report:event("bytes read", counters.bytes_read)
  report:event("bytes written", counters.bytes_written)
  self.run.report.requests = self.run.report.requests + counters.requests
end

-- An open connection, made if need be; nil while there is none to be had.
function M:open()
  local link = self.link
  if link and link.conn:is_open() then return link end
  if link then
    account(self, link)
    self.link = nil
  end
  if self.connecting or mj.now() < self.rests_until then return nil end
  self.connecting = true
  link = connect(self)
  self.connecting = false
  if not link then self.rests_until = mj.now() + 0.03 end
  self.link = link
  return link
end

-- A connection that nobody shares.
function M:private()
  return (connect(self))
end

-- Forgets the connection without closing it.
function M:drop()
  if self.link then account(self, self.link) end
  self.link = nil
end

function M:close()
  local link = self.link
  if not link then return end
  local begun = mj.now()
  link.conn:close()
  self.run.pulse:ended("close", begun, begun + self.timeout, self.url)
  if self.link == link then
    account(self, link)
    self.link = nil
  end
end

-- ---- calls ----

-- Notes how a call ended: what it threw, or what it returned.
local function note(out, fine, value, more)
  out.ended, out.when = stamp(), mj.now()
  if not fine then
    out.err = value
  elseif value == nil and more ~= nil then
    out.err = more
  else
    out.value, out.more = value, more
  end
end

local function judge_time(self, out, manner)
  if mj.now() <= out.due then return end
  local what = ("%s%s (it ended with %s)"):format(out.op, manner,
    tostring(out.err or "an answer"))
  self.run.pulse:ended(what, out.due == out.timeout and out.begun or out.due, out.due, self.url)
end

local function plainly(self, out, fn)
  note(out, pcall(fn, out.link.conn))
  judge_time(self, out, "")
end

local function with_deadline(self, out, fn, random)
  local seconds = random:span(0.0002, 0.04)
  out.due = math.min(out.due, mj.now() + seconds)
  note(out, pcall(mj.deadline, seconds, fn, out.link.conn))
  judge_time(self, out, " in mj.deadline")
end

-- Runs the call in a task of its own.
local function spawn(self, out, fn)
  return mj.spawn(function()
    note(out, pcall(fn, out.link.conn))
    judge_time(self, out, " in a task")
  end)
end

-- Waits for the end of a task that must end.
local function join(self, out, child)
  local _, err = child:wait(FOREVER)
  if err then self.run.report:odd(("%s on %s: its task: %s"):format(out.op, self.url,
    tostring(err))) end
  if not out.ended and not err then -- it was cancelled before it ran
    note(out, false, mj.errors.new { kind = "cancelled", message = "never ran", op = out.op })
  end
end

local function cancelled(self, out, fn, random)
  local child = spawn(self, out, fn)
  mj.sleep(random:chance(0.3) and 0 or random:span(0, 0.02))
  if not out.ended then
    self.run.report:event("tasks cancelled")
    out.due = math.min(out.due, mj.now())
    child:cancel()
  end
  join(self, out, child)
end

local function waited_for(self, out, fn, random)
  local child, seconds = spawn(self, out, fn), random:span(0, 0.01)
  local due = mj.now() + seconds
  local _, err = child:wait(seconds)
  if not out.ended then
    self.run.pulse:ended("task:wait", due, due, self.url)
    self.run.report:event("waits for a task that timed out")
    if not mj.errors.is(err, "timeout") then
      self.run.report:odd("task:wait ended with " .. tostring(err))
    end
  end
  join(self, out, child)
end

local MANNERS = {
  { 70, plainly }, { 12, with_deadline }, { 10, cancelled }, { 8, waited_for },
}

-- Calls fn(conn) in one of several manners, and judges that it ends in time. options (all
-- optional): steps, how many timeouts in a row it may take; link, the connection; quiet, when
-- nothing it returns is an answer of the server.
function M:call(random, op, fn, options)
  options = options or {}
  local link = options.link or self:open()
  if not link then return nil end
  local begun = mj.now()
  local out = {
    op = op, link = link, lane = self, started = stamp(), begun = begun,
    timeout = begun + self.timeout * (options.steps or 1),
  }
  out.due = out.timeout
  random:weighted(MANNERS)(self, out, fn, random)
  if out.err ~= nil and not mj.errors.is(out.err) then error(out.err, 0) end
  if not options.quiet and (out.err == nil or out.err.sent == "yes"
    and (out.err.kind == "server_error" or out.err.kind == "client_error")) then
    M.answered(out)
  end
  return out
end

-- The server answered something that was asked not before this call began.
function M.answered(out)
  out.link.fence = math.max(out.link.fence, out.started)
end

return M
