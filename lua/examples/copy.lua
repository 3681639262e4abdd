-- copy.lua: copies items from one server to another, with their flags and the time they have
-- left.
--
--   moonjay lua/examples/copy.lua FROM-URL TO-URL KEYS-FILE
--
-- The file has a key a line; - is standard input.
-- What the target has already is kept, so that a copy may be run again, and while the target is
-- in use. Ends with status 1 if some item could not be copied, 2 if none could be.

local mj = require "moonjay"

local CHUNK = 500 -- items under way at once

local from_url, to_url, list = arg[1], arg[2], arg[3]
if not list then
  io.stderr:write("usage: moonjay copy.lua FROM-URL TO-URL KEYS-FILE\n")
  os.exit(2)
end

-- Ends the script unless there is a value.
local function need(value, why)
  if value then return value end
  io.stderr:write("copy: ", tostring(why), "\n")
  os.exit(2)
end

local file = list == "-" and io.stdin or need(io.open(list))
local from, to = need(mj.connect(from_url)), need(mj.connect(to_url))
need(from:protocol() == "meta", from:server() ..
  " speaks the ascii protocol, which does not tell how long an item has left")

local counts = { copied = 0, kept = 0, missing = 0, failed = 0 }

local function count(how) counts[how] = counts[how] + 1 end

local function fail(err)
  count "failed"
  io.stderr:write("copy: ", tostring(err), "\n")
end

-- All items of a chunk are read in one pipeline, and added in another. check raises when a
-- pipeline could not run; what failed in it stands in its replies' errors.
local function copy(keys)
  local read, write = from:pipeline(), to:pipeline()
  for _, key in ipairs(keys) do read:item(key) end
  local items = mj.check(read:run())
  for i, key in ipairs(keys) do
    local item = items[i]
    if item then
      write:add(key, item.value, { ttl = item.ttl, flags = item.flags })
    elseif items.errors[i] then
      fail(items.errors[i])
    else
      count "missing"
    end
  end
  local stored = mj.check(write:run())
  for i = 1, stored.n do
    if stored.errors[i] then
      fail(stored.errors[i])
    else
      count(stored[i] and "copied" or "kept")
    end
  end
end

local chunk = {}
for key in file:lines() do
  if key ~= "" then chunk[#chunk + 1] = key end
  if #chunk == CHUNK then
    copy(chunk)
    chunk = {}
  end
end
copy(chunk)

print(("%d copied, %d kept, %d missing, %d failed"):format(
  counts.copied, counts.kept, counts.missing, counts.failed))
if counts.failed > 0 then os.exit(1) end
