-- moonjay.connection: one connection to one server.
--
--   local conn = mj.check(mj.connect("memcache://127.0.0.1:11211?timeout=250ms"))
--   conn:set("greeting", "hello", { ttl = 60 })  --> true
--   conn:get("greeting")                         --> "hello"
--
-- Every command of the table in src/command.c is a method, bound once: it takes what the
-- command takes, waits for the answer (only its own task waits), and returns the answer, or nil
-- and an error. A connection has one life: once closed, by either side, every call is nil and
-- an error of kind closed. Any number of tasks may use it: their requests leave together.

local core = require "moonjay.core"
local many = require "moonjay.many"
local pipeline = require "moonjay.pipeline"
local task = require "moonjay.task"
local settle = require "moonjay.wait".settle

local M = {}
local Connection = {}

-- Every argument costs each call a little, also one that is left out: those that take a key and
-- options at most have a shorter way. The last is there to be refused.
local SHORT = { get = true, item = true, delete = true, noop = true, version = true }

local function short_method(submit)
  return function(self, a, b, c)
    local value, more = submit(self, a, b, c)
    if more == nil then return value end
    return settle(submit, value, more, self, a, b, c)
  end
end

local function method(submit)
  return function(self, a, b, c, d, e)
    local value, more = submit(self, a, b, c, d, e)
    if more == nil then return value end
    return settle(submit, value, more, self, a, b, c, d, e)
  end
end

for name, submit in pairs(core.connection) do
  Connection[name] = (SHORT[name] and short_method or method)(submit)
end

-- incr and decr with { initial = n }: one command over meta; incr, add, incr over ascii.
local function counter(name)
  local plain = Connection[name]
  Connection[name] = function(self, key, delta, options, extra)
    local number, err = plain(self, key, delta, options, extra)
    if number ~= nil or err ~= nil or type(options) ~= "table" or options.initial == nil
      or self:protocol() == "meta" then
      if err == nil then return number end
      return number, err
    end
    return many.create_counter(self, name, key, delta, options)
  end
end

counter "incr"
counter "decr"

-- get_many(keys): a table of key = value, always, and one of key = error if some failed.
-- A bad key among them: nil and the error, and nothing is sent.
function Connection:get_many(keys) return many.get(self, keys) end

-- set_many({ key = value } [, options of set]): how many were stored; errors as above.
function Connection:set_many(values, options) return many.set(self, values, options) end

-- delete_many(keys): how many there were; errors as above.
function Connection:delete_many(keys) return many.delete(self, keys) end

-- stats([section]): a table of name = text.
function Connection:stats(section)
  local replies, err = pipeline.new(self):stats(section):run()
  if replies == nil then return nil, err end
  return replies[1], replies.errors[1]
end

-- A new, empty pipeline over this connection.
function Connection:pipeline() return pipeline.new(self) end

-- Closes it: every task that waits on it gets an error of kind closed. Quiet requests that no
-- reply has fenced yet are given the time of one noop to be answered. Twice is harmless. It is
-- closed also where that wait throws: interrupted, or where a task cannot wait.
function Connection:close()
  local ok, err = true, nil
  if core.has_unfenced(self) then ok, err = pcall(Connection.noop, self) end
  core.close(self)
  if not ok then error(err, 0) end
end

-- What it has counted, as a table of numbers: requests, replies, reads, writes (system calls),
-- bytes_read, bytes_written, arms (changes of what the kernel watches), timeouts, abandoned,
-- late, quiet, quiet_failed, fences, parked, hits, misses, inflight.
Connection.counters = core.counters_of

-- "meta" or "ascii".
Connection.protocol = core.protocol

-- The server's name, as errors show it.
Connection.server = core.server

Connection.is_open = core.is_open

-- The number of its descriptor, to look at its socket; nil once it is closed.
Connection.fd = core.fd

core.connection_meta.__index = Connection
core.set_notify(function(handler, err) task.spawn(handler, err) end)

-- connect(url [, { on_error = function(err) }]): waits until it is open. Takes the URL of one
-- server. on_error is called, in a task of its own, with each failure of a quiet request.
-- Returns the connection, or nil and an error; throws where an argument is of a wrong type.
function M.connect(url, options)
  local conn, err = core.connect(url, options)
  if err == nil then return conn end
  return settle(core.connect, conn, err, url, options)
end

return M
