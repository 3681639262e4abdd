-- bench.contenders: who is measured, which of them are here, and one run of one.
--
--   local here, missing = contenders.find()
--   local result, reason = contenders.run(here[1], "P1", server, { seconds = 0.5, core = 0 })
--
-- A contender is a command:
--
--     COMMAND... WORKLOAD HOST PORT SECONDS
--
-- that prints one line of JSON: operations, seconds, user, system, voluntary, involuntary,
-- calls (or null), all of the measured time alone. Status 3: it has no such workload. Any other
-- but 0 is a failure, and no figure.

local cjson = require "cjson"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"

local M = {}

local UNKNOWN = 3
local PROBE_SECONDS = 30
local PATIENCE = 10 -- seconds that a run may take beyond those it measures

local BUILD = program.path:match("^(.*)/") .. "/bench/"

-- `probe` is a command that succeeds, and says the version, where the contender can run.
local ALL = {
  { name = "floor", command = { BUILD .. "limit" } },
  { name = "moonjay", command = { program.path, "bench/workloads.lua" },
    probe = { program.path, "--version" } },
  { name = "libmemcached", command = { BUILD .. "libmemcached" },
    probe = { "pkg-config", "--modversion", "libmemcached" } },
  { name = "memcaslap", command = { "bench/peers/memcaslap" },
    probe = { "memcaslap", "--version" } },
  { name = "dalli", command = { "ruby", "bench/peers/dalli.rb" },
    probe = { "ruby", "-rdalli", "-e", "puts Dalli::VERSION + ', ruby ' + RUBY_VERSION" } },
  { name = "pymemcache", command = { "/usr/bin/python3", "bench/peers/pymemcache.py" },
    probe = { "/usr/bin/python3", "-c", "import pymemcache; print(pymemcache.__version__)" } },
  { name = "pylibmc", command = { "/usr/bin/python3", "bench/peers/pylibmc.py" },
    probe = { "/usr/bin/python3", "-c", "import pylibmc; print(pylibmc.__version__)" } },
}

local function with_errors(words)
  local out = { errors = true }
  for _, word in ipairs(words) do out[#out + 1] = word end
  return out
end

-- The first line that a command prints, or nil when it fails or is not there.
function M.first_line(words)
  local child = process.start(with_errors(words))
  local text, status, errors = child:finish(PROBE_SECONDS)
  if status ~= 0 then return nil end
  return ((text ~= "" and text or errors):match("[^\n]*"))
end

local function is_here(contender)
  local command = contender.command
  local file = command[#command]
  if not posix.exists(file) then return false end
  if not contender.probe then return true end
  contender.version = M.first_line(contender.probe)
  return contender.version ~= nil
end

-- Those that can run here, in the order of the tables; and the names of the rest.
function M.find()
  local here, missing = {}, {}
  for _, contender in ipairs(ALL) do
    if is_here(contender) then
      here[#here + 1] = contender
    else
      missing[#missing + 1] = contender.name
    end
  end
  return here, missing
end

-- Sleeps until the child has printed something: asking again and again would take a part of the
-- processors that are measured.
local function finish(child, seconds)
  local stop = posix.now() + seconds
  while posix.now() < stop do
    if posix.poll({ { child.out, posix.POLLIN } }, stop - posix.now())[child.out] then break end
  end
  local fine, text, status, errors = pcall(child.finish, child, math.max(stop - posix.now(), 1))
  if fine then return text, status, errors end
  child:stop()
  return nil, nil, ("it did not end within %g s"):format(seconds)
end

local FIELDS = { "operations", "seconds", "user", "system", "voluntary", "involuntary" }

local function result_of(text)
  local fine, result = pcall(cjson.decode, text)
  if not fine or type(result) ~= "table" then return nil, "it printed " .. text end
  for _, field in ipairs(FIELDS) do
    if type(result[field]) ~= "number" then return nil, "it did not say its " .. field end
  end
  if result.calls == cjson.null then result.calls = nil end
  if result.operations < 1 then return nil, "it did nothing" end
  return result
end

-- options: seconds; core, the processor it is bound to. Returns what it measured; nil and
-- "unknown" where it has no such workload; nil and a sentence where it failed.
function M.run(contender, workload, server, options)
  local words = { "taskset", "-c", tostring(options.core), errors = true }
  for _, word in ipairs(contender.command) do words[#words + 1] = word end
  for _, word in ipairs { workload, server.host, server.port, options.seconds } do
    words[#words + 1] = tostring(word)
  end
  local text, status, errors = finish(process.start(words), options.seconds + PATIENCE)
  if status == UNKNOWN then return nil, "unknown" end
  if status ~= 0 then
    return nil, ("%s ended with status %s: %s"):format(
      contender.name, tostring(status), errors:match("[^\n]*"))
  end
  local result, reason = result_of(text)
  if not result then return nil, ("%s: %s"):format(contender.name, reason) end
  return result
end

return M
