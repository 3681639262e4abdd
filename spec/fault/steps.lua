-- One after another, a little of everything: see runtime_play.c.

local mj = require "moonjay"
local judge = judge
local try, meet, blame, connect = judge.try, judge.meet, judge.blame, judge.connect
local there_and_back = judge.there_and_back
local buffer = judge.library "string.buffer"

local LARGE = 100000

local function tasks(conn, key)
  local large = (key .. "."):rep(LARGE / #key)
  local a = mj.spawn(there_and_back, conn, key .. "a", key .. "a")
  local b = mj.spawn(there_and_back, conn, key .. "b", large)
  local c = mj.spawn(there_and_back, conn, key .. "c", "")
  try(nil, mj.all, { a, b, c })
end

local function into(conn, key)
  local value = (key .. ","):rep(LARGE / #key)
  local stored = try(conn:server(), conn.set, conn, key, value)
  local buf = buffer.new()
  buf:put("before")
  local read, got = try(conn:server(), conn.get, conn, key, { into = buf })
  local text = buf:tostring()
  if read and got == nil then
    if stored then blame("a get into a buffer misses") end
  elseif read and text ~= "before" .. value then
    blame("a get into a buffer gives another value")
  elseif not read and text ~= "before" then
    blame("a get into a buffer failed and left something there")
  end
end

local function pipeline(conn, key)
  local p = conn:pipeline()
  p:set(key, key):get(key):incr(key):get_many { key, key .. "none" }
  p:get(key .. "none"):set("no key", key):delete(key)
  local ran, replies = try(conn:server(), p.run, p)
  if not ran then return end
  local errors, failed = replies.errors, 0
  for i = 1, 7 do
    if errors[i] then
      failed = failed + 1
      if i ~= 3 and i ~= 6 then meet(errors[i], conn:server()) end
    end
  end
  if replies.n ~= 7 or replies.failed ~= failed then blame("a pipeline counts wrongly") end
  local stored = replies[1] == true
  if replies[2] ~= key and not (replies[2] == nil and (errors[2] or not stored)) then
    blame("a pipeline's get gives another value")
  end
  if errors[3] and errors[3].kind ~= "client_error" then meet(errors[3], conn:server()) end
  if stored and not errors[3] then blame("a text was counted") end
  local many = replies[4]
  if many and many[key] ~= key and (many[key] or stored and not replies.more[4]) then
    blame("get_many gives another value")
  end
  if replies[5] ~= nil then blame("a value that nobody stored") end
  if not errors[6] or errors[6].kind ~= "bad_key" and errors[6].kind ~= "no_memory" then
    blame("a bad key is taken")
  end
end

local function quiet(url, key)
  local conn = connect(url, { on_error = function(err)
    if err.kind ~= "client_error" then meet(err) end -- the add
  end })
  if not conn then return end
  try(nil, conn.set, conn, key, key, { quiet = true })
  try(nil, conn.add, conn, key, key, { quiet = true })
  try(nil, conn.noop, conn)
  conn:close()
end

-- A server that never answers.
local function silence(url)
  local conn = connect(url)
  if not conn then return end
  local server = conn:server()
  local ok, value, err = pcall(conn.get, conn, "nothing")
  if ok and value == nil and err == nil then blame("a miss of a server that says nothing") end
  if not ok then err = value end
  if not mj.errors.is(err, "timeout") then meet(err, server) end
  local slow = mj.spawn(function() return mj.deadline(1, conn.get, conn, "cancelled") end)
  try(nil, mj.sleep, 0)
  slow:cancel()
  ok, value, err = pcall(slow.wait, slow)
  if ok and value == nil and err == nil then blame("a cancelled task gives a miss") end
  if not ok then err = value end
  if not mj.errors.is(err, "cancelled") and not mj.errors.is(err, "timeout") then
    meet(err, server)
  end
  ok, value, err = pcall(mj.deadline, 0.002, conn.get, conn, "late")
  if ok and value == nil and err == nil then blame("a deadline gives a miss") end
  if not ok then err = value end
  if not mj.errors.is(err, "timeout") then meet(err, server) end
  conn:close()
end

local function login(url, key)
  local conn = connect(url)
  if conn then there_and_back(conn, key, key) end
  local refused, err = select(2, pcall(mj.connect, (url:gsub("//.*@", "//fault:no@"))))
  if mj.errors.is(refused) or type(refused) == "string" then
    meet(refused)
  elseif refused then
    blame("a wrong password opens")
  elseif not mj.errors.is(err, "auth") then
    meet(err)
  end
end

local function play(urls, key)
  local silent = urls.deaf and mj.spawn(silence, urls.deaf)
  local conn = connect(urls.tcp)
  if conn then
    tasks(conn, key .. "t")
    pipeline(conn, key .. "p")
  end
  local direct = connect(urls.unix)
  if direct then
    into(direct, key .. "i")
    direct:close()
  end
  local named = connect(urls.named)
  if named then there_and_back(named, key .. "n", key) end
  quiet(urls.unix, key .. "q")
  login(urls.login, key .. "l")
  if conn then conn:close() end
  if silent then try(nil, silent.wait, silent) end
end

-- Without a deaf server nothing waits for time.
function main(tcp, unix, named, with_login, key, deaf)
  return judge.run(play, {
    tcp = tcp, unix = unix, named = named, login = with_login, deaf = deaf,
  }, key)
end

-- Waits until the runtime is closed.
function linger(deaf)
  local conn = mj.check(mj.connect(deaf))
  mj.spawn(function() conn:get("left") end)
  mj.sleep(3600)
end
