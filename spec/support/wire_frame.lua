-- What a client sent on one connection, cut into requests: command line, and data block where
-- the command carries one. Says nothing about whether a request makes sense.
--
--   local frame = wire_frame.new()
--   frame:feed(bytes)
--   frame.requests[1]   --> { words = { "set", "a", "0", "0", "1" }, meta = false }

local buffer = require "string.buffer"
local ffi = require "ffi"

pcall(ffi.cdef, "void *memchr(const void *, int, size_t);")

local M = {}
M.__index = M

local STORES = { set = true, add = true, replace = true, append = true, prepend = true,
                 cas = true }
local METAS = { mg = true, ms = true, md = true, ma = true, me = true, mn = true }
local BLANKS = "[^ \t\r\n\v\f]+"

M.STORES = STORES

-- requests: the whole ones. lines: how many command lines came, one more than requests while a
-- data block is missing. size: bytes in all. first_is_meta: of the first request, once it came.
function M.new()
  return setmetatable({
    requests = {}, lines = 0, size = 0, chunks = {},
    pending = buffer.new(), words = nil, need = 0,
  }, M)
end

local function block_size(words)
  local at = words[1] == "ms" and 3 or STORES[words[1]] and 5
  local size = at and words[at] and words[at]:match("^[+-]?%d+$") and tonumber(words[at])
  return size and size >= 0 and size + 2 or 0
end

-- Takes the next command line from what is pending. False: it is not whole.
local function take_line(self)
  local start, size = self.pending:ref()
  local stop = ffi.C.memchr(start, 10, size)
  if stop == nil then return false end
  local line = self.pending:get(ffi.cast("const char *", stop) - start + 1)
  local words = {}
  for word in line:gmatch(BLANKS) do words[#words + 1] = word end
  self.words, self.need = words, block_size(words)
  self.lines = #self.requests + 1
  return true
end

function M:feed(bytes)
  self.chunks[#self.chunks + 1] = bytes
  self.size = self.size + #bytes
  self.pending:put(bytes)
  while self.words or take_line(self) do
    if #self.pending < self.need then return end
    self.pending:skip(self.need)
    self.requests[#self.requests + 1] = self.words
    self.words = nil
  end
end

-- True when the first request is a meta command.
function M:meta_first()
  local first = self.requests[1]
  return first ~= nil and METAS[first[1]] == true
end

-- Every byte that came.
function M:bytes()
  return table.concat(self.chunks)
end

return M
