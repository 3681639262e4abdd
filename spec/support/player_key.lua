-- Plays a "key" case: one call of the public API against a real memcached, with a recorder in
-- between that keeps what was sent.

local base64 = require "spec.support.base64"
local cjson = require "cjson"
local expect = require "spec.support.expect"
local mj = require "moonjay"
local ops = require "spec.support.ops"
local process = require "spec.support.process"

local M = {}

local META_ONLY = { meta_set_b64 = true, meta = true }

-- The protocols a case is to be played over.
function M.protocols(case)
  return META_ONLY[case.op] and { "meta" } or { "ascii", "meta" }
end

-- ------------------------------------------------------------------- recorder

local function start_recorder(server)
  local option, where = "--to-unix", server.path
  if not where then option, where = "--to-port", tostring(server.port) end
  local child = process.start {
    "luajit", "spec/support/recorder.lua", option, where, input = true,
  }
  return child, child:read_line(10):match("^READY %S+ (%d+)$")
end
M.start_recorder = start_recorder

-- What the client sent in all, once the recorder has ended.
local function sent_bytes(child)
  return base64.decode(cjson.decode((child:finish(10))).sent_b64)
end
M.sent_bytes = sent_bytes

-- --------------------------------------------------------------- reading wire

local EXPTIME = {
  set = 4, add = 4, replace = 4, append = 4, prepend = 4, cas = 4, touch = 3, gat = 2, gats = 2,
}
local NOTHING_SENT = 0

-- The words of the first command line; {} where nothing was sent.
local function first_words(sent)
  local words = {}
  for word in (sent:match("^[^\r\n]*") or ""):gmatch("[^ ]+") do words[#words + 1] = word end
  return words
end

-- The token of a meta flag in the first command line, without its letter.
local function meta_token(words, letter)
  for i = 3, #words do
    if words[i]:sub(1, 1) == letter then return words[i]:sub(2) end
  end
end

-- The expiry time as it was sent; "0" where a meta command leaves it out.
local function exptime_of(sent)
  local words = first_words(sent)
  if EXPTIME[words[1]] then return words[EXPTIME[words[1]]] end
  return words[1] and (meta_token(words, "T") or "0")
end

local function delta_of(sent)
  local words = first_words(sent)
  if words[1] == "incr" or words[1] == "decr" then return words[3] end
  return words[1] and (meta_token(words, "D") or "1")
end

-- ------------------------------------------------------------------ the checks

local function none_sent(want, got)
  return want == NOTHING_SENT and got.sent == ""
end

-- Whether the case is about a call that must send nothing at all.
local function none_wanted(case)
  return case.sent_bytes == NOTHING_SENT or case.expect.sent_bytes == NOTHING_SENT
end

local CHECKS = {
  sent_bytes = none_sent,
  sent_exptime = function(want, got) return exptime_of(got.sent) == want end,
  sent_exptime_now_plus = function(want, got, all)
    local exptime = tonumber(exptime_of(got.sent) or "")
    return exptime ~= nil and math.abs(exptime - (got.clock + want)) <= (all.slack or 1)
  end,
  slack = function() return true end,
  never_sent_exptime = function(want, got)
    for _, text in ipairs(want) do
      if exptime_of(got.sent) == text then return false end
    end
    return true
  end,
  sent_delta = function(want, got) return delta_of(got.sent) == want end,
  roundtrip = function(_, got) return got.stored and got.read == got.wrote end,
  distinct = function(_, got) return got.distinct == true end,
  only_if = function(_, got) return got.refused == true end,
}

function CHECKS.then_get(want, got)
  return expect.mismatch(want, got.then_get, CHECKS) == nil
end

-- A wrong type is thrown, with nothing sent: where a case hands text in for a number and wants
-- bad_value, that is the refusal it asks for.
local function kind_of(got)
  if got.thrown then return got.sent == "" and "bad_value" or nil end
  return got.error and got.error.kind
end

function CHECKS.error_kind(want, got)
  return kind_of(got) == want
end

function CHECKS.error_kind_any(want, got)
  for _, kind in ipairs(want) do
    if kind_of(got) == kind then return true end
  end
  return false
end

-- ------------------------------------------------------------------- playing

local function connect(url, protocol, more)
  return assert(mj.connect(("%s?protocol=%s%s"):format(url, protocol, more or "")))
end

local function before(case, direct)
  local request = case.before
  if not request then return end
  request.key_b64 = request.key_b64 or case.key_b64
  assert(ops.submit(direct, request))
end

local function call(conn, case)
  local fine, value, more = pcall(ops.submit, conn, case)
  if not fine then
    if type(value) == "table" then error(value, 0) end
    return { thrown = value, error = { kind = "thrown: " .. tostring(value) } }
  end
  return ops.outcome(case, value, more)
end

-- Two keys that must not become one.
local function set_two(conn, case)
  local keys = ops.keys(case)
  for i, key in ipairs(keys) do assert(conn:set(key, "value " .. i)) end
  return { distinct = conn:get(keys[1]) == "value 1" and conn:get(keys[2]) == "value 2" }
end

local function read_back(case, direct, outcome)
  if case.expect.roundtrip then
    outcome.wrote = ops.value(case, "x")
    outcome.read = direct:get(ops.key(case))
  end
  if case.expect.then_get then
    local value, err = direct:get(ops.key(case))
    outcome.then_get = ops.outcome({ op = "get" }, value, err)
    outcome.then_get.refused = outcome.error and outcome.error.sent == "no"
  end
end

-- Keys of any bytes, base64 on the wire: the raw lengths that fit and that do not.
local function play_binary(case, server)
  local conn = connect(server.url, "meta", "&binary_keys=true")
  for _, part in ipairs(case.cases) do
    local key = string.char(case.key_byte):rep(part.raw_len)
    local outcome = ops.outcome({ op = "set" }, conn:set(key, "x"))
    local wrong = expect.mismatch(part.expect, outcome)
    if wrong then error(("raw key of %d bytes: %s"):format(part.raw_len, wrong), 0) end
    if outcome.stored then assert(conn:get(key) == "x", "the value did not come back") end
  end
  conn:close()
end

local function all_expected(case)
  local all = { sent_bytes = case.sent_bytes }
  for name, want in pairs(case.expect) do all[name] = want end
  return all
end

-- Throws where the client did not do what the case expects.
function M.play(case, protocol, server)
  if case.op == "meta_set_b64" then return play_binary(case, server) end
  local recorder, port = start_recorder(server)
  local conn = connect("memcache://127.0.0.1:" .. port, protocol)
  local direct = connect(server.url, protocol)
  before(case, direct)
  local clock = os.time()
  local outcome = case.op == "set_two" and set_two(conn, case) or call(conn, case)
  read_back(case, direct, outcome)
  if case.op == "meta" and not none_wanted(case) then assert(conn:version()) end
  conn:close()
  direct:close()
  outcome.sent, outcome.clock = sent_bytes(recorder), clock
  local wrong = expect.mismatch(all_expected(case), outcome, CHECKS)
  if wrong then error(wrong, 0) end
  if outcome.error and outcome.error.kind == "bad_key" then
    assert(outcome.sent == "", "a bad key reached the wire")
  end
end

return M
