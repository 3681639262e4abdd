-- Plays a "script" case: a moonjay of its own runs the script against a real memcached, with a
-- recorder in between.

local peers = require "spec.support.peers"
local player_key = require "spec.support.player_key"
local posix = require "spec.support.posix"
local process = require "spec.support.process"

local M = {}

M.BINARY = os.getenv("MOONJAY_BIN") or require("spec.support.program").path

local RUN_SECONDS = 60

-- Why a case cannot be played here, or nil.
function M.lacks(case)
  if case.lua:find("T.pool", 1, true) then return "needs a client of several servers" end
end

local function write_script(text)
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(text)
  file:close()
  return name
end

-- ------------------------------------------------------------------- checking

local function lines_of(text)
  local lines = {}
  for line in text:gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  return lines
end

local function same(want, got)
  return table.concat(want, "\n") == table.concat(got, "\n")
end

local function says_one_of(want, lines)
  for _, choice in ipairs(want) do
    if same(choice, lines) then return true end
  end
  return false
end

-- Each takes what is wanted and { lines, errors, status, took_ms, sent }.
local CHECKS = {
  says = function(want, got) return same(want, got.lines) end,
  says_any = function(want, got) return says_one_of(want, got.lines) end,
  last_say = function(want, got) return got.lines[#got.lines] == want end,
  stderr_has = function(want, got) return got.errors:find(want, 1, true) ~= nil end,
  exit = function(want, got) return got.status == want end,
  exit_nonzero = function(want, got) return want == (got.status ~= 0) end,
  exit_nonzero_or_reported = function(_, got) return got.status ~= 0 or got.errors ~= "" end,
  within_ms = function(want, got) return got.took_ms <= want end,
  never_stored_prefix = function(want, got)
    return not got.sent:find("\n" .. want, 1, true)
  end,
}

local function describe(got)
  return ("said %q, status %d, %d ms, errors: %s"):format(
    table.concat(got.lines, "\n"), got.status, got.took_ms, got.errors)
end

local function check(case, got)
  for name, want in pairs(case.expect) do
    local one = CHECKS[name]
    if not one then error(("no check is known for %q"):format(name), 0) end
    if not one(want, got) then
      error(("not as expected: %s; %s"):format(name, describe(got)), 0)
    end
  end
  -- A crash is never an answer.
  assert(got.status < 128, describe(got))
end

-- ----------------------------------------------------------------------- play

local function run(script, url, blackhole_url)
  local started = posix.now()
  local child = process.start {
    M.BINARY, "spec/support/script_table.lua", script, url, blackhole_url, errors = true,
  }
  local text, status, errors = child:finish(RUN_SECONDS)
  local took_ms = (posix.now() - started) * 1000
  return { lines = lines_of(text), status = status, errors = errors, took_ms = took_ms }
end

-- Throws where the script did not do what the case expects.
function M.play(case, server)
  local recorder, port = player_key.start_recorder(server)
  local hole = peers.blackhole()
  local script = write_script(case.lua)
  local fine, got = pcall(run, script, "memcache://127.0.0.1:" .. port, hole.url)
  os.remove(script)
  hole.close()
  if not fine then error(got, 0) end
  got.sent = player_key.sent_bytes(recorder)
  check(case, got)
end

return M
