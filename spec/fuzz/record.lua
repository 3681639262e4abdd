-- Records what a real memcached says, as corpus lines, each under the request it answers:
--
--   for p in meta ascii conn; do build/moonjay run --memcached spec/fuzz/record.lua $p \
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

local function record(protocol)
  for _, request in ipairs(REQUESTS[protocol]) do
    local name = #request < 100 and request or request:sub(1, 40) .. "..."
    print("# " .. notation.line((name:gsub("|", " | "):gsub(" $", ""))))
    print(notation.line(ask(request, protocol)))
  end
end

-- The letters of conn.c: what each asks, over meta (with a token) and over ascii.
local LETTERS = {
  g = { "mg KEY v OTOK", "get KEY" },
  i = { "mg KEY v f c t s h l OTOK", "gets KEY" },
  h = { "mg KEY v T60 OTOK", "gat 60 KEY" },
  t = { "mg KEY T60 OTOK", "touch KEY 60" },
  s = { "ms KEY 5 OTOK|value", "set KEY 0 0 5|value" },
  S = { "ms KEY 5 q OTOK|value", "set KEY 0 0 5 noreply|value" },
  a = { "ms KEY 5 ME OTOK|value", "add KEY 0 0 5|value" },
  A = { "ms KEY 5 ME q OTOK|value", "add KEY 0 0 5 noreply|value" },
  c = { "ms KEY 5 C5 OTOK|value", "cas KEY 0 0 5 5|value" },
  d = { "md KEY OTOK", "delete KEY" },
  D = { "md KEY q OTOK", "delete KEY noreply" },
  n = { "ma KEY D5 v OTOK", "incr KEY 5" },
  m = { "get KEY KEY-b KEY-c", "get KEY KEY-b KEY-c" },
  o = { "mn", "version" },
  v = { "version", "version" },
  f = { "flush_all", "flush_all" },
}

-- The client's tokens, in the order in which it gives them: "0000", "1000", ...
local function token(count)
  return ("0123456789abcdefghijklmnopqrstuvwxyz"):sub(count, count) .. "000"
end

-- Before each conversation every other key is stored anew.
local function store(count)
  local requests = {}
  for i = 0, count, 2 do
    requests[#requests + 1] = ("set k%d 5 0 2|%d|set k%d-c 5 0 1|c"):format(i, i + 10, i)
  end
  ask(table.concat(requests, "|"), "ascii")
end

local function converse(letters, protocol)
  local requests, tokens = {}, 0
  store(#letters)
  for i = 1, #letters do
    local request = LETTERS[letters:sub(i, i)][protocol == "meta" and 1 or 2]
    if request:find("TOK") then tokens = tokens + 1 end
    requests[i] = request:gsub("KEY", "k" .. i - 1):gsub("TOK", token(tokens))
  end
  local replies = ask(table.concat(requests, "|"), protocol)
  print(notation.line((protocol == "meta" and "@" or "A") .. letters .. "\n" .. replies))
end

local function record_conversations()
  for _, letters in ipairs { "gg", "ihtg", "sacd", "SADog", "nnndd", "mgmov", "gsAdSnDcAimf",
                             "ggggggggggggggggggggggggggg" } do
    print("# asked: " .. letters)
    converse(letters, "meta")
    converse(letters, "ascii")
  end
end

if arg[1] == "conn" then
  record_conversations()
else
  record(assert(REQUESTS[arg[1]] and arg[1], "what? meta, ascii or conn"))
end
