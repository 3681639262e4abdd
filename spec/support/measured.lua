-- A moonjay of its own whose memory and time are measured from outside, and what a connection
-- may take of them: README.md states these bounds.
--
--   local lines, marks = measured.run("ready() print(1) mark 'half' ...", url)
--   measured.check(marks["end"], measured.BLOCK, 10)     -- bytes, seconds
--
-- RESOURCES=1 prints what was measured.

local cjson = require "cjson"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"

local KIB, MIB = 1024, 1024 * 1024

local M = {
  KIB = KIB, MIB = MIB,
  BLOCK = 16 * KIB,    -- the receive buffer
  OUT = 4 * MIB,       -- bytes that wait to leave before tasks are parked
  SLOT = 72,           -- a request in flight, beside its key
  STRAYS = 8192 * 176, -- errors of the server's to quiet requests
  STATS = 4 * MIB,     -- the lines of one answer to stats
  AS_LUA = 8,          -- times that much, as Lua values; twice, until it is collected
  CONNECTION = 4 * KIB, -- an idle one
  TASK = 1536,         -- a task that waits
  PARKED = 768,        -- more, while it is parked, and some garbage
  RECORDED = 256,      -- a call that a pipeline has recorded
  ERROR = 1024,        -- an error, as a Lua value
}

local OWN = 2 * MIB -- the script and what it loads

local function peak_of(pid)
  local file = assert(io.open(("/proc/%d/status"):format(pid)))
  local text = file:read("*a")
  file:close()
  return tonumber(text:match("VmHWM:%s*(%d+)")) * KIB
end

-- Sanitizers keep freed memory and a shadow of all of it, and take their time.
local function is_sanitized()
  for line in io.lines("/proc/self/maps") do
    if line:find("libasan", 1, true) then return true end
  end
  return false
end
M.sanitized = is_sanitized()
M.slowness = M.sanitized and 5 or 1

-- So many, or a tenth of that.
function M.many(count)
  return M.sanitized and count / 10 or count
end

-- The beginning of every script.
local BEGIN = [[
  local mj = require "moonjay"
  local function kind_of(value, err)
    if type(err) ~= "table" then return value == nil and "nil" or type(value) end
    return err.kind or kind_of(nil, (select(2, next(err))))
  end
  local function mark(name) print("MARK " .. name) io.flush() io.read() end
  local function ready() mark "ready" end
]]
-- The end of every script: its peak is read before it ends.
local END = [[
  mark "end"
  os.exit(0, true)
]]

-- Runs a script, which calls ready() first. Returns the lines that it printed, and what each
-- mark(name), and the end, found: { name = { grown = bytes by which its peak had grown, took =
-- seconds } }.
function M.run(text, url, options)
  local words = {
    program.path, program.script(BEGIN .. text .. END), url, input = true, errors = true,
  }
  for i, word in ipairs(options or {}) do table.insert(words, i, word) end
  local child, lines, marks, before, started = process.start(words), {}, {}, nil, nil
  repeat
    local line = child:read_line(60)
    local name = line:match("^MARK (.*)$")
    if not name then
      lines[#lines + 1] = line
    elseif name == "ready" then
      before, started = peak_of(child.pid), posix.now()
    else
      marks[name] = { grown = peak_of(child.pid) - before, took = posix.now() - started }
    end
    if name then child:write("\n") end
  until name == "end"
  local _, status, errors = child:finish(10)
  assert(errors == "" and status == 0, errors)
  return lines, marks
end

function M.flood(play)
  local child = process.start { "luajit", "spec/support/flood.lua", input = true }
  child:write(cjson.encode(play) .. "\n")
  return child, "memcache://127.0.0.1:" .. child:read_line(10):match("(%d+)$")
end

-- Notes what was measured, for those who want the figures (RESOURCES=1).
local function note(mark, bound)
  if os.getenv "RESOURCES" then
    print(("  %6d KiB of %6d KiB, %.2f s"):format(mark.grown / KIB, bound / KIB, mark.took))
  end
end

function M.check(mark, bound, seconds)
  bound = bound + OWN
  note(mark, bound)
  assert(mark.took < seconds * M.slowness, mark.took)
  if M.sanitized then return end
  assert(mark.grown <= bound, ("memory grew by %d KiB; the bound is %d KiB"):format(
    mark.grown / KIB, bound / KIB))
end

return M
