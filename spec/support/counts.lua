-- spec.support.counts: busted's output, for people and for CI. A line for each file with a dot
-- for each spec; then every failure with its traceback and every skipped spec with its reason;
-- the last line is "N passed, N failed[, N skipped]".
--
--   busted --output spec.support.counts spec

local M = { passed = 0, failed = 0, skipped = 0 }

local MARKS = { success = ".", failure = "F", error = "E", pending = "s" }

local function text_of(message)
  if type(message) == "string" then return message end
  local meta = getmetatable(message)
  if type(message) ~= "table" or (meta and meta.__tostring) then return tostring(message) end
  return require("pl.pretty").write(message)
end

local function print_failure(item)
  local message = text_of(item.message):gsub("\n", "\n  ")
  io.write("\nFAILED ", item.name or "?", "\n  ", message, "\n")
  local trace = item.trace and item.trace.traceback
  if trace then io.write("  ", (trace:gsub("^\n", ""):gsub("\n", "\n  ")), "\n") end
end

local function print_skipped(item)
  local reason = type(item.message) == "string" and ": " .. item.message or ""
  io.write("skipped ", item.name or "?", reason, "\n")
end

local function print_totals(handler)
  M.passed = handler.successesCount
  M.failed = handler.failuresCount + handler.errorsCount
  M.skipped = handler.pendingsCount
  for _, item in ipairs(handler.failures) do print_failure(item) end
  for _, item in ipairs(handler.errors) do print_failure(item) end
  io.write("\n")
  for _, item in ipairs(handler.pendings) do print_skipped(item) end
  local skipped = M.skipped > 0 and (", %d skipped"):format(M.skipped) or ""
  io.write(("%d passed, %d failed%s\n"):format(M.passed, M.failed, skipped))
  io.flush()
end

local function new_handler()
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()

  busted.subscribe({ "file", "start" }, function(file)
    io.write(file.name, " ")
    io.flush()
    return nil, true
  end)
  busted.subscribe({ "test", "end" }, function(_, _, status)
    io.write(MARKS[status] or "?")
    io.flush()
    return nil, true
  end)
  busted.subscribe({ "file", "end" }, function(file)
    io.write((" %.2f s\n"):format(file.duration or 0))
    return nil, true
  end)
  busted.subscribe({ "suite", "end" }, function()
    print_totals(handler)
    return nil, true
  end)
  return handler
end

return setmetatable(M, { __call = new_handler })
