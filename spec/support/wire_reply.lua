-- Replies that a scripted server makes from the request it answers.

local base64 = require "spec.support.base64"
local wire_frame = require "spec.support.wire_frame"

local M = {}

local function set_of(list, from)
  local out = {}
  for i = from, #list do out[list[i]:sub(1, 1)] = true end
  return out
end

local function text_of(value)
  return type(value) == "number" and ("%.0f"):format(value) or tostring(value)
end

-- What a missing letter of the script's own answers with.
local DEFAULTS = { f = "f0", h = "h0", l = "l0", t = "t-1", c = "c1" }
local ERRORS = { EN = true, NF = true, NS = true }

-- One token of the reply for one flag of the request, or nil.
local function token(flag, rc, known, key, value)
  local name = flag:sub(1, 1)
  if name == "k" then return "k" .. key end
  if name == "O" then return flag end
  if ERRORS[rc] and known[name] == nil then return nil end
  if name == "s" and (rc == "VA" or rc == "HD") then return "s" .. #value end
  if known[name] ~= nil then return name .. text_of(known[name]) end
  return DEFAULTS[name]
end

-- A meta reply by plan { rc, value_b64, flags, extra } or { raw_b64 }, reflecting the request's
-- own flags. "" where the request is quiet and this code is not said then.
function M.meta(plan, words)
  if plan.raw_b64 then return base64.decode(plan.raw_b64) end
  local command, key = words[1], words[2] or ""
  local first_flag = command == "ms" and 4 or 3
  local letters = set_of(words, first_flag)
  local value = plan.value_b64 and base64.decode(plan.value_b64) or ""
  local rc = plan.rc
  if rc == "VA" and not letters.v then rc = "HD" end
  if letters.q and (rc == "EN" or rc == "HD" and command ~= "mg") then return "" end
  local out = { rc }
  if rc == "VA" then out[2] = tostring(#value) end
  local known = plan.flags or {}
  for i = first_flag, #words do
    out[#out + 1] = token(words[i], rc, known, key, value)
  end
  if letters.k and letters.b then out[#out + 1] = "b" end
  for _, extra in ipairs(plan.extra or {}) do out[#out + 1] = extra end
  return table.concat(out, " ") .. "\r\n" .. (rc == "VA" and value .. "\r\n" or "")
end

local GETS = { get = 2, gets = 2, gat = 3, gats = 3 }

-- Values decoded once: a script may serve the same one thousands of times.
local decoded = setmetatable({}, { __mode = "k" })

local function value_of(item)
  if not decoded[item] then decoded[item] = base64.decode(item.value_b64) end
  return decoded[item]
end

local function classic_get(words, store)
  local with_cas = words[1] == "gets" or words[1] == "gats"
  local out = {}
  for i = GETS[words[1]], #words do
    local item = store[words[i]]
    if item then
      local value = value_of(item)
      local cas = with_cas and " " .. text_of(item.cas or 1) or ""
      out[#out + 1] = ("VALUE %s %s %d%s\r\n"):format(
        words[i], text_of(item.flags or 0), #value, cas)
      out[#out + 1] = value
      out[#out + 1] = "\r\n"
    end
  end
  out[#out + 1] = "END\r\n"
  return table.concat(out)
end

local function meta_get(words, store)
  local raw = words[2] or ""
  if set_of(words, 3).b then raw = base64.decode(raw) end
  local item = store[raw]
  if not item then return M.meta({ rc = "EN" }, words) end
  return M.meta({ rc = "VA", value_b64 = item.value_b64,
                  flags = { f = item.flags or 0, c = item.cas or 1 } }, words)
end

-- The answer of a small store { [key] = { value_b64, flags, cas } } that keeps nothing.
function M.serve(words, store)
  local command = words[1] or ""
  if GETS[command] then return classic_get(words, store) end
  if command == "mg" then return meta_get(words, store) end
  if command == "mn" then return "MN\r\n" end
  if command == "ms" or command == "md" then return M.meta({ rc = "HD" }, words) end
  if command == "version" then return "VERSION 1.6.18\r\n" end
  if command == "delete" or wire_frame.STORES[command] then
    if words[#words] == "noreply" then return "" end
    return command == "delete" and "DELETED\r\n" or "STORED\r\n"
  end
  return "ERROR\r\n"
end

return M
