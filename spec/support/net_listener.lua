-- A listener for net cases that is no memcached.
--
--   luajit spec/support/net_listener.lua HOST PORT ACCEPT BACKLOG FILL
--
-- ACCEPT: "false" (no connection is ever taken), "true" (they are taken, and never answered),
-- "fin" or "rst" (taken, and ended at once in that way). FILL connections of its own stand in
-- the queue. Prints "READY" and ends with its standard input.

package.path = "./?.lua;" .. package.path

local loop = require "spec.support.loop"
local posix = require "spec.support.posix"

local host, port, accept = arg[1], tonumber(arg[2]), arg[3]
local listener = assert(posix.listen { host = host, port = port, backlog = tonumber(arg[4]) })

-- Descriptors are integers, which nothing closes but close(): these stay to the end.
for _ = 1, tonumber(arg[5]) do assert(posix.connect { host = host, port = port }) end

local over = false

local function take(fd)
  if accept == "true" then return end
  if accept == "rst" then posix.linger_zero(fd) end
  posix.close(fd)
end

if accept ~= "false" then
  loop.start(function()
    while not over do
      local fd = loop.readable(listener, 0.02) and posix.accept(listener)
      if fd then take(fd) end
    end
  end)
end
loop.start(function()
  while not (loop.readable(0, 1) and (posix.read(0) or "") == "") do end
  over = true
end)
print "READY"
io.stdout:flush()
loop.run()
