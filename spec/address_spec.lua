-- The addresses of a name: each gets its share of connect_timeout.

local memcached = require "spec.support.memcached"
local posix = require "spec.support.posix"
local process = require "spec.support.process"
local program = require "spec.support.program"
local wait = require "spec.support.wait"

-- Listens at host:port and takes nobody: its queue is full. Returns what ends it.
local function dead_end(host, port)
  local listener = assert(posix.listen { host = host, port = port, backlog = 0 })
  local held = { listener }
  for _ = 1, 4 do held[#held + 1] = posix.connect { host = host, port = port } end
  return function()
    for _, fd in ipairs(held) do posix.close(fd) end
  end
end

local function answers(where)
  local fd = posix.connect(where)
  if not fd then return false end
  local ready = posix.poll({ { fd, posix.POLLOUT } }, 1)[fd]
  local fine = ready and posix.getsockopt(fd, posix.SOL_SOCKET, 4) == 0 -- SO_ERROR
  posix.close(fd)
  return fine
end

-- Runs a script with an /etc/hosts of these lines: what it printed, its status, its errors; or
-- nil where this machine has no mount namespaces for us.
local function with_hosts(lines, script, ...)
  local hosts = program.folder() .. "/hosts"
  program.write(hosts, lines)
  local words = {
    "unshare", "-m", "sh", "-c",
    "mount --make-rprivate / && mount --bind $1 /etc/hosts && shift && exec \"$@\"", "sh",
    hosts, program.path, program.script(script), errors = true,
  }
  for _, word in ipairs { ... } do words[#words + 1] = word end
  local text, status, errors = process.start(words):finish(60)
  if errors:find("unshare:", 1, true) then return nil, errors end
  return text, status, errors
end

describe("a name with several addresses", function()
  it("is reached though the first does not answer", function()
    if not posix.is_root() then return pending("needs root, for a private /etc/hosts") end
    local close
    finally(function()
      if close then close() end
      memcached.stop_all()
      process.stop_all()
      program.clean()
    end)
    local port = memcached.free_port()
    close = dead_end("127.0.0.1", port) -- which getaddrinfo names first
    process.start {
      "memcached", "-u", "root", "-l", "127.0.0.5", "-p", tostring(port), "-U", "0",
    }
    wait.until_true(10, "memcached to answer", function()
      return answers { host = "127.0.0.5", port = port }
    end)
    local text, status, errors = with_hosts("127.0.0.1 many\n127.0.0.5 many\n", [[
      local mj = require "moonjay"
      local conn = assert(mj.connect(arg[1]))
      print(conn:noop())
    ]], ("memcache://many:%d?connect_timeout=4s"):format(port))
    if not text then return pending("needs mount namespaces: " .. status) end
    assert.equal("true\n", text, errors)
    assert.equal(0, status)
  end)

  it("none of which answers is given up when connect_timeout is over", function()
    if not posix.is_root() then return pending("needs root, for a private /etc/hosts") end
    local closes = {}
    finally(function()
      for _, close in ipairs(closes) do close() end
      process.stop_all()
      program.clean()
    end)
    local port = memcached.free_port()
    for i, host in ipairs { "127.0.0.1", "127.0.0.5" } do closes[i] = dead_end(host, port) end
    local text, status, errors = with_hosts("127.0.0.1 many\n127.0.0.5 many\n", [[
      local mj = require "moonjay"
      local started = mj.now()
      local _, err = mj.connect(arg[1])
      local took = mj.now() - started
      print(err.kind, err.sent, took >= 0.4 and took < 10)
    ]], ("memcache://many:%d?connect_timeout=400ms"):format(port))
    if not text then return pending("needs mount namespaces: " .. status) end
    assert.equal("connect_timeout\tno\ttrue\n", text, errors)
    assert.equal(0, status)
  end)
end)
