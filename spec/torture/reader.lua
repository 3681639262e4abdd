-- A reader of registers that are others': whatever it gets must be the asked key's, whole, and
-- written not before it was due. It also asks for keys that another server has: none may come.
--
--   reader.step(run, random, lane)

local buffer = require "string.buffer"
local count = require "spec.torture.owner".count

local M = {}

local function choose(random, all, most)
  local chosen = {}
  for i = 1, random:between(1, most) do chosen[i] = random:pick(all) end
  return chosen
end

local function one(run, random, lane, link, register, op)
  local snapshot, buf = register:snapshot(), buffer.new()
  local out = lane:call(random, op, function(conn)
    if op == "into" then return conn:get(register.key, { into = buf }) end
    if op == "meta" then return conn:meta("mg", register.key, { "v" }) end
    return conn[op](conn, register.key)
  end, { link = link })
  count(run, out, op == "into" and "get into" or op, out.value, out.err, op == "meta")
  if out.err then return end
  local value = out.value
  if op == "into" and value then value = buf:tostring() end
  if op == "item" and value then value = value.value end
  if op == "meta" then value = value.rc == "VA" and value.value or nil end
  register:check(out, snapshot, value)
end

-- Several at once, in a get_many or a pipeline, and one key that is not there.
local function several(run, random, lane, link, chosen, op)
  local snapshots, keys = {}, {}
  for i, register in ipairs(chosen) do
    snapshots[i], keys[i] = register:snapshot(), register.key
  end
  local foreign = random:pick(random:pick(lane.server.others).registers)
  keys[#keys + 1] = foreign.key
  local out = lane:call(random, op, function(conn)
    if op == "get_many" then return conn:get_many(keys) end
    local p = conn:pipeline()
    for _, key in ipairs(keys) do p:get(key) end
    return p:run()
  end, { link = link, quiet = true })
  count(run, out, op, out.value, out.err)
  if out.err then return end
  local errors = op == "get_many" and (out.more or {}) or out.value.errors
  local function at(i) return op == "get_many" and keys[i] or i end
  for i, register in ipairs(chosen) do
    if errors[at(i)] then
      run.report:failure("get", errors[at(i)], lane.url)
    else
      register:check(out, snapshots[i], out.value[at(i)])
    end
  end
  if out.value[at(#keys)] ~= nil then foreign:wrong(out, "a value, from another server") end
end

-- Reads something over a lane. False when that has no connection now.
function M.step(run, random, lane)
  local link, registers = lane:open(), lane.server.registers
  if not link or #registers == 0 then return link ~= nil end
  local op = random:weighted {
    { 30, "get" }, { 10, "into" }, { 10, "item" }, { 10, "meta" }, { 20, "get_many" },
    { 10, "pipeline" },
  }
  if op == "get_many" or op == "pipeline" then
    several(run, random, lane, link, choose(random, registers, 20), op)
  else
    one(run, random, lane, link, random:pick(registers), op)
  end
  return true
end

return M
