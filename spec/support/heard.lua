-- What a server has of each request, judged by the bytes that it received and by nothing the
-- client says.
--
--   heard.of("mg a v\r\nms b 5\r\nhel")   --> { a = "whole", b = "part" }
--
-- A key that is missing never came.

local wire_frame = require "spec.support.wire_frame"

local M = {}

-- Every word behind the command's may be the key of a classic multi-get.
local function mark(heard, words, how)
  for i = 2, #words do heard[words[i]] = heard[words[i]] or how end
end

function M.of(bytes)
  local frame, heard = wire_frame.new(), {}
  frame:feed(bytes)
  for _, words in ipairs(frame.requests) do mark(heard, words, "whole") end
  if frame.words then
    mark(heard, frame.words, "part")
  else -- a line without its end
    local words = {}
    for word in tostring(frame.pending):gmatch("%S+") do words[#words + 1] = word end
    mark(heard, words, "part")
  end
  return heard
end

return M
