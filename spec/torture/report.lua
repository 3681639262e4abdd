-- What a torture run counts, and what it says in the end.
--
--   local report = Report.new { seed = 7, seconds = 60 }
--   report:answer("get", "value")   report:failure("get", err)
--   report:wrong { key = "k", op = "get", came = "...", allowed = "..." }
--   report:print()   report:passed()

local mj = require "moonjay"
local rows = require "spec.support.sent_rows"
local values = require "spec.torture.values"

local M = {}
M.__index = M

local SHOWN = 20 -- of each list of faults; the rest is counted

-- Kinds that a torture may cause. The others are faults of ours: protocol says that the client
-- lost its way with a server that told the truth, no_memory that it was greedy. But an error
-- line names nobody: where it may be the answer to several requests, quiet ones for instance,
-- a connection rightly ends with protocol. With verify=false most replies name nobody.
local EXPECTED = {
  timeout = true, closed = true, reset = true, cancelled = true, connect_refused = true,
  connect_timeout = true, unreachable = true, server_error = true, client_error = true,
  unsupported = true, bad_key = true, bad_value = true, too_large = true,
}
local NAMES_NOBODY = "closed: the server answered %u+_ERROR"

-- options: seed, seconds, lying (true when the proxy lies: then errors of kind protocol are no
-- fault of the client's).
function M.new(options)
  return setmetatable({
    seed = options.seed, seconds = options.seconds, lying = options.lying,
    started = mj.now(), answers = {}, errors = {}, events = {}, operations = 0, requests = 0,
    faults = { wrong = {}, late = {}, odd = {} },
    counts = { wrong = 0, late = 0, odd = 0 },
    connections = setmetatable({}, { __mode = "k" }), -- all that were made, and still live
  }, M)
end

local function fault(self, list, text)
  self.counts[list] = self.counts[list] + 1
  if #self.faults[list] < SHOWN then
    self.faults[list][#self.faults[list] + 1] = ("%.3f s: %s"):format(
      mj.now() - self.started, text)
  end
end

-- what: op, key, came, allowed, and lane (a URL) if there is one.
function M:wrong(what)
  fault(self, "wrong", ("%s \"%s\" on %s\n    came:    %s\n    allowed: %s"):format(
    what.op, values.printable(what.key), what.lane or "?", what.came, what.allowed))
end

function M:late(what, by, excused, lane, stalls)
  local text = "%s on %s ended %.1f ms after its deadline; %.1f ms of that are excused, for "
    .. "the process stood still, in milliseconds from the deadline, from %s"
  fault(self, "late", text:format(what, lane or "?", by * 1e3, excused * 1e3, stalls))
end

-- Something that is none of the errors a caller may expect.
function M:odd(text)
  fault(self, "odd", text)
end

-- An answer of the server to a command, and what it was: "value", "miss", "yes", "no".
function M:answer(op, what)
  self.operations = self.operations + 1
  local of = self.answers[op]
  if not of then
    of = {}
    self.answers[op] = of
  end
  of[what] = (of[what] or 0) + 1
end

-- A failure of a command: checked to be one that a caller may expect.
function M:failure(op, err, lane)
  self.operations = self.operations + 1
  if not mj.errors.is(err) then
    self:odd(("%s on %s failed with %s"):format(op, lane or "?", tostring(err)))
    return
  end
  local allowed = EXPECTED[err.kind]
    or err.kind == "protocol" and (self.lying or err.message:find(NAMES_NOBODY)
      or lane and lane:find("verify=false", 1, true))
  if not allowed or not rows.knows(err) then
    self:odd(("%s on %s failed with an error that should not be: %s"):format(
      op, lane or "?", tostring(err)))
  end
  local of = self.errors[err.kind]
  if not of then
    of = { no = 0, maybe = 0, yes = 0, retryable = 0 }
    self.errors[err.kind] = of
  end
  of[err.sent] = (of[err.sent] or 0) + 1
end

-- Something happened, so many times: "server stopped", "late reply dropped".
function M:event(name, count)
  self.events[name] = (self.events[name] or 0) + (count or 1)
end

-- ---- the end ----

local function sorted(counts)
  local names = {}
  for name in pairs(counts) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function print_answers(self)
  print(("\n  %-12s %9s %9s %9s %9s"):format("answers", "value", "miss", "yes", "no"))
  for _, op in ipairs(sorted(self.answers)) do
    local of = self.answers[op]
    print(("  %-12s %9s %9s %9s %9s"):format(op, of.value or "", of.miss or "", of.yes or "",
      of.no or ""))
  end
end

local function print_errors(self)
  print(("\n  %-16s %9s %9s %9s"):format("errors, sent:", "no", "maybe", "yes"))
  for _, kind in ipairs(sorted(self.errors)) do
    local of = self.errors[kind]
    print(("  %-16s %9d %9d %9d"):format(kind, of.no, of.maybe, of.yes))
  end
end

local function print_events(self)
  print "\n  events"
  for _, name in ipairs(sorted(self.events)) do
    print(("  %-40s %9d"):format(name, self.events[name]))
  end
end

local TITLES = {
  wrong = "wrong answers", late = "late", odd = "errors or states that should not be",
}

local function print_faults(self)
  for _, list in ipairs { "wrong", "late", "odd" } do
    for _, text in ipairs(self.faults[list]) do
      print(("\n  %s: %s (seed %d)"):format(TITLES[list], text, self.seed))
    end
    local more = self.counts[list] - #self.faults[list]
    if more > 0 then print(("\n  ... and %d more %s"):format(more, TITLES[list])) end
  end
end

local function total(counts, name)
  local sum = 0
  for _, of in pairs(counts) do
    for what, count in pairs(of) do
      if name == nil or what == name then sum = sum + count end
    end
  end
  return sum
end

-- Answers of any kind, and failures.
function M:answered() return total(self.answers) end
function M:failed() return total(self.errors) end

-- How many failures were of this kind, or had this `sent`.
function M:errors_of(kind) return total({ self.errors[kind] }) end
function M:errors_sent(sent) return total(self.errors, sent) end

-- What must have happened for the run to prove anything: { name, count } each. A name whose
-- count is 0 is a fault of the run.
function M:demand(list)
  for _, entry in ipairs(list) do
    if entry[2] == 0 then
      self:odd("no " .. entry[1] .. " in the whole run: it proved nothing about that")
    end
  end
end

function M:passed()
  return self.counts.wrong == 0 and self.counts.late == 0 and self.counts.odd == 0
end

function M:print(pulse)
  print_answers(self)
  print_errors(self)
  print_events(self)
  print(("\n  the latest request ended %.1f ms after its deadline (50 ms are allowed)"):format(
    pulse.worst_late * 1e3))
  print(("  this process stood still for at most %.1f ms (neither ran nor waited: %.1f ms)")
    :format(pulse.worst_stall * 1e3, pulse.worst_sleep * 1e3))
  print_faults(self)
  print(("\n  %d operations: %d answers, %d errors"):format(
    self.operations, self:answered(), self:failed()))
  print(("  wrong answers: %d   late: %d   what should not be: %d"):format(
    self.counts.wrong, self.counts.late, self.counts.odd))
  print(("torture: seed %d: %s after %.1f s"):format(
    self.seed, self:passed() and "passed" or "FAILED", mj.now() - self.started))
end

return M
