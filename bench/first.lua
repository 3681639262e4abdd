-- bench/first.lua: the script that start.lua runs. Prints when it began, when it was connected
-- and when it had its first reply, on the clock that all processes share.

local mj = require "moonjay"

local began = mj.now()
local conn = mj.check(mj.connect(arg[1]))
local connected = mj.now()
mj.check(conn:get("bench:first"))
print(("%.6f %.6f %.6f"):format(began, connected, mj.now()))
