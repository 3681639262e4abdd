-- The ways to carry a command, with one face: a connection itself, or a pipeline of one request
-- made anew for each call.
--
--   for _, carrier in ipairs(carriers.of(conn)) do carrier.face:get("key") end

local M = {}

local Piped = {}

function Piped.__index(self, name)
  return function(_, ...)
    local pipeline = self.conn:pipeline()
    pipeline[name](pipeline, ...)
    local replies = pipeline:run()
    assert(replies.n == 1, "one request, one reply")
    if replies.errors[1] ~= nil then return replies[1], replies.errors[1] end
    return replies[1], replies.more[1]
  end
end

-- A face whose every call is a pipeline of one request.
function M.piped(conn)
  return setmetatable({ conn = conn }, Piped)
end

return M
