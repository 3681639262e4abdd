-- The client of a net case: a moonjay of its own, so that it can be stopped, starved of
-- descriptors and put into a namespace.
--
--   moonjay spec/support/net_client.lua URL TIMEOUT_MS CONNECTIONS
--
-- It takes orders, a JSON object a line, on its standard input, and answers each with a line:
-- { id = , ... }. It ends with its input. Orders are carried out at the same time:
--
--   { id, what = "connect", timeout_ms }                                   --> { }
--   { id, what = "call", request = { op, key, ... }, timeout_ms, times }   --> { outcome, ... }
--   { id, what = "background", request, timeout_ms, tasks, ms }            --> { runs, ... }
--   { id, what = "enough" }: a background ends when its time is over and this has been said
--
-- See M.play of player_net.lua for the other side.

local cjson = require "cjson"
local mj = require "moonjay"
local ops = require "spec.support.ops"
local posix = require "spec.support.posix"
local reconnecting = require "spec.support.reconnecting"

local POLL = 0.002 -- seconds
-- All tasks of a load together: who must stop and start servers needs a processor too.
local CALLS_PER_SECOND = 2000

-- JSON numbers keep milliseconds of a monotonic clock exactly, but only with all their digits.
cjson.encode_number_precision(14)

local client = reconnecting.new(arg[1], tonumber(arg[2]) / 1000, tonumber(arg[3]))

-- ------------------------------------------------------------------- calling

local function is_kind(kind)
  for _, known in ipairs(mj.errors.kinds) do
    if known == kind then return true end
  end
  return false
end

local function plain_error(err)
  local typed = mj.errors.is(err) and is_kind(err.kind)
  if not typed then return { kind = "untyped", text = tostring(err) } end
  return { kind = err.kind, text = tostring(err), sent = err.sent, phase = err.phase,
           typed = true }
end

-- Calls with more than one result: each makes a list of outcomes.
local LISTS = {}

function LISTS.pipeline_get(conn, request)
  local pipeline = conn:pipeline()
  for _ = 1, request.count do pipeline:get(request.key) end
  local replies, list = pipeline:run(), {}
  for i = 1, request.count do
    list[i] = ops.outcome({ op = "get" }, replies[i], replies.errors[i])
  end
  return list
end

-- Stores that many keys, each with its own name as its value, and reads them back.
function LISTS.set_get_many(conn, request)
  local names, values, list = {}, {}, {}
  for i = 1, request.keys do
    names[i] = "key:" .. i
    values[names[i]] = names[i]
  end
  local stored, refused = conn:set_many(values)
  if not stored then return nil, refused end
  local got, failed = conn:get_many(names)
  if not got then return nil, failed end
  for i, name in ipairs(names) do
    local err = (refused or {})[name] or (failed or {})[name]
    list[i] = ops.outcome({ op = "get" }, got[name], err)
  end
  return list
end

local function outcome_of(request, seconds)
  local list_of = LISTS[request.op]
  local fine, value, more = pcall(client.call, client, seconds, function(conn)
    if list_of then return list_of(conn, request) end
    return ops.submit(conn, request)
  end)
  if not fine then return { error = value } end
  if not list_of then return ops.outcome(request, value, more) end
  return value and { list = value } or { error = more }
end

local function flatten_errors(outcome)
  if outcome.error then outcome.error = plain_error(outcome.error) end
  for _, entry in ipairs(outcome.list or {}) do flatten_errors(entry) end
  for key, err in pairs(outcome.partial or {}) do outcome.partial[key] = plain_error(err) end
end

-- One call, as what came of it and how long it took.
local function call_once(order)
  local started = posix.now()
  local outcome = outcome_of(order.request, order.timeout_ms / 1000)
  outcome.took_ms = (posix.now() - started) * 1000
  flatten_errors(outcome)
  return outcome
end

local function call(order)
  if not order.times then return { outcome = call_once(order) } end
  local list, longest = {}, 0
  for i = 1, order.times do
    list[i] = call_once(order)
    longest = math.max(longest, list[i].took_ms)
  end
  return { outcome = { list = list, took_ms = longest } }
end

-- ---------------------------------------------------------------- background

local enough = false

-- The same call over and over, by one task. What came of it is kept as runs of equal outcomes:
-- { task, what = index into `seen`, from, to } with moments of the monotonic clock in ms.
local function ask_on(order, task, stop, report)
  local run
  while posix.now() < stop or not enough do
    local outcome = call_once(order)
    report.longest_ms = math.max(report.longest_ms, outcome.took_ms)
    report.calls = report.calls + 1
    outcome.took_ms = nil
    local name = outcome.error and outcome.error.kind or cjson.encode(outcome)
    if not report.places[name] then
      report.seen[#report.seen + 1] = outcome
      report.places[name] = #report.seen
    end
    local now, place = posix.now() * 1000, report.places[name]
    if not run or run.what ~= place then
      run = { task = task, what = place, from = now }
      report.runs[#report.runs + 1] = run
    end
    run.to = now
    mj.sleep(order.tasks / CALLS_PER_SECOND)
  end
end

local function background(order)
  local report = { runs = {}, seen = {}, places = {}, longest_ms = 0, calls = 0 }
  local stop, tasks = posix.now() + order.ms / 1000, {}
  for i = 1, order.tasks do tasks[i] = mj.spawn(ask_on, order, i, stop, report) end
  mj.check(mj.all(tasks))
  report.places = nil
  return report
end

-- ------------------------------------------------------------------- orders

local function connect(order)
  client:call(order.timeout_ms / 1000, function() return true end)
  return {}
end

local function be_content()
  enough = true
  return {}
end

local ORDERS = { connect = connect, call = call, background = background, enough = be_content }

local function obey(line)
  local order = cjson.decode(line)
  local answer = ORDERS[order.what](order)
  answer.id, answer.connected = order.id, client.connected
  io.stdout:write(cjson.encode(answer), "\n")
  io.stdout:flush()
end

local text, over = "", false
print "READY"
io.stdout:flush()
while not over do
  mj.sleep(POLL)
  while posix.poll({ { 0, posix.POLLIN } }, 0)[0] do
    local data = posix.read(0)
    if not data or data == "" then
      over = true
      break
    end
    text = text .. data
    for line in text:gmatch("([^\n]*)\n") do mj.spawn(obey, line) end
    text = text:match("[^\n]*$")
  end
end
client:close()
