-- Judges what calls give while system calls and allocations fail: see runtime_play.c.
--
--   local stored, yes = judge.try(conn:server(), conn.set, conn, key, value)
--   if stored and yes ~= true then judge.blame("a set is no yes") end
--
-- Nothing may take a failure for an answer: each call gives what it should, or an error of a
-- known kind, or throws "not enough memory". What is wrong is a constant text, for there may be
-- no memory to make one.

local mj = require "moonjay"

-- One that ran out of memory must not be refused for ever.
local function library(name)
  local ok, found = pcall(require, name)
  if not ok then
    package.loaded[name] = nil
    error(found, 0)
  end
  return found
end

local new_table = library "table.new"

local MOST = 64
local known = {}
for _, kind in ipairs(mj.errors.kinds) do known[kind] = true end

local wrong, seen, count

local function blame(what)
  wrong = wrong or what
end

-- A failure: `server` is who it must speak of, if it speaks of one.
local function meet(err, server)
  if type(err) == "string" then
    if not err:find("not enough memory", 1, true) then
      blame(err)
    end
    err = nil
  elseif not mj.errors.is(err) then
    blame("an error is no error")
  elseif not known[err.kind] then
    blame("an error's kind is not known")
  elseif type(err.message) ~= "string" or err.message == "" then
    blame("an error has no message")
  elseif err.sent ~= "no" and err.sent ~= "maybe" and err.sent ~= "yes" then
    blame("an error does not say whether it was sent")
  elseif server and err.server and err.server ~= server then
    blame("an error names another server")
  end
  -- A call on a connection that had failed before is no news.
  if count < MOST and not (err and err.kind == "closed" and not err.phase) then
    count = count + 1
    seen[count] = err and err.kind or "no_memory"
  end
end

-- Calls: true and what it gave, where it is no failure.
local function try(server, fn, ...)
  local ok, value, err = pcall(fn, ...)
  if not ok then
    meet(value, server)
  elseif value == nil and err ~= nil then
    meet(err, server)
  else
    return true, value, err
  end
  return false
end

local function name_of(url)
  return (url:gsub("%?.*", ""):gsub("//.*@", "//"):gsub("+unix", ""))
end

local function connect(url, options)
  local _, conn = try(name_of(url), mj.connect, url, options)
  return conn
end

-- Stores a value that names its key, and reads it back.
local function there_and_back(conn, key, value)
  local server = conn:server()
  local stored, yes = try(server, conn.set, conn, key, value)
  if stored and yes ~= true then blame("a set is no yes") end
  local read, got = try(server, conn.get, conn, key)
  if read and got ~= value and (stored or got ~= nil) then
    blame("a get gives another value")
  end
end

-- Runs fn(...) under all that. Returns "fine", or "failed" and the kinds of the failures, or
-- what is wrong.
local function run(fn, ...)
  wrong, seen, count = nil, new_table(MOST, 0), 0
  local ok, err = pcall(fn, ...)
  if not ok then meet(err) end
  if wrong then return wrong end
  if count == 0 then return "fine" end
  return "failed", unpack(seen, 1, count)
end

judge = {
  library = library, blame = blame, meet = meet, try = try, connect = connect,
  there_and_back = there_and_back, run = run,
}
