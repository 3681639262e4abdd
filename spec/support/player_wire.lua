-- Plays a "wire" case: the fake server on one side, the public API on the other.
--
--   player_wire.play(case, "meta")     -- throws where the client did what the case forbids

local base64 = require "spec.support.base64"
local cjson = require "cjson"
local expect = require "spec.support.expect"
local mj = require "moonjay"
local ops = require "spec.support.ops"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}

local PROTOCOLS = { classic = { "ascii" }, meta = { "meta" }, both = { "ascii", "meta" } }
local FAKE_SECONDS = 40

-- The protocols a case is to be played over.
function M.protocols(case)
  return PROTOCOLS[case.proto or "both"]
end

local function requests_of(case)
  return case.request[1] and case.request or { case.request }
end

-- Why a case cannot be played here, or nil.
function M.lacks(case)
  for _, request in ipairs(requests_of(case)) do
    local op = request.op
    if op ~= "sleep" and op ~= "get_repeat" and not ops.knows(op) then
      return ("no player for the op %q"):format(op)
    end
  end
  local retries = case.client and case.client.retries or 0
  if retries > 0 then return "needs a client that retries" end
end

-- ------------------------------------------------------------------- session

local function start_fake(case)
  local fake = process.start {
    "luajit", "spec/support/wirefake.lua", "--case", case.file, "--id", case.id,
    "--max-seconds", tostring(FAKE_SECONDS), "--linger-ms", "1000", input = true,
  }
  return fake, fake:read_line(10):match("^READY %S+ (%d+)$")
end

local function new_session(case, protocol)
  local fake, port = start_fake(case)
  local login = case.url_userinfo and case.url_userinfo .. "@" or ""
  local url = ("memcache://%s127.0.0.1:%s?protocol=%s&timeout=%dms"):format(
    login, port, protocol, case.client and case.client.timeout_ms or 1000)
  return { fake = fake, url = url, results = {} }
end

local function is_open(conn)
  return conn:is_open()
end

-- The connection to use: the present one, or a new one where that has ended, as a client would.
local function usable(session)
  if session.conn and is_open(session.conn) then return session.conn end
  local conn, err = mj.connect(session.url)
  if conn then
    session.conn, session.first = conn, session.first or conn
  end
  return conn, err
end

local function finish(session)
  if session.conn then session.conn:close() end
  local text, status = session.fake:finish(FAKE_SECONDS)
  assert(text:find("^{"), ("the fake server failed with status %s"):format(tostring(status)))
  return cjson.decode(text)
end

-- -------------------------------------------------------------------- calling

local function submit_later(conn, request)
  local task = mj.spawn(function() return ops.submit(conn, request) end)
  mj.sleep(request.cancel_after_ms / 1000)
  task:cancel()
  return task:wait()
end

local function submit(conn, request)
  if request.cancel_after_ms then return submit_later(conn, request) end
  if not request.timeout_ms then return ops.submit(conn, request) end
  return mj.deadline(request.timeout_ms / 1000, function() return ops.submit(conn, request) end)
end

-- A request with the cas token that an earlier one was given.
local function with_token(request, results)
  if not request.cas_from then return request end
  local copy = {}
  for name, value in pairs(request) do copy[name] = value end
  copy.cas = assert(results[request.cas_from + 1].cas, "the earlier request has no token")
  return copy
end

local function call_repeated(conn, request)
  local pipeline, list = conn:pipeline(), {}
  for _ = 1, request.count do pipeline:get(request.key) end
  local replies = pipeline:run()
  for i = 1, request.count do
    list[i] = ops.outcome({ op = "get" }, replies[i], replies.errors[i])
  end
  return { list = list }
end

local function call_one(session, request)
  if request.op == "sleep" then
    mj.sleep(request.ms / 1000)
    return { ok = true }
  end
  local conn, err = usable(session)
  if not conn then return { error = err } end
  if request.op == "get_repeat" then return call_repeated(conn, request) end
  return ops.outcome(request, submit(conn, with_token(request, session.results)))
end

-- After a failure that must cost the connection, it has to be closed at once: before the fake's
-- own end could close it.
local function check_dropped(session, case)
  if case.connection_after ~= "dropped" or session.judged or not session.first then return end
  session.judged = true
  wait.until_true(0.25, "the first connection to be dropped", function()
    return not is_open(session.first)
  end)
end

local function call_in_turn(session, case, requests)
  for i, request in ipairs(requests) do
    session.results[i] = call_one(session, request)
    if session.results[i].error then check_dropped(session, case) end
  end
end

local function call_pipelined(session, requests)
  local conn, err = usable(session)
  if not conn then
    for i = 1, #requests do session.results[i] = { error = err } end
    return
  end
  local pipeline = conn:pipeline()
  for _, request in ipairs(requests) do ops.submit(pipeline, request) end
  local replies = pipeline:run()
  for i, request in ipairs(requests) do
    local more = replies.errors[i] or replies.more[i]
    session.results[i] = ops.outcome(request, replies[i], more)
  end
end

-- ------------------------------------------------------------------- checking

local function check_expected(case, requests, results)
  local list = case.expect[1] and case.expect
  for i = 1, #requests do
    local wanted = list and list[i] or i == #requests and case.expect or {}
    local wrong = expect.mismatch(wanted, results[i])
    if wrong then error(("request %d: %s"):format(i, wrong), 0) end
  end
end

local function each_value(outcome, visit)
  if outcome.value then visit(outcome.value) end
  if outcome.meta and outcome.meta.value then visit(outcome.meta.value) end
  for _, value in pairs(outcome.values or {}) do visit(value) end
  for _, entry in ipairs(outcome.list or {}) do each_value(entry, visit) end
end

local function check_never(case, results)
  for _, text in ipairs(case.never_b64 or {}) do
    local bytes = base64.decode(text)
    for i, outcome in ipairs(results) do
      each_value(outcome, function(value)
        if value:find(bytes, 1, true) then
          error(("request %d returned %q, which nobody may see"):format(i, bytes), 0)
        end
      end)
    end
  end
end

local function check_sent(case, report)
  local sent = {}
  for i, conn in ipairs(report.connections) do
    sent[i] = base64.decode(conn.received_b64)
  end
  local all = table.concat(sent, "\n")
  for _, text in ipairs(case.sent_has or {}) do
    if not all:find(text, 1, true) then error(("%q was not sent"):format(text), 0) end
  end
  for _, text in ipairs(case.sent_lacks or {}) do
    if all:find(text, 1, true) then error(("%q was sent"):format(text), 0) end
  end
end

local function check_connections(case, report)
  local wanted = case.client_conns
  if not wanted then return end
  if type(wanted) == "number" then wanted = { min = wanted, max = wanted } end
  local count = #report.connections + report.extra_connections
  if count < (wanted.min or 0) or count > (wanted.max or math.huge) then
    error(("%d connections were made"):format(count), 0)
  end
end

-- The script of the server must have been played to its end, unless the case excuses it.
local function check_complete(case, report)
  if report.complete or case.incomplete_ok or case.client_may_leave then return end
  local notes = {}
  for i, conn in ipairs(report.connections) do
    notes[i] = ("connection %d: step %d of %d %s"):format(
      conn.n, conn.steps_done, conn.steps, conn.note)
  end
  error("the server's script was not played: " .. table.concat(notes, "; "), 0)
end

-- Peak memory of this process in MiB since the last reset; nil where the kernel will not say.
local function peak_rss(reset)
  if reset then
    local file = io.open("/proc/self/clear_refs", "w")
    if not file then return nil end
    file:write("5")
    file:close()
  end
  local status = assert(io.open("/proc/self/status")):read("*a")
  return tonumber(status:match("VmHWM:%s*(%d+)")) / 1024
end

-- ----------------------------------------------------------------------- play

local function watch_memory(case)
  if not case.max_rss_mib then return function() end end
  collectgarbage()
  local before = peak_rss(true)
  return function()
    local grown = before and peak_rss() - before or 0
    if grown > case.max_rss_mib then error(("memory grew by %d MiB"):format(grown), 0) end
  end
end

function M.play(case, protocol)
  local session = new_session(case, protocol)
  local requests = requests_of(case)
  local check_memory = watch_memory(case)
  local started = posix.now()
  if case.how == "pipeline" and requests[1].op ~= "get_repeat" then
    call_pipelined(session, requests)
  else
    call_in_turn(session, case, requests)
  end
  local took = (posix.now() - started) * 1000
  check_memory()
  check_expected(case, requests, session.results)
  check_never(case, session.results)
  check_dropped(session, case)
  if case.within_ms and took > case.within_ms then error(("it took %d ms"):format(took), 0) end
  local report = finish(session)
  check_connections(case, report)
  check_sent(case, report)
  check_complete(case, report)
end

return M
