-- Errors as values.

local errors = require "moonjay.errors"
local mj = require "moonjay"

describe("an error", function()
  it("reads as one line with kind, sent and phase", function()
    local err = errors.new {
      kind = "timeout",
      message = 'get "k" on memcache://h:1: no reply within 250 ms',
      sent = "maybe",
      phase = "read",
    }
    local line = 'timeout: get "k" on memcache://h:1: no reply within 250 ms '
      .. "(sent: maybe, phase: read)"
    assert.equal(line, tostring(err))
    assert.equal("saw " .. line .. "!", "saw " .. err .. "!")
  end)

  it("says nothing of sent and phase where nothing was sent", function()
    assert.equal("bad_key: too long",
      tostring(errors.new { kind = "bad_key", message = "too long" }))
    assert.equal("closed: gone (sent: yes)",
      tostring(errors.new { kind = "closed", message = "gone", sent = "yes" }))
    assert.equal("just words", tostring(errors.new { message = "just words" }))
  end)

  it("comes from the runtime with its fields", function()
    local _, err = mj.deadline(0.001, mj.sleep, 1000)
    assert.equal("timeout", err.kind)
    assert.equal("sleep", err.op)
    assert.equal("sleep: the deadline of 0.001 s passed", err.message)
    assert.equal("no", err.sent)
    assert.equal(1, err.attempts)
    assert.is_nil(err.phase)
    assert.is_nil(err.key)
    assert.is_nil(err.server)
  end)

  it("of a bad URL names the part", function()
    local list, err = mj.parse_url("memcache://h:112211")
    assert.is_nil(list)
    assert.is_true(errors.is(err, "bad_url"))
    assert.matches("112211", err.message)
    assert.matches("^bad_url: ", tostring(err))
  end)
end)

describe("errors.is", function()
  it("knows errors and their kinds, and takes anything", function()
    local err = errors.new { kind = "closed", message = "gone" }
    assert.is_true(errors.is(err))
    assert.is_true(errors.is(err, "closed"))
    assert.is_false(errors.is(err, "reset"))
    for _, other in ipairs { 1, "closed", {}, { kind = "closed" }, print, true } do
      assert.is_false(errors.is(other, "closed"))
    end
    assert.is_false(errors.is(nil))
  end)

  it("knows errors after the library was loaded again", function()
    local err = errors.new { kind = "closed", message = "gone" }
    package.loaded["moonjay.errors"] = nil
    local again = require "moonjay.errors"
    assert.is_false(again == errors)
    assert.is_true(again.is(err, "closed"))
  end)
end)

describe("errors.kinds", function()
  it("lists every kind once", function()
    local seen = {}
    for _, kind in ipairs(errors.kinds) do
      assert.is_nil(seen[kind])
      seen[kind] = true
    end
    for kind in ([[bad_url bad_key bad_value too_large unsupported resolve connect_refused
        connect_timeout unreachable tls auth timeout closed reset protocol client_error
        server_error down no_server cancelled]]):gmatch("%S+") do
      assert.is_true(seen[kind], kind)
    end
  end)
end)

describe("errors.new", function()
  it("throws on an unknown field or a missing message", function()
    assert.matches("message", select(2, pcall(errors.new, { kind = "closed" })))
    local _, message = pcall(errors.new, { kid = "closed", message = "x" })
    assert.matches('"kid"', message, 1, true)
    assert.has_error(function() errors.new() end)
  end)

  local function retryable(kind, sent, op)
    return errors.new { kind = kind, sent = sent, op = op, message = "x" }.retryable
  end

  it("lets a command be retried that may be repeated", function()
    for op in ([[get gat item set touch delete get_many set_many delete_many noop version
        stats]]):gmatch("%S+") do
      assert.is_true(retryable("timeout", "maybe", op), op)
    end
    for op in ([[incr decr append prepend add replace cas flush_all meta
        nonsense]]):gmatch("%S+") do
      assert.is_false(retryable("timeout", "maybe", op), op)
      assert.is_false(retryable("closed", "yes", op), op)
    end
  end)

  it("lets any command be retried that was not sent", function()
    for kind in ([[resolve connect_refused connect_timeout unreachable timeout closed
        reset]]):gmatch("%S+") do
      assert.is_true(retryable(kind, "no", "incr"), kind)
      assert.is_true(retryable(kind), kind)
    end
  end)

  it("never lets a retry hide what is no passing trouble", function()
    for kind in ([[bad_url bad_key bad_value too_large unsupported tls auth protocol
        client_error down no_server cancelled]]):gmatch("%S+") do
      assert.is_false(retryable(kind, "no", "get"), kind)
    end
  end)

  it("keeps what it is told", function()
    local cause = errors.new { kind = "closed", message = "gone" }
    local err = errors.new {
      kind = "down", message = "x", retryable = true, attempts = 3, cause = cause, key = "a\0b",
    }
    assert.is_true(err.retryable)
    assert.equal(3, err.attempts)
    assert.equal(cause, err.cause)
    assert.equal("a\0b", err.key)
  end)
end)
