-- Records what a real memcached says, as corpus lines, each under the request it answers:
--
--   for p in meta ascii; do build/moonjay run --memcached spec/fuzz/record.lua $p \
--     > spec/data/corpus/${p}_recorded.txt; done

package.path = "./?.lua;" .. package.path

local notation = require "spec.fuzz.notation"
local posix = require "spec.support.posix"

local LONG = ("v"):rep(300)

-- What is asked, in order, of a server that is empty at first.
local REQUESTS = {
  meta = {
    "mg nothing v",
    "mg nothing v O0000",
    "mg nothing v k O1000",
    "mg nothing",
    "ms a 5 O2000|hello",
    "mg a v O3000",
    "mg a v f c t s h l O4000",
    "mg a v k O5000",
    "mg a O6000",
    "mg a f c t s",
    "mg a T60 t v",
    "ms a 0 T0 F7|",
    "mg a v f O7000",
    "ms crlf 12|\r\nEN\r\nVA 3\r\n",
    "mg crlf v O8000",
    "ms long 300 c|" .. LONG,
    "mg long v O9000",
    "ms a 1 ME Oa000|x",
    "ms none 1 MR|x",
    "ms a 1 C999999 Ob000|x",
    "ms none 1 C1|x",
    "md a Oc000",
    "md a Od000",
    "ma n v",
    "ma n N0 J5 v Oe000",
    "ma n v D7 Of000",
    "ma n MD D100 v",
    "ma n O",
    "ma long v",
    "ms Zm9v 3 b k Og000|bar",
    "mg Zm9v b k v Oh000",
    "mg foo k v Oi000",
    "mg lease v N30 Oj000",
    "mg lease v Ok000",
    "md foo I T30",
    "mg foo v Ol000",
    "mg foo v Om000",
    "me n",
    "me nothing",
    "mn",
    "mg a v q|mg long q v Oq000|mn",
    "ms a 1 q|x|md none q Or000|mn",
    "mg",
    "mg a !",
    "mg a v v",
    "mg long v O0123456789012345678901234567890123456789",
    "bogus",
    "ms a abc|",
    "ms big 2000000|" .. ("x"):rep(2000000),
    "mg long v O1|mg nothing v O2|ms b 1 O3|b|mg b v O4|md b O5|ma n v O6|mn",
  },
  ascii = {
    "get nothing",
    "set a 5 0 5|hello",
    "get a",
    "gets a",
    "get a nothing a",
    "set b 0 0 0|",
    "get a b",
    "set crlf 0 0 14|x\r\nEND\r\nVALUE ",
    "get crlf",
    "set long 4294967295 0 300|" .. LONG,
    "get long",
    "gets a b long",
    "gat 60 a",
    "gats 60 a nothing",
    "add a 0 0 1|x",
    "replace none 0 0 1|x",
    "append a 0 0 1|!",
    "prepend a 0 0 1|!",
    "cas a 0 0 1 999999|x",
    "cas none 0 0 1 1|x",
    "touch a 60",
    "touch nothing 60",
    "set n 0 0 20|18446744073709551614",
    "incr n 1",
    "incr n 1",
    "set n 0 0 2|10",
    "decr n 1",
    "decr nothing 1",
    "incr a 1",
    "incr a x",
    "delete a",
    "delete a",
    "delete b noreply|get b",
    "version",
    "verbosity 1",
    "stats sizes",
    "stats reset",
    "stats bogus",
    "flush_all 100000",
    "get",
    "bogus",
    "shutdown",
    "set a 0 0|",
    "set a 0 0 abc|",
    "set " .. ("k"):rep(251) .. " 0 0 4|get ",
    "set big 0 0 2000000|" .. ("x"):rep(2000000),
    "get long|set c 0 0 1|c|get c nothing|delete c|incr n 1|touch n 0|version",
  },
}

-- A last request, and its reply as a pattern.
local SENTINELS = {
  meta = { "mn\r\n", "MN\r\n" },
  ascii = { "version\r\n", "VERSION [^\r]*\r\n" },
}

local function send(fd, bytes)
  local from = 0
  while from < #bytes do
    posix.poll({ { fd, posix.POLLOUT } }, 5)
    from = from + (posix.send(fd, bytes, from) or 0)
  end
end

-- All that comes up to the reply of a last request, without that.
local function receive(fd, sentinel)
  local out = ""
  repeat
    posix.poll({ { fd, posix.POLLIN } }, 5)
    local piece = assert(posix.recv(fd))
    assert(piece ~= "", "the server left")
    out = out .. piece
  until out:find(sentinel .. "$")
  return (out:gsub(sentinel .. "$", ""))
end

local function ask(request, protocol)
  local fd = assert(posix.connect { unix = assert(os.getenv("MEMCACHE_URL")):match("//(/.*)") })
  local ask_last, sentinel = unpack(SENTINELS[protocol])
  send(fd, request:gsub("|", "\r\n") .. "\r\n" .. ask_last)
  local reply = receive(fd, sentinel)
  posix.close(fd)
  return reply
end

local protocol = arg[1]
for _, request in ipairs(assert(REQUESTS[protocol], "which protocol? meta or ascii")) do
  local name = #request < 100 and request or request:sub(1, 40) .. "..."
  print("# " .. notation.line((name:gsub("|", " | "):gsub(" $", ""))))
  print(notation.line(ask(request, protocol)))
end
