-- What the sweep over failing calls runs in a runtime: see runtime_play.c.
--
-- Nothing here may mistake a failure for an answer: each call gives what it should, or an
-- error of a known kind, or throws "not enough memory". What is wrong is a constant text, for
-- there may be no memory to make one.

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

local buffer, new_table = library "string.buffer", library "table.new"

local LARGE, MOST = 100000, 64
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

-- Without a deaf server nothing waits for time. Returns "fine", or "failed" and the kinds of
-- the failures, or what is wrong.
function main(tcp, unix, named, with_login, key, deaf)
  wrong, seen, count = nil, new_table(MOST, 0), 0
  local ok, err = pcall(play, {
    tcp = tcp, unix = unix, named = named, login = with_login, deaf = deaf,
  }, key)
  if not ok then meet(err) end
  if wrong then return wrong end
  if count == 0 then return "fine" end
  return "failed", unpack(seen, 1, count)
end

-- Waits until the runtime is closed.
function linger(deaf)
  local conn = mj.check(mj.connect(deaf))
  mj.spawn(function() conn:get("left") end)
  mj.sleep(3600)
end
