-- What the owner of some registers does with them, one step at a time: single commands,
-- pipelines, commands over many keys, quiet ones and fences, reads into a buffer.
--
--   owner.step(run, random, lane, registers)

local buffer = require "string.buffer"
local Lane = require "spec.torture.lane"
local moves = require "spec.torture.moves"
local values = require "spec.torture.values"

local M = {}

local function kind_of(value)
  if value == nil then return "miss" end
  if value == true then return "yes" end
  if value == false then return "no" end
  return "value"
end

-- Counts what a command came to, and sees to it that only ascii is not able to do it.
local function count(run, out, op, value, err, needs_meta)
  local url = out.lane.url
  if err then
    run.report:failure(op, err, url)
    local ascii = out.link.conn:protocol() == "ascii"
    if err.kind == "unsupported" and not (needs_meta and ascii) then
      run.report:odd(("%s on %s is unsupported: %s"):format(op, url, tostring(err)))
    end
  else
    run.report:answer(op, kind_of(value))
  end
end

local function is_answer(err)
  return err == nil
    or err.sent == "yes" and (err.kind == "server_error" or err.kind == "client_error")
end

-- ---- single commands ----

local function single(run, random, lane, registers, link)
  local register = random:pick(registers)
  register:settle()
  local move = moves.any(random, register)
  local out = lane:call(random, move.name, function(conn)
    return conn[move.name](conn, unpack(move.args, 1, move.n))
  end, { link = link, quiet = move.quiet })
  count(run, out, move.name, out.value, out.err, move.meta)
  move.judge(out.value, out.more, out.err, out)
end

-- A quiet set, and a fence behind it: then it is done, unless a failure was told.
local function quiet_and_fence(run, random, lane, registers, link)
  local register = random:pick(registers)
  register:settle()
  local before, move = link.conn:counters().quiet_failed, moves.set_quietly(random, register)
  local out = lane:call(random, "set", function(conn)
    return conn:set(unpack(move.args, 1, move.n))
  end, { link = link, quiet = true })
  count(run, out, "set", out.value, out.err)
  move.judge(out.value, nil, out.err, out)
  local fence = lane:call(random, "noop", function(conn) return conn:noop() end,
    { link = link })
  count(run, fence, "noop", fence.value, fence.err)
  if out.err or fence.err or register.server.small then return end
  if link.conn:counters().quiet_failed == before then
    register:wrote_quietly(fence, move.version)
  end
end

local PREFIX = "what was there before; "

local function read_into(run, random, lane, registers, link)
  local register, buf = random:pick(registers), buffer.new()
  register:settle()
  buf:put(PREFIX)
  local out = lane:call(random, "get", function(conn)
    return conn:get(register.key, { into = buf })
  end, { link = link })
  count(run, out, "get into", out.value, out.err)
  local text = buf:tostring()
  if out.err or out.value == nil then
    if text ~= PREFIX then register:wrong(out, "a buffer that holds " .. values.show(text)) end
    if not out.err then register:missed(out) end
  elseif text:sub(1, #PREFIX) ~= PREFIX then
    register:wrong(out, "a buffer that holds " .. values.show(text))
  else
    register:saw(out, text:sub(#PREFIX + 1))
  end
end

-- ---- pipelines ----

local function judge_pipeline(run, out, list)
  local replies = out.value
  if replies == nil then
    run.report:failure("pipeline", out.err, out.lane.url)
    for _, move in ipairs(list) do move.judge(nil, nil, out.err, out) end
    return
  end
  local failed = 0
  for i, move in ipairs(list) do
    local err = replies.errors[i]
    if err then failed = failed + 1 end
    if not move.quiet and is_answer(err) then Lane.answered(out) end
    count(run, out, move.name, replies[i], err, move.meta)
    move.judge(replies[i], replies.more[i], err, out)
  end
  if replies.n ~= #list or replies.failed ~= failed then
    run.report:odd(("a pipeline of %d with %d failures says %d and %d"):format(#list, failed,
      replies.n, replies.failed))
  end
end

local function pipeline(run, random, lane, registers, link)
  for _, register in ipairs(registers) do register:settle() end
  local list = {}
  for i = 1, random:between(2, 14) do list[i] = moves.any(random, random:pick(registers)) end
  local out = lane:call(random, "pipeline", function(conn)
    local p = conn:pipeline()
    for _, move in ipairs(list) do p[move.name](p, unpack(move.args, 1, move.n)) end
    return p:run()
  end, { link = link, quiet = true })
  judge_pipeline(run, out, list)
end

-- ---- many keys ----

-- What failed of a call over many keys: by key, or all of it.
local function failure_of(out, key)
  return out.err or out.more and out.more[key] or nil
end

local function judge_many(run, out, registers, judge)
  for _, register in ipairs(registers) do
    local err = failure_of(out, register.key)
    if is_answer(err) then Lane.answered(out) end
    if err then run.report:failure(out.op, err, out.lane.url) end
    judge(register, err)
  end
  if not out.err then run.report:answer(out.op, "value") end
end

local function set_many(run, random, lane, registers, link)
  local new, versions, done = {}, {}, 0
  for _, register in ipairs(registers) do
    register:settle()
    local version, value = register:create(random:between(0, 3000), 0)
    new[register.key], versions[register] = value, version
  end
  local out = lane:call(random, "set_many", function(conn)
    return conn:set_many(new)
  end, { link = link, quiet = true })
  judge_many(run, out, registers, function(register, err)
    if err then return register:failed(out, versions[register], err) end
    register:wrote(out, versions[register])
    done = done + 1
  end)
  if not out.err and out.value ~= done then
    registers[1]:wrong(out, ("%s stored of %d"):format(tostring(out.value), done))
  end
end

local function delete_many(run, random, lane, registers, link)
  local keys = {}
  for i, register in ipairs(registers) do
    register:settle()
    register:begin_delete()
    keys[i] = register.key
  end
  local out = lane:call(random, "delete_many", function(conn)
    return conn:delete_many(keys)
  end, { link = link, quiet = true })
  local least, most = 0, 0
  judge_many(run, out, registers, function(register, err)
    if err == nil then
      if not register:may_miss() then least = least + 1 end
      if register:may_hit() then most = most + 1 end
      register:deleted(out, nil)
    elseif err.sent == "no" then
      register:refused(0)
    else
      register:doubted(out, 0)
    end
  end)
  if not out.err and (out.value < least or out.value > most) then
    registers[1]:wrong(out, ("%d deleted, of %d to %d"):format(out.value, least, most))
  end
end

local function get_many(run, random, lane, registers, link)
  local keys, asked = {}, {}
  for i, register in ipairs(registers) do
    register:settle()
    keys[i] = register.key
    asked[register.key] = true
  end
  local out = lane:call(random, "get_many", function(conn)
    return conn:get_many(keys)
  end, { link = link, quiet = true })
  judge_many(run, out, registers, function(register, err)
    if err then return end
    local value = out.value[register.key]
    if value == nil then register:missed(out) else register:saw(out, value) end
  end)
  for key in pairs(out.value or {}) do
    if not asked[key] then registers[1]:wrong(out, "a key that was not asked for: " .. key) end
  end
end

-- ---- what has no key ----

local REFUSED = {
  { "bad_key", "get", "a key with blanks" },
  { "bad_key", "set", ("x"):rep(251), "value" },
  { "bad_key", "delete", "" },
  { "bad_value", "set", "key", "value", { ttl = 2 ^ 40 } },
  { "bad_value", "incr", "key", "18446744073709551616" },
}

local function refused(run, random, lane, _, link)
  local case = random:pick(REFUSED)
  local out = lane:call(random, case[2], function(conn)
    return conn[case[2]](conn, case[3], case[4], case[5])
  end, { link = link, quiet = true })
  count(run, out, case[2], out.value, out.err)
  local err = out.err
  if not err or err.kind ~= case[1] and err.kind ~= "closed" and err.kind ~= "cancelled"
    and err.kind ~= "timeout" or err.sent ~= "no" then
    run.report:odd(("%s of a %s: %s"):format(case[2], case[1], tostring(err or out.value)))
  end
end

local function about_the_server(run, random, lane, _, link)
  local op = random:pick { "noop", "version", "stats", "stats" }
  local out = lane:call(random, op, function(conn) return conn[op](conn) end, { link = link })
  count(run, out, op, out.value, out.err)
  local value, fine = out.value, true
  if out.err then return end
  if op == "noop" then fine = value == true end
  if op == "version" then fine = lane.server:has_version(value) end
  if op == "stats" then fine = lane.server:has_pid(tonumber(value.pid)) end
  if not fine then
    run.report:wrong {
      op = op, key = "", lane = lane.url, allowed = "what this server says",
      came = op == "stats" and "the pid " .. tostring(value.pid) or tostring(value),
    }
  end
end

local function flush(run, random, lane, _, link)
  if not lane.server.flushed then return end
  local out = lane:call(random, "flush_all", function(conn) return conn:flush_all() end,
    { link = link })
  count(run, out, "flush_all", out.value, out.err)
end

-- ---- one step ----

local CHOICES = {
  { 60, single }, { 14, pipeline }, { 4, quiet_and_fence }, { 5, read_into }, { 4, get_many },
  { 4, set_many }, { 3, delete_many }, { 2, refused }, { 3, about_the_server }, { 1, flush },
}

-- Does something with these registers on a lane. False when that has no connection now.
function M.step(run, random, lane, registers)
  local link = lane:open()
  if not link then return false end
  random:weighted(CHOICES)(run, random, lane, registers, link)
  return true
end

-- At the end, when all is calm: every register is read, and must answer.
function M.audit(run, lane, register)
  register:settle()
  local link = lane:open()
  local value, err
  if link then value, err = link.conn:get(register.key) end
  if not link or err then
    run.report:odd(("the last get of %q on %s failed: %s"):format(register.key, lane.url,
      tostring(err or "no connection")))
    return
  end
  local out = { op = "last get", lane = lane, link = link, started = Lane.stamp() }
  if value == nil then register:missed(out) else register:saw(out, value) end
end

M.count = count

return M
