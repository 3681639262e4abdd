-- Every command on a real memcached: over meta, ascii and what `auto` picks, over tcp and a
-- unix socket, called on a connection and in a pipeline.

local buffer = require "string.buffer"
local carriers = require "spec.support.carriers"
local memcached = require "spec.support.memcached"
local mj = require "moonjay"

local servers = {}
local serial = 0

-- A key that no other spec uses.
local function new_key(name)
  serial = serial + 1
  return ("%s:%d"):format(name or "key", serial)
end

local function open(transport, options)
  return assert(mj.connect(servers[transport]:with(options)))
end

local function refused(kind, value, err)
  assert.is_nil(value)
  assert.equal(kind, err and err.kind)
  assert.equal("no", err.sent)
end

-- What holds for every carrier; `face()` gives the one to call.
local function storing(face)
  it("a miss is a lone nil, a hit the bytes that were set", function()
    local key = new_key()
    local value, err = face():get(key)
    assert.is_nil(value)
    assert.is_nil(err)
    assert.is_true(face():set(key, "a\r\n\0b"))
    assert.equal("a\r\n\0b", face():get(key))
  end)

  it("an empty value is a hit", function()
    local key = new_key()
    assert.is_true(face():set(key, ""))
    assert.equal("", face():get(key))
    assert.equal("", face():item(key).value)
    assert.same({ [key] = "" }, (face():get_many { key }))
  end)

  it("add and replace say whether they stored", function()
    local key = new_key()
    assert.is_false(face():replace(key, "0"))
    assert.is_true(face():add(key, "1"))
    assert.is_false(face():add(key, "2"))
    assert.is_true(face():replace(key, "3"))
    assert.equal("3", face():get(key))
  end)

  it("append and prepend need something to add to", function()
    local key = new_key()
    assert.is_false(face():append(key, "x"))
    assert.is_false(face():prepend(key, "x"))
    face():set(key, "b")
    assert.is_true(face():append(key, "c"))
    assert.is_true(face():prepend(key, "a"))
    assert.equal("abc", face():get(key))
  end)

  it("cas stores once for each token", function()
    local key = new_key()
    face():set(key, "1")
    local token = face():item(key).cas
    assert.equal("string", type(token))
    assert.truthy(token:find("^%d+$"))
    assert.is_true((face():cas(key, "2", token)))
    local stored, why = face():cas(key, "3", token)
    assert.is_false(stored)
    assert.equal("exists", why)
    assert.equal("2", face():get(key))
    stored, why = face():cas(new_key(), "4", token)
    assert.is_false(stored)
    assert.equal("missing", why)
  end)

  it("flags come back, up to 2^32 - 1", function()
    local key = new_key()
    face():set(key, "x", { flags = 4294967295 })
    assert.equal(4294967295, face():item(key).flags)
    face():set(key, "x", { flags = "7" })
    assert.equal(7, face():item(key).flags)
  end)

  it("set_many counts what it stored, delete_many what it deleted", function()
    local a, b, c = new_key(), new_key(), new_key()
    local count, errors = face():set_many { [a] = "1", [b] = "2" }
    assert.equal(2, count)
    assert.is_nil(errors)
    assert.same({ [a] = "1", [b] = "2" }, (face():get_many { a, b, c }))
    assert.equal(1, (face():delete_many { a, c }))
    assert.same({ [b] = "2" }, (face():get_many { a, b, c }))
  end)
end

local function keeping(face)
  it("delete and touch say whether there was an item", function()
    local key = new_key()
    assert.is_false(face():delete(key))
    assert.is_false(face():touch(key, 60))
    face():set(key, "x")
    assert.is_true(face():touch(key, 60))
    assert.is_true(face():delete(key))
    assert.is_nil((face():get(key)))
  end)

  it("a negative ttl has already expired; 0, nil and 40 days have not", function()
    local key = new_key()
    assert.is_true(face():set(key, "x", { ttl = -1 }))
    assert.is_nil((face():get(key)))
    for _, ttl in ipairs { 0, 100, 40 * 86400 } do
      assert.is_true(face():set(key, "x", { ttl = ttl }))
      assert.equal("x", face():get(key))
    end
    assert.is_true(face():touch(key, -1))
    assert.is_nil((face():get(key)))
  end)

  it("gat returns the value and sets the ttl", function()
    local key = new_key()
    assert.is_nil((face():gat(key, 60)))
    face():set(key, "x")
    assert.equal("x", face():gat(key, 60))
    assert.equal("x", face():gat(key, -1))
    assert.is_nil((face():get(key)))
  end)

  it("item with touch sets the ttl as gat does", function()
    local key = new_key()
    assert.is_nil((face():item(key, { touch = 60 })))
    face():set(key, "x")
    assert.equal("x", face():item(key, { touch = 60 }).value)
    assert.equal("x", face():item(key, { touch = -1 }).value)
    assert.is_nil((face():get(key)))
  end)
end

local function counting(face)
  it("incr and decr count, and miss with a lone nil", function()
    local key = new_key()
    local value, err = face():incr(key)
    assert.is_nil(value)
    assert.is_nil(err)
    face():set(key, "10")
    assert.equal(11, face():incr(key))
    assert.equal(16, face():incr(key, 5))
    assert.equal(14, face():decr(key, "2"))
    assert.equal(13, face():decr(key))
    assert.equal(0, face():decr(key, 100))
  end)

  it("initial makes the counter where there is none", function()
    local key = new_key()
    assert.equal(5, face():incr(key, 1, { initial = 5, ttl = 60 }))
    assert.equal(6, face():incr(key, 1, { initial = 5 }))
    assert.equal(9, face():decr(new_key(), 1, { initial = 9 }))
  end)

  it("counters are exact to 2^64 - 1 and wrap", function()
    local key = new_key()
    face():set(key, "9007199254740991")
    assert.equal(9007199254740992, face():incr(key))
    assert.equal("9007199254740993", face():incr(key))
    face():set(key, "18446744073709551614")
    assert.equal("18446744073709551615", face():incr(key))
    assert.equal(0, face():incr(key))
    assert.equal("18446744073709551615", face():incr(key, "18446744073709551615"))
  end)

  it("incr on text is a client_error and harms nothing", function()
    local key = new_key()
    face():set(key, "text")
    local value, err = face():incr(key)
    assert.is_nil(value)
    assert.equal("client_error", err.kind)
    assert.equal("yes", err.sent)
    assert.equal("text", face():get(key))
  end)
end

local function asking(face)
  it("get_many gives what is there, for one key, many, the same twice, and none", function()
    local keys, wanted = {}, {}
    for i = 1, 300 do
      keys[i] = new_key("many")
      if i % 3 ~= 0 then wanted[keys[i]] = "value " .. i end
    end
    assert.equal(200, (face():set_many(wanted)))
    local values, errors = face():get_many(keys)
    assert.same(wanted, values)
    assert.is_nil(errors)
    assert.same({ [keys[1]] = "value 1" }, (face():get_many { keys[1], keys[3], keys[1] }))
    assert.same({}, (face():get_many {}))
  end)

  it("noop, version, stats and flush_all answer", function()
    assert.is_true(face():noop())
    assert.truthy(face():version():find("^%d+%.%d+"))
    assert.truthy(tonumber(face():stats().pid))
    assert.truthy(face():stats("settings").maxbytes)
    local key = new_key()
    face():set(key, "x")
    assert.is_true(face():flush_all(1000))
    assert.is_true(face():flush_all())
    assert.is_nil((face():get(key)))
  end)

  it("an unknown section of stats is a failure", function()
    local value, err = face():stats("nonsense")
    assert.is_nil(value)
    assert.equal("client_error", err.kind)
  end)
end

local function refusing(face, conn)
  local bad_keys = {
    empty = "", long = ("k"):rep(251), blank = "a b", tab = "a\tb", newline = "a\r\nget b",
    nul = "a\0b", del = "a\127b",
  }

  it("a bad key never reaches the wire, whatever the command", function()
    local before = conn():counters().bytes_written
    for _, key in pairs(bad_keys) do
      refused("bad_key", face():get(key))
      refused("bad_key", face():item(key))
      refused("bad_key", face():gat(key, 1))
      refused("bad_key", face():set(key, "x"))
      refused("bad_key", face():add(key, "x", { quiet = true }))
      refused("bad_key", face():cas(key, "x", "1"))
      refused("bad_key", face():delete(key))
      refused("bad_key", face():touch(key, 1))
      refused("bad_key", face():incr(key))
      refused("bad_key", face():get_many { "fine", key, "good" })
    end
    assert.equal(before, conn():counters().bytes_written)
  end)

  it("set_many and delete_many do the good keys and tell the bad ones", function()
    local good, bad = new_key(), "a b"
    local count, errors = face():set_many { [good] = "1", [bad] = "2" }
    assert.equal(1, count)
    assert.equal("bad_key", errors[bad].kind)
    assert.is_nil(errors[good])
    count, errors = face():delete_many { good, bad }
    assert.equal(1, count)
    assert.equal("bad_key", errors[bad].kind)
    assert.is_nil(errors[good])
  end)

  it("a number that the server would bend is bad_value, and nothing is sent", function()
    local before = conn():counters().bytes_written
    local too_late = 2 ^ 31
    for _, ttl in ipairs { 0 / 0, math.huge, -math.huge, 2 ^ 32, too_late } do
      refused("bad_value", face():set("k", "x", { ttl = ttl }))
      refused("bad_value", face():touch("k", ttl))
      refused("bad_value", face():gat("k", ttl))
      refused("bad_value", face():item("k", { touch = ttl }))
    end
    for _, flags in ipairs { -1, 2 ^ 32, "4294967296", 1.5, "x", 0 / 0 } do
      refused("bad_value", face():set("k", "x", { flags = flags }))
    end
    for _, delta in ipairs { -1, 1.5, 2 ^ 64, "18446744073709551616", "-1", "1e3", "" } do
      refused("bad_value", face():incr("k", delta))
      refused("bad_value", face():decr("k", delta))
      refused("bad_value", face():incr("k", 1, { initial = delta }))
    end
    for _, token in ipairs { "-1", "x", "18446744073709551616", "1 2", "" } do
      refused("bad_value", face():cas("k", "x", token))
    end
    assert.equal(before, conn():counters().bytes_written)
  end)
end

-- Calls fn and returns the message it threw.
local function thrown(fn, ...)
  local fine, message = pcall(fn, ...)
  assert.is_false(fine)
  return tostring(message)
end

local function misusing(face)
  local function says(message, ...)
    for _, word in ipairs { ... } do
      assert.truthy(message:find(word, 1, true), ("%q is not in: %s"):format(word, message))
    end
  end

  it("a wrong type is thrown, and names function, argument and what it wanted", function()
    local to = face()
    says(thrown(to.get, to), "get", "key", "string")
    says(thrown(to.get, to, {}), "get", "key", "string", "table")
    says(thrown(to.set, to, "k", {}), "set", "value", "string", "table")
    says(thrown(to.set, to, "k", true), "set", "value", "boolean")
    says(thrown(to.set, to, "k"), "set", "value")
    says(thrown(to.set, to, "k", "v", { ttl = "soon" }), "set", "ttl", "number")
    says(thrown(to.touch, to, "k", "soon"), "touch", "ttl", "number")
    says(thrown(to.incr, to, "k", {}), "incr", "delta")
    says(thrown(to.get_many, to, "k"), "get_many", "keys", "list")
    says(thrown(to.get_many, to, { 1, {} }), "get_many", "string")
    says(thrown(to.cas, to, "k", "v"), "cas", "token")
  end)

  it("an unknown option is thrown, with the one that was meant", function()
    local to = face()
    says(thrown(to.set, to, "k", "v", { tll = 1 }), "set", "tll", "ttl")
    says(thrown(to.get, to, "k", { ttl = 1 }), "get", "ttl")
    says(thrown(to.incr, to, "k", 1, { inital = 1 }), "incr", "inital", "initial")
  end)
end

local function quiet_ones(conn)
  it("quiet requests are carried out, in order, and the next reply is the right one", function()
    local key, counter = new_key(), new_key()
    conn():set(counter, "1")
    assert.is_true(conn():set(key, "1", { quiet = true }))
    assert.is_true(conn():append(key, "2", { quiet = true }))
    assert.is_true(conn():add(key, "no", { quiet = true }))
    assert.is_true(conn():incr(counter, 4, { quiet = true }))
    assert.is_true(conn():decr(counter, 1, { quiet = true }))
    assert.is_true(conn():delete(new_key(), { quiet = true }))
    assert.equal("12", conn():get(key))
    assert.equal("4", conn():get(counter))
    assert.is_true(conn():delete(key, { quiet = true }))
    assert.is_nil((conn():get(key)))
  end)

  it("2,500 quiet requests in a row keep their order", function()
    local key = new_key()
    conn():set(key, "0")
    local before = conn():counters().fences
    for i = 1, 2500 do
      conn():incr(key, 1, { quiet = true })
      if i % 1100 == 0 then mj.sleep(0) end -- they leave at the end of a turn
    end
    assert.equal("2500", conn():get(key))
    assert.equal(2, conn():counters().fences - before)
  end)

  it("a quiet request that nothing follows is fenced in a moment", function()
    local key = new_key()
    local before = conn():counters().fences
    conn():set(key, "x", { quiet = true })
    mj.deadline(5, function()
      while conn():counters().fences == before do mj.sleep(0.01) end
    end)
    assert.equal(before + 1, conn():counters().fences)
    assert.equal("x", conn():get(key))
  end)
end

local SIZES = { 0, 1, 15 * 1024, 16 * 1024, 17 * 1024, 100000, 1000000 }

-- A value that shows where it was cut or shifted.
local function pattern(size)
  local parts = {}
  for i = 1, math.ceil(size / 8) do parts[i] = ("%07d\n"):format(i) end
  return table.concat(parts):sub(1, size)
end

local function sized_values(conn)
  it("values of 0 bytes to a megabyte come back whole, by every way to read", function()
    local keys, wanted = {}, {}
    for i, size in ipairs(SIZES) do
      keys[i] = new_key("size")
      wanted[keys[i]] = pattern(size)
      assert.is_true(conn():set(keys[i], wanted[keys[i]]))
    end
    for _, key in ipairs(keys) do
      assert.is_true(conn():get(key) == wanted[key])
      assert.is_true(conn():gat(key, 60) == wanted[key])
      assert.is_true(conn():item(key).value == wanted[key])
    end
    local values = conn():get_many(keys)
    for _, key in ipairs(keys) do assert.is_true(values[key] == wanted[key]) end
  end)

  it("{ into = buf } reads behind what the buffer holds", function()
    for _, size in ipairs(SIZES) do
      local key, buf = new_key("into"), buffer.new()
      conn():set(key, pattern(size))
      buf:put("before ")
      assert.truthy((conn():get(key, { into = buf })))
      assert.is_true(buf:tostring() == "before " .. pattern(size))
      assert.is_nil((conn():get(new_key(), { into = buf })))
      assert.equal(#"before " + size, #buf)
    end
  end)

  it("many large values in one pipeline keep their places", function()
    local pipeline, keys = conn():pipeline(), {}
    for i, size in ipairs(SIZES) do
      keys[i] = new_key("piped")
      pipeline:set(keys[i], pattern(size))
    end
    for _, key in ipairs(keys) do pipeline:get(key) end
    local replies = pipeline:run()
    assert.equal(0, replies.failed)
    assert.equal(2 * #SIZES, replies.n)
    for i, size in ipairs(SIZES) do
      assert.is_true(replies[i])
      assert.is_true(replies[#SIZES + i] == pattern(size))
    end
  end)
end

local function all_keys(conn)
  it("keys of every length from 1 to 250 bytes work", function()
    local pipeline = conn():pipeline()
    for size = 1, 250 do
      local key = ("k"):rep(size)
      pipeline:set(key, "v" .. size)
      pipeline:get(key)
    end
    local replies = pipeline:run()
    assert.equal(0, replies.failed)
    for size = 1, 250 do assert.equal("v" .. size, replies[2 * size]) end
  end)

  it("bytes above 127 are fine in a key, each of them", function()
    for byte = 128, 255 do
      local key = "k" .. string.char(byte) .. "k"
      assert.is_true(conn():set(key, tostring(byte)))
      assert.equal(tostring(byte), conn():get(key))
    end
  end)
end

for _, transport in ipairs { "tcp", "unix" } do
  for _, protocol in ipairs { "meta", "ascii", "auto" } do
    describe(("commands over %s on %s"):format(protocol, transport), function()
      local conn, piped
      local function direct() return conn end
      local function in_pipeline() return piped end

      setup(function()
        servers[transport] = memcached.start { unix = transport == "unix" }
        conn = open(transport, "protocol=" .. protocol)
        piped = carriers.piped(conn)
      end)
      teardown(function()
        conn:close()
        memcached.stop_all()
      end)

      local ways = { { "on a connection", direct }, { "in a pipeline", in_pipeline } }
      for _, way in ipairs(ways) do
        describe(way[1], function()
          storing(way[2])
          keeping(way[2])
          counting(way[2])
          asking(way[2])
          refusing(way[2], direct)
        end)
      end
      misusing(direct)
      quiet_ones(direct)
      sized_values(direct)
      all_keys(direct)
    end)
  end
end

for _, protocol in ipairs { "meta", "ascii" } do
  describe("commands with direct_read=false over " .. protocol, function()
    local conn
    setup(function()
      servers.tcp = memcached.start()
      conn = open("tcp", "direct_read=false&protocol=" .. protocol)
    end)
    teardown(function()
      conn:close()
      memcached.stop_all()
    end)

    sized_values(function() return conn end)
  end)
end
