-- reconnect.lua: goes on when the connection breaks, and when the server goes away and returns.
--
--   moonjay run --memcached lua/examples/reconnect.lua      breaks its connection half way
--   moonjay lua/examples/reconnect.lua 1000 [PATIENCE]      1000 rounds; now stop your server,
--                                                           and start it again
--
-- A connection has one life, so a call that shall outlive it takes a new one. Ends with status
-- 1 when a call was not answered within about PATIENCE seconds (10).

local mj = require "moonjay"

local FIRST_PAUSE, LONGEST_PAUSE, ROUND = 0.01, 1, 0.01 -- seconds

local function argument(place, default)
  local number = tonumber(arg[place] or default)
  if number and number > 0 then return number end
  io.stderr:write("usage: moonjay reconnect.lua [ROUNDS [PATIENCE]]; both are above 0\n")
  os.exit(2)
end

local rounds, patience = argument(1, 20), argument(2, 10)
local url = os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"
local conn, connecting
local connected = 0

-- The open connection, or a new one; nil and an error. Tasks that find it closed at the same
-- time share one attempt to connect.
local function open()
  if conn and conn:is_open() then return conn end
  connecting = connecting or mj.spawn(function()
    local fresh, err = mj.connect(url)
    connecting = nil
    if not fresh then return nil, err end
    conn, connected = fresh, connected + 1
    print(("connected: %d"):format(connected))
    return fresh
  end)
  return connecting:wait()
end

-- Whether the call may be made again. `retryable` speaks of the request alone; a request that
-- was never sent, because its connection was closed, may be made on another in any case.
local function again(err)
  return err.retryable or (err.kind == "closed" and err.sent == "no")
end

-- Calls ask(conn) until there is an answer, for as long as we are patient; returns that, or nil
-- and the last error. The pauses grow, and differ, so that not all clients return at once.
local function call(ask)
  local give_up, pause = mj.now() + patience, FIRST_PAUSE
  while true do
    local value, err = open()
    if value then value, err = ask(value) end
    if value ~= nil or err == nil then return value, err end
    if not again(err) or mj.now() + pause > give_up then return nil, err end
    print(("%s (sent: %s), and once more"):format(err.kind, err.sent))
    mj.sleep(pause * (0.5 + math.random() / 2))
    pause = math.min(2 * pause, LONGEST_PAUSE)
  end
end

io.stdout:setvbuf "line"
math.randomseed(os.time())
for round = 1, rounds do
  -- set may be repeated. A call that may not, as incr, ends here with its error if it was sent.
  local _, err = call(function(c) return c:set("reconnect:round", tostring(round)) end)
  if err then
    io.stderr:write("reconnect: ", tostring(err), "\n")
    os.exit(1)
  end
  if round == 1 then print "ready" end
  if not arg[1] and round == rounds / 2 then
    print "closing the connection under it"
    conn:close()
  end
  mj.sleep(ROUND)
end
print(("%d rounds, each answered, on %d connection(s)"):format(rounds, connected))
