-- src/url.c and its rooms, seen through mj.parse_url.

local cjson = require "cjson"

local cases = require "spec.support.cases"
local mj = require "moonjay"

-- The one server of a URL that is accepted.
local function server(url)
  local list, err = mj.parse_url(url)
  assert(list, err and err.message)
  assert.equal(1, #list)
  return list[1]
end

-- The message of a URL that is refused; it holds each of the words.
local function refused(url, ...)
  local list, err = mj.parse_url(url)
  assert.is_nil(list, "it was accepted")
  assert.equal("bad_url", err.kind)
  for _, word in ipairs { ... } do
    assert(err.message:find(word, 1, true), ("no %q in: %s"):format(word, err.message))
  end
  return err.message
end

-- ---- the cases ------------------------------------------------------------------------------

local FIELDS = { username = "user" }

local function options_differ(options, expected)
  for name, value in pairs(expected) do
    local got = options[name]
    if name:find("_ms$") then
      got = math.floor(options[name:gsub("_ms$", "")] * 1e6 + 0.5) / 1000
    end
    if got ~= value then return ("option %s is %s"):format(name, tostring(got)) end
  end
end

local function server_differs(got, expected)
  for name, value in pairs(expected) do
    local field = got[FIELDS[name] or name]
    if field == nil then field = cjson.null end
    if name == "options" then
      local what = options_differ(got.options, value)
      if what then return what end
    elseif field ~= value then
      return ("%s is %s"):format(name, tostring(field))
    end
  end
end

-- What differs from one expectation; nil if nothing does.
local function differs(list, err, expected)
  if expected.error_kind then
    if list then return "it was accepted" end
    return err.kind ~= expected.error_kind and "the kind is " .. err.kind or nil
  end
  if not list then return "it was refused: " .. err.message end
  local servers = expected.servers or { expected }
  if #list ~= #servers then return ("there are %d servers"):format(#list) end
  for i, wanted in ipairs(servers) do
    local what = server_differs(list[i], wanted)
    if what then return ("server %d: %s"):format(i, what) end
  end
end

describe("url cases", function()
  for _, case in ipairs(cases.of_kind "url") do
    it(case.id .. " " .. case.title, function()
      local list, err = mj.parse_url(case.urls or case.url)
      local reasons = {}
      for _, expected in ipairs(case.expect.any or { case.expect }) do
        local what = differs(list, err, expected)
        if not what then return end
        reasons[#reasons + 1] = what
      end
      error(table.concat(reasons, "; or: "), 0)
    end)
  end
end)

-- ---- the whole ------------------------------------------------------------------------------

describe("a URL", function()
  it("fills in every default", function()
    assert.same({
      tcp_nodelay = true, direct_read = true, protocol = "auto", timeout = 1,
      stall_timeout = 3, connect_timeout = 1, connections = 1, max_inflight = 65536,
      max_value = 64 * 1024 * 1024, verify = true, binary_keys = false, tcp_keepalive = 60,
      send_buffer = false, receive_buffer = false, weight = 1, verify_mode = "peer",
    }, server("memcache://h").options)
  end)

  it("reads every option", function()
    local url = "memcache+tls://h?tcp_nodelay=false&direct_read=false&protocol=meta&timeout=2m"
      .. "&stall_timeout=7s&connect_timeout=90us&connections=4&max_inflight=9&max_value=3k"
      .. "&verify=false&binary_keys=true&tcp_keepalive=1.5s&send_buffer=2m&receive_buffer=1g"
      .. "&weight=1000&verify_mode=none&ca_path=/a%20b&cert_path=c=d&key_path=k&server_name=x.y"
    assert.same({
      tcp_nodelay = false, direct_read = false, protocol = "meta", timeout = 120,
      stall_timeout = 7, connect_timeout = 90e-6, connections = 4, max_inflight = 9,
      max_value = 3072, verify = false, binary_keys = true, tcp_keepalive = 1.5,
      send_buffer = 2 * 1024 * 1024, receive_buffer = 1024 * 1024 * 1024, weight = 1000,
      verify_mode = "none", ca_path = "/a b", cert_path = "c=d", key_path = "k",
      server_name = "x.y",
    }, server(url).options)
  end)

  it("is an endpoint with these fields and no others", function()
    local endpoint = server("memcache://bob:pw@h:1")
    assert.is_table(endpoint.options)
    endpoint.options = nil
    assert.same({ transport = "tcp", host = "h", port = 1, tls = false, user = "bob",
                  password = "pw" }, endpoint)
    endpoint = server("memcache+unix:///tmp/m.sock")
    endpoint.options = nil
    assert.same({ transport = "unix", path = "/tmp/m.sock", tls = false }, endpoint)
    assert.equal("udp", server("memcache+udp://h").transport)
    assert.is_true(server("Memcache+TLS://h").tls)
  end)

  it("refuses NUL, line breaks, blanks and control bytes wherever they stand", function()
    local parts = { "%smemcache://h", "memcache%s://h", "memcache://bo%sb:pw@h",
      "memcache://bob:p%sw@h", "memcache://h%s", "memcache://h:1%s", "memcache://[::%s1]",
      "memcache:///tmp/%sx", "memcache://h?time%sout=1s", "memcache://h?timeout=1s%s",
      "memcache+tls://h?ca_path=/a%s", "memcache://h/%s", "memcache://[fe80::1%%25e%s]" }
    for _, part in ipairs(parts) do
      for _, byte in ipairs { "\0", "\r", "\n", " ", "\t", "\127" } do
        refused(part:format("\1"):gsub("\1", (byte:gsub("%%", "%%%%"))), "at byte")
      end
    end
  end)

  it("refuses encoded NUL and line breaks in every part that is decoded", function()
    for _, code in ipairs { "%00", "%0d", "%0A" } do
      for _, url in ipairs { "memcache://bo@b:pw@h", "memcache://bob:p@w@h",
        "memcache:///tmp/@x", "memcache://h?time@out=1s", "memcache://h?timeout=1s@",
        "memcache+tls://h?ca_path=/a@", "memcache://[fe80::1%25e@]" } do
        refused((url:gsub("@", (code:gsub("%%", "%%%%")), 1)), code == "%00" and "NUL"
          or "line break")
      end
    end
  end)

  it("refuses a broken percent code in every part that is decoded", function()
    for _, code in ipairs { "%", "%2", "%zz", "%2g", "%%20", "%-1" } do
      for _, url in ipairs { "memcache://bob&:pw@h", "memcache://bob:p&@h", "memcache:///tmp/&",
        "memcache://h?timeout&=1s", "memcache://h?timeout=1s&", "memcache://[fe80::1%25e&]" } do
        refused((url:gsub("&", (code:gsub("%%", "%%%%")))), "two hex digits")
      end
    end
  end)

  it("refuses what it cannot end with", function()
    refused("memcache://h#", "fragment", "%23")
    refused("memcache://h?timeout=1s#timeout=2s", '"#timeout=2s"')
    refused("memcache:///tmp/a#b", '"#b"')
    refused("memcache://h/a", '"/a"')
    refused("memcache://h//", '"//"')
    refused("memcache://a/,b", '"/,b"')
  end)

  it("refuses more than 65536 bytes", function()
    local path = "memcache+tls://h?ca_path=/"
    assert.equal(65536 - #path + 1, #server(path .. ("a"):rep(65536 - #path)).options.ca_path)
    refused(path .. ("a"):rep(65537 - #path), "65537", "65536")
  end)

  it("names the schemes there are and the one that was meant", function()
    refused("memcached://h", '"memcached"', "did you mean memcache?")
    refused("memcache+tsl://h", "did you mean memcache+tls?")
    refused("memcache+tls+unix://h", "memcache+udp")
    refused("memcache:/h", "begins with memcache://")
    refused("memcache", "begins with memcache://")
    refused("://h", "memcache+unix")
    refused("//h", "begins with memcache://")
  end)
end)

-- ---- hosts ----------------------------------------------------------------------------------

describe("a host", function()
  it("keeps the name as it was written", function()
    for _, host in ipairs { "h", "Cache.Example", "my_cache", "a-b.c", "cache.example.", "1a",
      "cache.1", "127.0.0.1", "255.255.255.255", ("a"):rep(63) } do
      assert.equal(host, server("memcache://" .. host).host)
    end
  end)

  it("is an IPv4 address in its plain spelling where it is made of numbers", function()
    for _, host in ipairs { "256.1.1.1", "127.1", "1", "1.2.3", "1.2.3.4.5", "127.0.0.01",
      "0x7f.0.0.1", "0x7f000001", "127.0.0.1." } do
      refused("memcache://" .. host, '"' .. host .. '"', "IPv4")
    end
  end)

  it("is refused with bytes or lengths that no name has", function()
    for _, host in ipairs { "a..b", ".a", ".", "a%20b", "a%2eb", "h\195\169", "a*b", "a;b",
      "a=b", "a|b", "a\\b", "<h>", "h'", 'h"', ("a"):rep(64), ("a."):rep(127) .. "a" } do
      refused("memcache://" .. host, "the host")
    end
  end)

  it("is an IPv6 address between brackets", function()
    assert.equal("::ffff:1.2.3.4", server("memcache://[::ffff:1.2.3.4]").host)
    assert.equal(7, server("memcache://[::]:7").port)
    assert.equal("FE80::1%en-0.1", server("memcache://[FE80::1%25en%2D0.1]").host)
  end)

  it("is refused between brackets when it is anything else", function()
    for _, host in ipairs { "", "::g", "1:2:3", "::1::", "12345::", "127.0.0.1", "h", "v1.x",
      "::1%", "::1%25", "fe80::1%eth0", "::1%2", "fe80::1%25a%20b",
      "fe80::1%25" .. ("e"):rep(16), "fe80::1%25a/b", "1:2:3:4:5:6:7:8:9" } do
      refused("memcache://[" .. host .. "]")
    end
    refused("memcache://[[::1]]")
    refused("memcache://[::1]11211", '"11211"', ":port")
    refused("memcache://[::1]x:1", '"x:1"')
    refused("memcache://::1]", "brackets")
    refused("memcache://fe80::1", "brackets")
  end)

  it("is missed where it is missing", function()
    for _, url in ipairs { "memcache://", "memcache://:1", "memcache://a,", "memcache://,a",
      "memcache://a,,b", "memcache://?timeout=1s", "memcache://bob:pw@", "memcache://bob:pw@:1",
      "memcache+tls:///tmp/m.sock", "memcache+udp:///tmp/m.sock", "memcache+tls://" } do
      refused(url, "a host is missing")
    end
  end)
end)

describe("a port", function()
  it("is a number from 1 to 65535", function()
    for _, port in ipairs { "112211", "65536", "0", "-1", "+1", "1.0", "0x1", "1e3", "%31", "a",
      "18446744073709551617", ("9"):rep(400) } do
      refused("memcache://h:" .. port, "the port", "65535")
    end
    refused("memcache://h:112211", '"112211"')
    assert.equal(1, server("memcache://h:00001").port)
    assert.equal(11211, server("memcache://[::1]:").port)
  end)
end)

-- ---- login ----------------------------------------------------------------------------------

describe("a login", function()
  it("is decoded, and may hold what the token can carry", function()
    local endpoint = server("memcache://b%3Ab:p%20%2F%3f:%23,@h")
    assert.equal("b:b", endpoint.user)
    assert.equal("p /?:#,", endpoint.password)
    endpoint = server("memcache://\195\169:%ff@h")
    assert.equal("\195\169", endpoint.user)
    assert.equal("\255", endpoint.password)
  end)

  it("has both of its halves", function()
    for _, login in ipairs { "", ":", "bob", "bob:", ":pw" } do
      refused("memcache://" .. login .. "@h", "user:password@")
    end
  end)

  it("is refused with a blank in the user", function()
    refused("memcache://b%20b:pw@h", "blank")
  end)

  it("serves every host of a list, and is given once", function()
    local list = mj.parse_url("memcache://bob:pw@a,b")
    assert.equal("bob", list[1].user)
    assert.equal("pw", list[2].password)
    refused("memcache://bob:pw@a,bob:pw@b", "more than one @")
  end)

  it("is for unix sockets whose scheme says so, and not for UDP", function()
    local endpoint = server("memcache+unix://bob:pw@/tmp/m.sock")
    assert.equal("unix", endpoint.transport)
    assert.equal("pw", endpoint.password)
    refused("memcache://bob:pw@/tmp/m.sock", "memcache+unix://user:password@/path")
    refused("memcache+udp://bob:pw@h", "UDP")
  end)

  it("never shows its password in a message, whatever is wrong", function()
    local urls = { "memcache://bob:LEFT%sRIGHT@h:1", "memcache://bob:LEFT%sRIGHT@h:99999",
      "memcache://bob:LEFT%sRIGHT@h/x", "memcache://bob:LEFT%sRIGHT@h?tcl_nodelay=true",
      "memcache://bob:LEFT%sRIGHT@", "memcache+udp://bob:LEFT%sRIGHT@h",
      "bob:LEFT%sRIGHT@h", "redis://bob:LEFT%sRIGHT@h", "memcache:bob:LEFT%sRIGHT@h",
      "memcache+unix://bob:LEFT%sRIGHT@h", "memcache+tls://bob:LEFT%sRIGHT@/p",
      "bob:LEFT%sRIGHT@h/x://y", "memcache://b/ob:LEFT%sRIGHT@h" }
    for byte = 0, 255 do
      for _, url in ipairs(urls) do
        local text = url:gsub("%%s", (string.char(byte):gsub("%%", "%%%%")))
        local _, err = mj.parse_url(text)
        if err then
          assert.is_nil(err.message:find("LEFT") or err.message:find("RIGHT"), err.message)
        end
      end
    end
  end)
end)

-- ---- unix sockets ---------------------------------------------------------------------------

describe("the path of a unix socket", function()
  it("is at most 107 bytes once it is decoded", function()
    assert.equal(107, #server("memcache:///" .. ("%61"):rep(106)).path)
    refused("memcache:///" .. ("a"):rep(107), "108 bytes", "107")
  end)

  it("names a file", function()
    for _, path in ipairs { "/", "//", "/tmp/", "/tmp%2f" } do
      refused("memcache://" .. path, '"' .. path .. '"', "unix socket")
    end
    refused("memcache+unix://", "unix socket")
  end)

  it("is taken as it is otherwise", function()
    for path, decoded in pairs { ["//a"] = "//a", ["/a,b:1@c"] = "/a,b:1@c", ["/%ff"] = "/\255",
      ["/\195\169"] = "/\195\169", ["/%09"] = "/\t", ["/a+b"] = "/a+b" } do
      assert.equal(decoded, server("memcache://" .. path).path)
    end
  end)

  it("stands alone: no host, no TLS", function()
    refused("memcache+unix://tmp/m.sock", '"tmp"', "memcache+unix:///path")
    refused("memcache+unix://h", '"h"')
  end)
end)

-- ---- options --------------------------------------------------------------------------------

describe("an option", function()
  it("is known by its name, and a misspelt one is told which was meant", function()
    for wrong, meant in pairs { tcl_nodelay = "tcp_nodelay", tcp_nodley = "tcp_nodelay",
      TCP_NODELAY = "tcp_nodelay", ["tcp-nodelay"] = "tcp_nodelay", nodelay = "tcp_nodelay",
      tiemout = "timeout", timeout_ms = "timeout", conect_timeout = "connect_timeout",
      wieght = "weight", protocoll = "protocol", inflight = "max_inflight",
      ca_pth = "ca_path", ["timeout%20"] = "timeout" } do
      refused("memcache://h?" .. wrong .. "=1", '"' .. wrong .. '"', "did you mean " .. meant)
    end
  end)

  it("that is like none is answered with those there are", function()
    local message = refused("memcache://h?pool=1", '"pool"', "tcp_nodelay", "weight")
    assert.is_nil(message:find("did you mean", 1, true))
    assert.is_nil(message:find("ca_path", 1, true))
    refused("memcache://h?" .. ("z"):rep(3000) .. "=1", '..."', "there are")
    refused("memcache://h?path=1", "there are")
  end)

  it("is a name and a value", function()
    for _, query in ipairs { "", "&", "timeout=1s&", "&timeout=1s", "timeout=1s&&weight=2" } do
      refused("memcache://h?" .. query, "name=value")
    end
    refused("memcache://h?=1", '""')
    refused("memcache://h?timeout", '"timeout"', "lacks its value")
    refused("memcache://h?timeout=1s&verify", '"verify"', "true or false")
    refused("memcache://h??timeout=1s", '"?timeout"')
    refused("memcache:///tmp/m.sock?", "name=value")
  end)

  it("is given once, however it is spelt", function()
    refused("memcache://h?timeout=1s&weight=2&timeout=1s", "timeout", "twice")
    refused("memcache://h?timeout=1s&%74imeout=1s", "timeout", "twice")
  end)

  it("has a value that is not empty", function()
    for _, name in ipairs { "tcp_nodelay", "protocol", "timeout", "connections", "max_value",
      "tcp_keepalive", "send_buffer", "weight", "verify_mode", "ca_path", "server_name" } do
      refused("memcache+tls://h?" .. name .. "=", name .. '=""')
    end
  end)

  it("is one of its words", function()
    for _, value in ipairs { "1", "0", "yes", "on", "TRUE", "True", "true%20", "tru",
      "truee" } do
      refused("memcache://h?verify=" .. value, '"' .. value .. '"', "true or false")
    end
    refused("memcache://h?protocol=asci", "auto, meta, ascii or binary", "did you mean ascii?")
    refused("memcache://h?protocol=text", "auto, meta, ascii or binary")
    refused("memcache+tls://h?verify_mode=no", "peer or none")
    for _, word in ipairs { "auto", "meta", "ascii", "binary" } do
      assert.equal(word, server("memcache://h?protocol=" .. word).options.protocol)
    end
  end)

  it("keeps a + and decodes the rest", function()
    assert.equal("/a+b &=?", server("memcache+tls://h?ca_path=/a+b%20%26=?").options.ca_path)
  end)

  it("applies to every host of a list", function()
    local list = mj.parse_url("memcache+tls://a,b:2,[::1]/?weight=7&ca_path=/x")
    assert.equal(3, #list)
    for i, host in ipairs { "a", "b", "::1" } do
      assert.equal(host, list[i].host)
      assert.equal(7, list[i].options.weight)
      assert.equal("/x", list[i].options.ca_path)
      assert.is_true(list[i].tls)
    end
    assert.are_not.equal(list[1].options, list[2].options)
  end)

  it("of TLS is refused on a URL without", function()
    for _, option in ipairs { "ca_path=/x", "cert_path=/x", "key_path=/x", "server_name=x",
      "verify_mode=peer", "verify_mode=none" } do
      for _, url in ipairs { "memcache://h", "memcache:///tmp/m.sock", "memcache+udp://h" } do
        refused(url .. "?" .. option, option:match("^[^=]+"), "memcache+tls://")
      end
      server("memcache+tls://h?" .. option)
    end
    refused("memcache+tls://h?server_name=a%20b", "server_name", "the name of a host")
  end)

  it("without effect on a transport is accepted", function()
    for _, url in ipairs { "memcache:///tmp/m.sock", "memcache+udp://h" } do
      assert.is_false(server(url .. "?tcp_nodelay=false&tcp_keepalive=5s").options.tcp_nodelay)
    end
  end)
end)

describe("a duration", function()
  it("is a number and its unit, or seconds", function()
    for text, seconds in pairs { ["1us"] = 1e-6, ["250ms"] = 0.25, ["1.5s"] = 1.5, ["2m"] = 120,
      ["0.5m"] = 30, ["10"] = 10, ["0.25"] = 0.25, ["007s"] = 7, ["1.000000001s"] = 1.000000001,
      ["0.0015ms"] = 1.5e-6, ["31536000"] = 31536000, ["525600m"] = 31536000,
      ["1.50000000000000000000000000s"] = 1.5 } do
      assert.near(seconds, server("memcache://h?timeout=" .. text).options.timeout, 1e-12)
    end
  end)

  it("is refused when it is anything else", function()
    for _, text in ipairs { "0", "-0", "0s", "0.0", "-1s", "+1s", "nan", "inf", "infinity",
      "1e3", "1e3s", "0x10", "1%20s", "%201s", "1s%20", "1h", "1d", "1S", "1MS", "1sec", "s",
      "ms", ".", ".5s", "5.", "5.s", "1.2.3s", "1..2s", "1,5s", "1s1s", "--1", "0.9us",
      "0.0000001", "31536001", "31536000.1", "525601m", "99999999999999999999",
      "18446744073709551617ns", "18446744073.709551617s", ("9"):rep(300) .. "m", "true",
      "false", "1\194\181s" } do
      for _, name in ipairs { "timeout", "stall_timeout", "connect_timeout" } do
        refused("memcache://h?" .. name .. "=" .. text, name .. "=", "us, ms, s or m")
      end
    end
  end)

  it("of stall_timeout is 3 x timeout unless it is given", function()
    assert.equal(6, server("memcache://h?timeout=2s").options.stall_timeout)
    assert.equal(1, server("memcache://h?stall_timeout=1s&timeout=2s").options.stall_timeout)
  end)

  it("of tcp_keepalive may be false, and is what the kernel takes", function()
    assert.is_false(server("memcache://h?tcp_keepalive=false").options.tcp_keepalive)
    assert.equal(32767, server("memcache://h?tcp_keepalive=32767").options.tcp_keepalive)
    for _, text in ipairs { "true", "0", "999ms", "32768", "False", "off" } do
      refused("memcache://h?tcp_keepalive=" .. text, '"' .. text .. '"', "false, or")
    end
  end)
end)

describe("a size", function()
  it("is a whole number of bytes, perhaps with k, m or g", function()
    for text, bytes in pairs { ["1"] = 1, ["64m"] = 2 ^ 26, ["1g"] = 2 ^ 30, ["5k"] = 5120,
      ["1073741824"] = 2 ^ 30 } do
      assert.equal(bytes, server("memcache://h?max_value=" .. text).options.max_value)
      assert.equal(bytes, server("memcache://h?send_buffer=" .. text).options.send_buffer)
    end
  end)

  it("is refused when it is anything else", function()
    for _, text in ipairs { "0", "0k", "-1", "+1", "1.5k", "1.0", "1e3", "k", "1K", "1M", "1kb",
      "1b", "1t", "1%20k", "0x10", "2g", "1073741825", "1025m", "18446744073709551616",
      "18014398509481984k", "false", "nan" } do
      for _, name in ipairs { "max_value", "send_buffer", "receive_buffer" } do
        refused("memcache://h?" .. name .. "=" .. text, name .. "=", "k, m, g")
      end
    end
  end)
end)

describe("a count", function()
  it("is a whole number within its range", function()
    for name, max in pairs { connections = 65535, max_inflight = 16777216, weight = 1000 } do
      assert.equal(1, server("memcache://h?" .. name .. "=1").options[name])
      assert.equal(max, server("memcache://h?" .. name .. "=" .. max).options[name])
      for _, text in ipairs { "0", "-1", "+1", "1.5", "1k", "1e2", "abc", tostring(max + 1),
        "4294967297", "18446744073709551617" } do
        refused("memcache://h?" .. name .. "=" .. text, name .. "=", "from 1 to " .. max)
      end
    end
  end)
end)

-- ---- lists ----------------------------------------------------------------------------------

describe("a list of servers", function()
  it("holds each server once, however it is spelt", function()
    for url, name in pairs { ["a,a"] = "memcache://a:11211",
      ["a,b,a:11211"] = "memcache://a:11211", ["Cache,cACHE"] = "memcache://Cache:11211",
      ["a:,a"] = "memcache://a:11211", ["[::1],[0:0:0:0:0:0:0:1]"] = "memcache://[::1]:11211",
      ["[fe80::A%25e],[fe80::a%25e]"] = "memcache://[fe80::A%25e]:11211",
      ["127.0.0.1:1,127.0.0.1:01"] = "memcache://127.0.0.1:1" } do
      refused("memcache://" .. url, name, "twice")
    end
  end)

  it("tells ports, zones and names apart", function()
    assert.equal(5, #mj.parse_url("memcache://a,a:1,a.:1,b,aa"))
    assert.equal(3, #mj.parse_url("memcache://[fe80::1%25a],[fe80::1%25b],[fe80::1]"))
  end)

  it("may be made of several URLs, each with its own options", function()
    local list = mj.parse_url { "memcache://a,b?weight=2", "memcache:///tmp/m.sock" }
    assert.equal(3, #list)
    assert.equal(2, list[2].options.weight)
    assert.equal(1, list[3].options.weight)
    assert.equal("/tmp/m.sock", list[3].path)
  end)

  it("of several URLs says which one is wrong", function()
    refused({ "memcache://a", "memcache://b:0" }, "URL 2: ", '"0"')
    refused({ "memcache://a,b", "memcache+tls://B" }, "URL 2: ", "memcache://b:11211", "twice")
    refused({ "memcache:///tmp/x", "memcache+unix:///tmp/%78" }, "memcache:///tmp/x", "twice")
    refused({}, "no URL")
  end)

  it("has at most 1024 servers", function()
    local hosts = {}
    for i = 1, 1024 do hosts[i] = "h" .. i end
    assert.equal(1024, #mj.parse_url("memcache://" .. table.concat(hosts, ",")))
    refused("memcache://" .. table.concat(hosts, ",") .. ",x", "1024")
    refused({ "memcache://" .. table.concat(hosts, ","), "memcache://x" }, "1024")
  end)
end)

-- ---- misuse and noise -----------------------------------------------------------------------

describe("parse_url", function()
  it("throws at what is neither a string nor a list of strings", function()
    local function throws(word, ...)
      local ok, err = pcall(mj.parse_url, ...)
      assert.is_false(ok)
      err = tostring(err)
      assert(err:find("parse_url", 1, true) and err:find(word, 1, true), err)
    end
    throws("nil", nil)
    throws("number", 11211)
    throws("boolean", true)
    throws("function", print)
    throws("URL 2 of the list", { "memcache://a", 5 })
    throws("one argument")
    throws("one argument", "memcache://a", "memcache://b")
  end)

  it("answers any noise with a list or a bad_url, in one printable line", function()
    local seeds, tokens = {}, { "://", ":", "@", "/", "?", "#", "&", "=", "%", "%25", "%00",
      "[", "]", "::1", ",", "0", "-1", "65536", "timeout=1s", "tcp_nodelay", "\0", "\n",
      "\255", "+tls" }
    for _, case in ipairs(cases.of_kind "url") do
      for _, url in ipairs(case.urls or { case.url }) do seeds[#seeds + 1] = url end
    end
    local state = 42 -- a generator of our own: the same noise in every run
    local function random(n)
      state = (state * 16807) % 2147483647
      return state % n + 1
    end
    for _ = 1, 20000 do
      local url = seeds[random(#seeds)]
      for _ = 1, random(4) do
        local at = random(#url + 1)
        url = url:sub(1, at - 1) .. tokens[random(#tokens)] .. url:sub(at + random(3) - 1)
      end
      local list, err = mj.parse_url(url)
      if list then
        assert(#list >= 1)
      else
        assert.equal("bad_url", err.kind)
        assert(err.message:find("^[\32-\126]+$"), err.message)
      end
    end
  end)
end)
