-- warm.lua: fills a cache from a list of keys, a few at a time.
--
--   moonjay lua/examples/warm.lua KEYS-FILE [WORKERS]      a key a line; 8 workers
--   moonjay run --memcached lua/examples/warm.lua          a list of its own, to look at
--
-- What is in the cache already is kept, and lives on for another TTL. Put your own source in
-- place of `load_value`. Ends with status 1 if some key could not be warmed.

local mj = require "moonjay"

local TTL = 3600

-- The source that a miss would ask: slow, so that a cold cache hurts.
local function load_value(key)
  mj.sleep(0.005)
  return "the page of " .. key
end

local workers = tonumber(arg[2] or 8)
if not (workers and workers >= 1) then
  io.stderr:write("usage: moonjay warm.lua [KEYS-FILE [WORKERS]]; at least 1 worker\n")
  os.exit(2)
end

local function read_keys(name)
  local keys = {}
  if name == nil then
    for i = 1, 200 do keys[i] = "page:" .. i end
    return keys
  end
  local file, why = io.open(name)
  if not file then
    io.stderr:write("warm: ", why, "\n")
    os.exit(2)
  end
  for line in file:lines() do
    if line ~= "" then keys[#keys + 1] = line end
  end
  file:close()
  return keys
end

local keys = read_keys(arg[1])
local conn = mj.check(mj.connect(os.getenv "MEMCACHE_URL" or "memcache://127.0.0.1:11211"))
local next_key, warmed, kept, failed = 1, 0, 0, 0

-- nil and an error, or "warmed" or "kept".
local function warm(key)
  local there, err = conn:touch(key, TTL)
  if there then return "kept" end
  if err then return nil, err end
  -- add, not set: what somebody stored meanwhile is newer.
  local stored
  stored, err = conn:add(key, load_value(key), { ttl = TTL })
  if err then return nil, err end
  return stored and "warmed" or "kept"
end

-- As many of these run as there are workers, so the source sees no more requests than that.
local function work()
  while next_key <= #keys do
    local key = keys[next_key]
    next_key = next_key + 1
    local how, err = warm(key)
    if how == "warmed" then
      warmed = warmed + 1
    elseif how == "kept" then
      kept = kept + 1
    else
      failed = failed + 1
      io.stderr:write("warm: ", tostring(err), "\n")
    end
  end
end

local start, tasks = mj.now(), {}
for i = 1, workers do tasks[i] = mj.spawn(work) end
mj.check(mj.all(tasks))

print(("%d keys: %d warmed, %d kept, %d failed; %d workers, %.2f s"):format(
  #keys, warmed, kept, failed, workers, mj.now() - start))
if failed > 0 then os.exit(1) end
