-- moonjay: nonblocking memcached for Lua.
--
--   local mj = require "moonjay"
--   local conn = mj.check(mj.connect("memcache://127.0.0.1:11211?timeout=250ms"))
--   print(conn:get("greeting"))
--
-- The answer rule, everywhere: a value or true is yes; false or a lone nil is the server's no;
-- nil and an error is a failure. A misuse by the programmer is thrown.

local connection = require "moonjay.connection"
local core = require "moonjay.core"
local errors = require "moonjay.errors"
local task = require "moonjay.task"

local M = {
  _VERSION = core.version,
  errors = errors,

  connect = connection.connect,
  -- parse_url(url): the list of its endpoints, or nil and an error of kind bad_url.
  parse_url = core.parse_url,

  spawn = task.spawn,
  sleep = task.sleep,
  now = task.now,
  deadline = task.deadline,
  all = task.all,
  any = task.any,
  check = task.check,
  counters = task.counters,
}

return M
