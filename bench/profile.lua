-- bench/profile.lua: where the CPU time of one request goes, by part.
--
--   build/moonjay bench/profile.lua [WORKLOAD [SECONDS]]      as root; P2, 5 s
--
-- `perf record` (Debian's linux-perf) looks at the client 4,000 times a second. The shares of
-- its samples, times the CPU time of an operation in a run without perf, are the nanoseconds of
-- each part. Debian's LuaJIT comes without the names of its inner functions: it is one part.

local cjson = require "cjson"
local process = require "spec.support.process"
local program = require "spec.support.program"
local servers = require "bench.servers"

-- A symbol belongs to the first part that has a pattern for it.
local PARTS = {
  { "take the call from Lua", "^call_command", "lua_read_call", "^read_arg", "^is_key_alone",
    "key_check", "key_plain", "lua_conn_at", "task_here", "^read_opt", "^submit_next",
    "^push_arguments", "^lua_call" },
  { "encode", "conn_enqueue", "conn_submit", "meta_encode", "ascii_encode", "put_",
    "write_number", "requests_push" },
  { "parse and match", "^parse", "meta_parse", "ascii_parse", "parse_number", "conn_find",
    "belongs", "conn_match", "^tell", "^pop", "conn_progress", "next_token", "line_length",
    "meta_identity", "ascii_identity", "requests_has_key" },
  { "hand the answer over", "batch", "hand_over", "on_answer", "lua_push_answer", "on_deliver",
    "runtime_protect", "trampoline", "^add", "keep_", "set_reply" },
  { "resume tasks", "work", "task_wake", "task_wait", "runtime_of" },
  { "the loop, reads and writes", "loop", "conn_readable", "read_once", "conn_flush",
    "conn_write", "socket_", "^look", "outgoing", "buffer", "pool", "on_ready", "memory_",
    "conn_" },
}

local workload, seconds = arg[1] or "P2", tonumber(arg[2] or 5)
local folder = program.folder()
local data = folder .. "/perf"

local function run(words)
  local out, status, errors = process.start(words):finish(seconds * 3 + 30)
  if status ~= 0 then
    io.stderr:write(table.concat(words, " "), " ended with status ", status, ": ", errors, "\n")
    os.exit(1)
  end
  return out
end

local function play(server, before)
  local words = { errors = true }
  for _, word in ipairs(before) do words[#words + 1] = word end
  for _, word in ipairs { "taskset", "-c", "0", program.path, "bench/workloads.lua", workload,
                          server.host, tostring(server.port), tostring(seconds) } do
    words[#words + 1] = word
  end
  return run(words)
end

local function part_of(object, symbol)
  if object:find("kernel", 1, true) then return "system calls" end
  if object:find("^libluajit") then return "inside LuaJIT: interpreter, strings, coroutines" end
  if object:find("^libc") then return "inside libc" end
  if object:find("^moonjay") then
    for _, part in ipairs(PARTS) do
      for i = 2, #part do
        if symbol:find(part[i]) then return part[1] end
      end
    end
    return "the rest of moonjay"
  end
  return "Lua, compiled by LuaJIT"
end

local function shares()
  local text = run { errors = true, "perf", "report", "-i", data, "--stdio", "--no-children",
                     "-g", "none", "-F", "overhead,dso,symbol", "-t", "|" }
  local sum = {}
  for share, object, symbol in text:gmatch("([%d.]+)%%%s*|%s*([^|\n]-)%s*|%[.%] ([^\n]+)") do
    local part = part_of(object, symbol)
    sum[part] = (sum[part] or 0) + tonumber(share) / 100
  end
  return sum
end

local server = servers.get("long", 0)
local plain = cjson.decode(play(server, {}))
play(server, { "perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", data })
local each = (plain.user + plain.system) / plain.operations * 1e9
local sum, names = shares(), {}
for name in pairs(sum) do names[#names + 1] = name end
table.sort(names, function(a, b) return sum[a] > sum[b] end)

print(("%s: %.0f ns of CPU for each of %d operations; -R 200, one processor"):format(
  workload, each, plain.operations))
for _, name in ipairs(names) do
  print(("%8.1f ns %6.1f%%  %s"):format(sum[name] * each, sum[name] * 100, name))
end
servers.stop()
