-- The table `T` that the "script" cases use, made of the public API. It runs in a moonjay of
-- its own: moonjay spec/support/script_table.lua SCRIPT URL BLACKHOLE_URL

local mj = require "moonjay"

local T = { url = arg[2], url_blackhole = arg[3] }

local counted, failed = 0, 0

-- { timeout_ms = n } bounds the connect and every request.
function T.connect(url, opts)
  if opts and opts.timeout_ms then
    url = ("%s%stimeout=%dms&connect_timeout=%dms"):format(
      url, url:find("?", 1, true) and "&" or "?", opts.timeout_ms, opts.timeout_ms)
  end
  return mj.connect(url)
end

function T.close(c) return c:close() end

-- The value alone, a lone nil, or nil and the error.
function T.get(c, key)
  local value, err = c:get(key)
  if err ~= nil then return value, err end
  return value
end

function T.set(c, key, value, opts) return c:set(key, value, opts) end
function T.incr(c, key, delta) return c:incr(key, delta) end
function T.get_multi(c, keys) return c:get_many(keys) end

function T.gets(c, key)
  local item, err = c:item(key)
  if not item then return nil, err end
  return item.value, item.cas
end

-- "stored", "exists", "not_found", or nil and the error.
function T.cas(c, key, value, token)
  local stored, why = c:cas(key, value, token)
  if stored then return "stored" end
  if stored == nil then return nil, why end
  return why == "exists" and "exists" or "not_found"
end

function T.spawn(fn, ...) return mj.spawn(fn, ...) end
function T.sleep(ms) return mj.sleep(ms / 1000) end

-- Counters above 2^53 are strings of digits already.
function T.tostr(x)
  if type(x) == "number" then return ("%.0f"):format(x) end
  return tostring(x)
end

function T.count(fine)
  if fine then counted = counted + 1 else failed = failed + 1 end
end

function T.counted() return counted end
function T.failed() return failed end

function T.say(...)
  local words = {}
  for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
  io.stdout:write(table.concat(words, "\t"), "\n")
  io.stdout:flush()
end

local chunk = assert(loadfile(arg[1]))
setfenv(chunk, setmetatable({ T = T }, { __index = _G }))
chunk()
