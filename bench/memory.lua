-- bench/memory.lua: what this process holds, counted in three ways.
--
--   local before = memory.now()
--   ...
--   memory.grown(before, 1000).blocks    --> bytes for each of 1000
--
-- blocks: bytes that malloc has lent, its own headers with them. Everything is in it, for Lua
-- gets its memory from malloc too. lua: the part of it that the Lua state holds. resident: what
-- the process has of the machine's memory (RSS); it grows by pages, and late. What the kernel
-- holds for a socket or a watched descriptor is in none of them.

local ffi = require "ffi"
local mj = require "moonjay"

ffi.cdef [[
  struct bench_mallinfo {
    size_t arena, free_chunks, fast_chunks, mmapped_chunks, mmapped_bytes, unused;
    size_t fast_bytes, used_bytes, free_bytes, keep_cost;
  };
  struct bench_mallinfo mallinfo2(void);
  int getpagesize(void);
]]

local M = {}

local PAGE = ffi.C.getpagesize()

-- Bytes of this process in memory.
function M.resident()
  local file = assert(io.open "/proc/self/statm")
  local pages = file:read("*a"):match "^%d+ (%d+)"
  file:close()
  return pages * PAGE
end

-- Bytes that malloc has lent.
function M.blocks()
  local info = ffi.C.mallinfo2()
  return tonumber(info.used_bytes) + tonumber(info.mmapped_bytes)
end

local function read()
  return { blocks = M.blocks(), lua = mj.counters().memory, resident = M.resident() }
end

-- After a collection.
function M.now()
  collectgarbage()
  collectgarbage()
  return read()
end

-- What has grown for each of `count`, as it is; and `collected`, the blocks after a collection,
-- in which LuaJIT also takes from a stack what it does not use.
function M.grown(before, count)
  local now = read()
  now.collected = M.now().blocks
  before.collected = before.blocks
  for name, bytes in pairs(now) do now[name] = (bytes - before[name]) / count end
  return now
end

return M
