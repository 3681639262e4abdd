-- README.md: its code runs, and its tables say what the library says, so that it cannot lie.
--
-- A block of Lua without `require "moonjay"` goes on from the first script: it has `mj` and
-- `conn`. A comment `--> text` behind a print tells what is printed.

local memcached = require "spec.support.memcached"
local program = require "spec.support.program"
local mj = require "moonjay"

local PRELUDE = [[
local mj = require "moonjay"
local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL"))
]]

local function read(name)
  local file = assert(io.open(name))
  local text = file:read("*a")
  file:close()
  return text
end

local readme = read "README.md"

-- ---- parts of it ----

-- The fenced blocks of a language.
local function blocks(language)
  local list = {}
  for text in readme:gmatch("\n```" .. language .. "\n(.-\n)```\n") do
    list[#list + 1] = text
  end
  return list
end

-- The rows of the table whose header begins with this cell: lists of cells.
local function table_rows(header)
  local pattern = "\n| " .. header .. " |[^\n]*\n|[ -|]+\n(|.-|\n)\n"
  local lines = assert(readme:match(pattern), header)
  local rows = {}
  for line in lines:gmatch("|(.-)|\n") do
    local row = {}
    for cell in (line .. "|"):gmatch("%s*(.-)%s*|") do row[#row + 1] = cell end
    rows[#rows + 1] = row
  end
  return rows
end

local function words_in(cell)
  local list = {}
  for word in cell:gmatch("`([^`]+)`") do list[#list + 1] = word end
  return list
end

local function sorted(list)
  table.sort(list)
  return list
end

local function keys_of(map)
  local list = {}
  for key in pairs(map) do list[#list + 1] = key end
  return sorted(list)
end

local function all_words(rows)
  local list = {}
  for _, row in ipairs(rows) do
    for _, word in ipairs(words_in(row[1])) do list[#list + 1] = word end
  end
  return sorted(list)
end

local function first_words(rows)
  local list = {}
  for i, row in ipairs(rows) do list[i] = words_in(row[1])[1] end
  return sorted(list)
end

-- ---- code ----

-- What the comments of a block promise, with one blank for each run of them.
local function promised(block)
  local list = {}
  for line in block:gmatch("[^\n]+") do
    local text = line:find("print(", 1, true) and line:match("%-%->%s*(.-)%s*$")
    if text then list[#list + 1] = text end
  end
  return list
end

local function lines_of(text)
  local list = {}
  for line in text:gmatch("[^\n]+") do list[#list + 1] = (line:gsub("%s+", " ")) end
  return list
end

describe("README.md", function()
  teardown(memcached.stop_all)
  after_each(program.clean)

  for number, block in ipairs(blocks "lua") do
    it(("has a script no. %d that prints what it promises"):format(number), function()
      local whole = block:find('require "moonjay"', 1, true)
      local name = program.script(whole and block or PRELUDE .. block)
      local result = program.run("$MOONJAY run --memcached " .. name)
      assert.equal("", result.err)
      assert.equal(0, result.status)
      assert.same(promised(block), lines_of(result.out))
      assert.is_true(#promised(block) > 0, "it promises nothing")
    end)
  end

  it("has all its blocks in the languages that are run", function()
    local _, fences = readme:gsub("\n```", "")
    assert.equal(2 * (#blocks "lua" + #blocks "c"), fences)
    assert.is_true(#blocks "lua" >= 6)
  end)

  -- Builds the host by a command of README.md, in which `where` says where things are here.
  local function build_host(command, where)
    local folder = program.folder()
    local build = program.path:match("^(.*)/[^/]+$")
    local sanitized = read(program.path):find("__asan_init", 1, true)
    program.write(folder .. "/host.c", assert(blocks("c")[1]))
    command = assert(command):gsub("^cc", "${CC:-gcc} -Wall -Wextra -Werror " .. where ..
      (sanitized and " -fsanitize=address,undefined" or ""))
      :gsub(" host.c", " " .. folder .. "/host.c"):gsub(" build", " " .. build)
      :gsub("%-o host", "-o " .. folder .. "/host")
    -- From here: the command names src/, and the shell of program.run is elsewhere.
    local log = folder .. "/log"
    assert.equal(0, os.execute(("{ %s; } >%s 2>&1"):format(command, log)), read(log))
    return folder .. "/host"
  end

  local function assert_host_runs(host)
    local server = memcached.start { unix = true }
    local result = program.run(("MEMCACHE_URL=%s %s"):format(server.url, host))
    assert.same({ "well: hello\n", "", 0 }, { result.out, result.err, result.status })
    result = program.run(("MEMCACHE_URL=memcache://127.0.0.1:%d %s"):format(
      memcached.free_port(), host))
    assert.equal("failed: connect_refused: ", result.out:sub(1, 25), result.err)
    assert.equal(1, result.status)
  end

  it("has a host in C that builds by its command, and runs", function()
    assert_host_runs(build_host(readme:match("\n    (cc %-Isrc host.c [^\n]+)\n"), ""))
  end)

  it("has a command that builds it with the installed library", function()
    assert_host_runs(build_host(readme:match("\n    (cc host.c %-lmoonjay [^\n]+)\n"),
      "-Isrc -L build"))
  end)

  -- ---- tables ----

  local function parse(options)
    return mj.parse_url("memcache+tls://a?" .. options)
  end

  it("lists every option of a URL", function()
    local all = mj.check(parse("ca_path=a&cert_path=a&key_path=a&server_name=a"))[1].options
    assert.same(keys_of(all), first_words(table_rows "option"))
  end)

  it("tells each option's default", function()
    local defaults = mj.check(mj.parse_url("memcache+tls://a"))[1].options
    for _, row in ipairs(table_rows "option") do
      local name, default = words_in(row[1])[1], row[3]
      if default == "the system's" then
        assert.is_false(defaults[name], name)
      elseif default == "3 x `timeout`" then
        assert.equal(3 * defaults.timeout, defaults[name])
        assert.equal(6, mj.check(parse("timeout=2s"))[1].options[name])
      elseif default == "" then
        assert.is_nil(defaults[name], name)
      else
        local given = mj.check(parse(name .. "=" .. words_in(default)[1]))[1].options[name]
        assert.equal(given, defaults[name], name)
      end
    end
  end)

  it("names values of each option that are accepted, and no more than are", function()
    for _, row in ipairs(table_rows "option") do
      local name = words_in(row[1])[1]
      for _, value in ipairs(words_in(row[2])) do
        assert.is_truthy(parse(name .. "=" .. value))
      end
      local last, unit = row[2]:match("to `(%d+)(%a*)`$")
      if last then
        assert.is_nil((parse(("%s=%d%s"):format(name, tonumber(last) + 1, unit))), name)
        assert.is_nil((parse(name .. "=0")), name)
      end
    end
  end)

  it("lists every kind of error", function()
    local kinds = { unpack(mj.errors.kinds) }
    assert.same(sorted(kinds), first_words(table_rows "kind"))
  end)

  it("lists the commands, and every method of a connection", function()
    local server = memcached.start { unix = true }
    local conn = mj.check(mj.connect(server.url))
    local methods = debug.getmetatable(conn).__index
    for _, row in ipairs(table_rows "call") do
      for name in row[1]:gmatch("`([%a_]+)%(") do assert.is_function(methods[name], name) end
    end
    for name in pairs(methods) do
      assert.truthy(readme:find("`" .. name .. "(", 1, true), name)
    end
    conn:close()
  end)

  it("lists what stands in the library", function()
    for name, value in pairs(mj) do
      local shown = type(value) ~= "function" or readme:find("mj." .. name, 1, true)
      assert.truthy(shown, name)
    end
    for name in pairs(mj.errors) do
      assert.truthy(readme:find("`mj.errors." .. name, 1, true), name)
    end
  end)

  it("lists all counters", function()
    local server = memcached.start { unix = true }
    local conn = mj.check(mj.connect(server.url))
    assert.same(keys_of(conn:counters()), all_words(table_rows "conn:counters%(%)"))
    assert.same(keys_of(mj.counters()), all_words(table_rows "mj.counters%(%)"))
    conn:close()
  end)

  it("tells the shape of what parse_url returns", function()
    local text = assert(readme:match("a list with a table for each: (.-)\n\n"))
    local shown = {}
    for _, word in ipairs(words_in(text)) do shown[word] = true end
    for _, server in ipairs(mj.check(mj.parse_url {
      "memcache://user:password@a,b", "memcache:///path", "memcache+udp://c" })) do
      for name in pairs(server) do assert.is_true(shown[name], name) end
      assert.is_true(shown['"' .. server.transport .. '"'], server.transport)
    end
  end)

  it("tells what is not built in", function()
    for _, url in ipairs { "+tls://a", "+udp://a", "://a?protocol=binary" } do
      local _, err = mj.connect("memcache" .. url)
      assert.equal("unsupported", err.kind)
    end
  end)

  it("names files that are there", function()
    for name in readme:gmatch("`([%w_/]+%.%a+)`") do
      if name:find("/", 1, true) then assert.truthy(io.open(name), name) end
    end
  end)

  it("tells the options of the command line", function()
    local help = program.run("$MOONJAY --help").out
    assert.truthy(help:find("moonjay [run] [--memcached] SCRIPT [ARG...]", 1, true))
    assert.truthy(readme:find("    moonjay [run] [--memcached] SCRIPT [ARG...]\n", 1, true))
    for option in help:gmatch("%-%-[%a-]+") do
      assert.truthy(readme:find("`" .. option, 1, true), option)
    end
  end)
end)
