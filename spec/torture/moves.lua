-- The moves on a register (register.lua): each makes one request and knows how to judge what
-- comes of it.
--
--   local move = moves.any(random, register)
--   move.name, move.args       -- conn[move.name](conn, unpack(move.args, 1, move.n))
--   move.judge(value, more, err, out)
--
-- A move is judged exactly once: with what the call returned, or with the error that ended it.
-- move.quiet: its true says nothing yet. move.meta: ascii cannot do it.

local Register = require "spec.torture.register"
local values = require "spec.torture.values"

local M = {}

local NOTHING = 0
local TTL = 3600

local function pack(...) return { ... }, select("#", ...) end

-- judge: of an answer alone; doubt: of an error.
local function move(register, name, judge, doubt, ...)
  local args, n = pack(...)
  return {
    register = register, name = name, args = args, n = n,
    judge = function(value, more, err, out)
      if err == nil then
        return judge(out, value, more)
      elseif doubt then
        doubt(out, err)
      end
    end,
  }
end

local function options_for(random, version)
  return { flags = Register.flags_of(version), ttl = random:pick { 0, TTL } }
end

-- ---- writing ----

local NEEDS = { add = "miss", replace = "hit" }

local function store(name)
  return function(random, register)
    local version, value = register:create(values.size(random, register.server.small))
    return move(register, name, function(out, stored)
      local wants = NEEDS[name]
      if stored == true then return register:wrote(out, version, wants) end
      register:refused(version, "not stored")
      if stored ~= false or not wants then
        register:wrong(out, "not stored: " .. tostring(stored))
      elseif wants == "hit" then
        register:missed(out)
      else
        register:exists(out)
      end
    end, function(out, err) register:failed(out, version, err) end,
      register.key, value, options_for(random, version))
  end
end

M.set, M.add, M.replace = store "set", store "add", store "replace"

-- A quiet set: its fate stays open until a later call on the same connection is answered.
function M.set_quietly(random, register)
  local version, value = register:create(values.size(random, register.server.small))
  local options = options_for(random, version)
  options.quiet = true
  local made = move(register, "set", function(out) register:doubted(out, version) end,
    function(out, err) register:failed(out, version, err) end, register.key, value, options)
  made.quiet, made.version = true, version
  return made
end

local MODES = { S = {}, E = { wants = "miss" }, R = { wants = "hit" } }

function M.meta_set(random, register)
  local version, value = register:create(values.size(random, register.server.small))
  local mode = random:pick { "S", "E", "R" }
  local wants = MODES[mode].wants
  local made = move(register, "meta", function(out, reply)
    if reply.rc == "HD" then return register:wrote(out, version, wants) end
    register:refused(version, reply.rc)
    if reply.rc ~= "NS" or not wants then
      register:wrong(out, "ms answered with " .. reply.rc)
    elseif wants == "hit" then
      register:missed(out)
    else
      register:exists(out)
    end
  end, function(out, err) register:failed(out, version, err) end, "ms", register.key,
    { "M" .. mode, "F" .. Register.flags_of(version), "T" .. TTL }, value)
  made.meta = true
  return made
end

-- A value that no server takes: refused in words, and the old value is gone.
function M.set_too_large(_, register)
  local version, value = register:create(values.TOO_LARGE)
  register:begin_delete()
  return move(register, "set", function(out, stored)
    register:wrong(out, "a value far too large, and the answer " .. tostring(stored))
  end,
    function(out, err)
      register:refused(version, err)
      if err.sent == "no" then
        register:refused(NOTHING)
      elseif err.sent == "yes" then
        register:lost(out)
      else
        register:doubted(out, NOTHING)
      end
    end, register.key, value)
end

-- A cas with the token that an item of this version had. Each version is written once, so its
-- token is good exactly while that version is there.
local function cas_of(read)
  return function(random, register)
    local version, value = register:create(values.size(random, register.server.small))
    return move(register, "cas", function(out, stored, why)
      if stored == true then
        if not register:allows(read.version) and not register.server.killed then
          register:wrong(out, ("stored, with the token of version %d"):format(read.version))
        end
        return register:wrote(out, version, "hit")
      end
      register:refused(version, tostring(why))
      if why == "missing" then
        register:missed(out)
      elseif why ~= "exists" then
        register:wrong(out, "cas: " .. tostring(why))
      else
        register:differs(out, read.version)
      end
    end, function(out, err) register:failed(out, version, err) end, register.key, value,
      read.token, options_for(random, version))
  end
end

-- ---- deleting ----

function M.delete(_, register)
  register:begin_delete()
  return move(register, "delete", function(out, found) register:deleted(out, found) end,
    function(out, err)
      if err.sent == "no" then register:refused(NOTHING) else register:doubted(out, NOTHING) end
    end, register.key)
end

function M.delete_quietly(_, register)
  register:begin_delete()
  local made = move(register, "delete", function(out) register:doubted(out, NOTHING) end,
    function(out, err)
      if err.sent == "no" then register:refused(NOTHING) else register:doubted(out, NOTHING) end
    end, register.key, { quiet = true })
  made.quiet = true
  return made
end

function M.meta_delete(_, register)
  register:begin_delete()
  local made = move(register, "meta", function(out, reply)
    register:deleted(out, reply.rc == "HD")
    if reply.rc ~= "HD" and reply.rc ~= "NF" then
      register:wrong(out, "md answered with " .. reply.rc)
    end
  end, function(out, err)
    if err.sent == "no" then register:refused(NOTHING) else register:doubted(out, NOTHING) end
  end, "md", register.key, {})
  made.meta = true
  return made
end

-- ---- reading ----

local function got(register)
  return function(out, value)
    if value == nil then return register:missed(out) end
    register:saw(out, value)
  end
end

function M.get(_, register)
  return move(register, "get", got(register), nil, register.key)
end

function M.gat(_, register)
  return move(register, "gat", got(register), nil, register.key, TTL)
end

function M.item(random, register)
  local touch = random:chance(0.3) and { touch = TTL } or nil
  return move(register, "item", function(out, item)
    if item == nil then return register:missed(out) end
    local version = register:saw(out, item.value, item.flags, item.size)
    if not version then return end
    local read = register.read
    if read and read.version == version then
      if read.token ~= item.cas then
        register:wrong(out, ("version %d with the token %s, which had %s before"):format(
          version, item.cas, read.token))
      end
      return
    end
    register.read, register.read_before = { version = version, token = item.cas }, read
  end, nil, register.key, touch)
end

function M.meta_get(random, register)
  local opaque = "Omine" .. random:below(1000)
  local made = move(register, "meta", function(out, reply)
    if reply.rc == "EN" then return register:missed(out) end
    if reply.rc ~= "VA" then return register:wrong(out, "mg answered with " .. reply.rc) end
    local flags = {}
    for _, flag in ipairs(reply.flags) do flags[flag:sub(1, 1)] = flag end
    if flags.O ~= opaque or flags.k ~= "k" .. register.key then
      local all = table.concat(reply.flags, " ")
      register:wrong(out, "an mg whose O or k are another's: " .. all)
    end
    register:saw(out, reply.value, tonumber(flags.f:sub(2)), tonumber(flags.s:sub(2)))
  end, nil, "mg", register.key, { "v", "f", "s", "k", opaque })
  made.meta = true
  return made
end

function M.meta_debug(_, register)
  local made = move(register, "meta", function(out, reply)
    if reply.rc == "EN" then
      register:missed(out)
    elseif reply.rc == "ME" then
      register:exists(out)
    else
      register:wrong(out, "me answered with " .. reply.rc)
    end
  end, nil, "me", register.key, {})
  made.meta = true
  return made
end

function M.touch(_, register)
  return move(register, "touch", function(out, found)
    if found then register:exists(out) else register:missed(out) end
  end, nil, register.key, TTL)
end

-- A number is wanted, and the value is none: an error of the server's, or a miss. The only
-- values that are numbers are none of ours.
function M.count_text(_, register)
  return move(register, "incr", function(out, number)
    if number == nil then return register:missed(out) end
    register:wrong(out, "the number " .. tostring(number))
  end, function(out, err)
    if err.kind == "client_error" then register:exists(out) end
  end, register.key, 1)
end

-- ---- choosing ----

local CHOICES = {
  { 30, M.set }, { 10, M.add }, { 8, M.replace }, { 8, M.set_quietly }, { 10, M.meta_set },
  { 12, M.delete }, { 4, M.delete_quietly }, { 4, M.meta_delete },
  { 40, M.get }, { 8, M.gat }, { 14, M.item }, { 16, M.meta_get }, { 4, M.meta_debug },
  { 8, M.touch }, { 4, M.count_text }, { 1, M.set_too_large },
}

function M.any(random, register)
  local read = random:chance(0.8) and register.read or register.read_before
  if read and random:chance(0.15) then return cas_of(read)(random, register) end
  return random:weighted(CHOICES)(random, register)
end

return M
