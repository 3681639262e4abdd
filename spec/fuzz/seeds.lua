-- Writes a target's seeds for libFuzzer, a file each: the corpus, and what the cases have.
--
--   build/moonjay spec/fuzz/seeds.lua meta build/fuzz/seeds/meta

package.path = "./?.lua;" .. package.path

local base64 = require "spec.support.base64"
local cases = require "spec.support.cases"
local lfs = require "lfs"
local notation = require "spec.fuzz.notation"
local wire_reply = require "spec.support.wire_reply"

local CORPUS = "spec/data/corpus"

local target, folder = arg[1], arg[2]
local count = 0

local function write(bytes)
  count = count + 1
  local file = assert(io.open(("%s/%03d"):format(folder, count), "wb"))
  file:write(bytes)
  file:close()
end

local function from_corpus()
  for name in lfs.dir(CORPUS) do
    if name:match("^(%a+)[_.]") == target and name:find("%.txt$") then
      for line in io.lines(CORPUS .. "/" .. name) do
        if line ~= "" and not line:find("^#") then write(notation.bytes(line)) end
      end
    end
  end
end

-- All that the server of a case says, in order, where its script gives the bytes.
local function classic(case)
  local out = {}
  for _, step in ipairs(case.server_chunks or {}) do
    out[#out + 1] = step.bytes_b64 and base64.decode(step.bytes_b64)
  end
  return table.concat(out)
end

-- The same over meta, to a request with every flag.
local function meta(case)
  local out = {}
  for i, step in ipairs(case.server_chunks_meta or {}) do
    local words = { "mg", "key", "v", "k", "f", "c", "t", "O" .. i }
    out[#out + 1] = step.meta and wire_reply.meta(step.meta, words)
      or step.bytes_b64 and base64.decode(step.bytes_b64)
  end
  return table.concat(out)
end

local FROM_CASES = {
  ascii = { "wire", classic },
  meta = { "wire", meta },
  url = { "url", function(case) return type(case.url) == "string" and case.url or "" end },
}

local function from_cases()
  local kind, bytes_of = unpack(FROM_CASES[target] or {})
  if not kind then return end
  for _, case in ipairs(cases.of_kind(kind)) do
    local bytes = bytes_of(case)
    if bytes ~= "" and #bytes <= 4096 then write(bytes) end
  end
end

from_corpus()
from_cases()
