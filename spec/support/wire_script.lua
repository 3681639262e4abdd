-- One connection of a scripted server: reads and frames what the client sends, plays the steps
-- of a wire case. The steps are those that the case files use:
--
--   after_request: true|N   wait for N more whole requests (data block included)
--   after_line: true        wait for one more command line
--   after_bytes: N          wait until N bytes in all have come
--   delay_ms, hold_read_ms  sleep; with or without reading what the client sends
--   bytes_b64, fill         send these bytes; { byte, len }: that many equal bytes
--   meta, metas             answer the last request, or the last #metas, as meta replies
--   each, cut, gap_ms       in pieces of n bytes, or split at these offsets
--   take                    only the first n bytes (negative: all but n)
--   serve                   { store, requests, ms }: answer from a small store
--   close: "fin"|"rst"|"half"
--
-- A step may hold several; they are done in this order.

local base64 = require "spec.support.base64"
local loop = require "spec.support.loop"
local posix = require "spec.support.posix"
local wire_frame = require "spec.support.wire_frame"
local wire_reply = require "spec.support.wire_reply"

local M = {}
M.__index = M

-- Thrown to end a script early; their text becomes the connection's note.
local GONE, LATE = { "client closed before the script's end" }, { "out of time" }

-- options: fd, number, script { chunks }, script_meta (or nil), deadline, linger, and hurry(),
-- which tells whether the client is done, so that there is no more to wait for.
function M.new(options)
  options.frame = wire_frame.new()
  options.used, options.step, options.eof, options.note = 0, 0, false, ""
  return setmetatable(options, M)
end

-- ------------------------------------------------------------------- reading

local function left(self)
  local rest = self.deadline - posix.now()
  if rest <= 0 then error(LATE, 0) end
  return rest
end

-- Reads once, waiting at most `seconds`.
local function read_some(self, seconds)
  if self.eof then
    loop.sleep(math.min(seconds, 0.01))
    return
  end
  if not loop.readable(self.fd, math.min(seconds, left(self))) then return end
  local data, _, code = posix.recv(self.fd)
  if not data then
    if code == posix.EAGAIN or code == posix.EINTR then return end
    data, self.note = "", "client reset"
  end
  if data == "" then
    self.eof = true
    return
  end
  self.frame:feed(data)
  if self.script_meta and self.frame:meta_first() then
    self.script, self.script_meta = self.script_meta, nil
  elseif #self.frame.requests > 0 then
    self.script_meta = nil
  end
end

local function wait_for(self, done)
  while not done() do
    if self.eof then error(GONE, 0) end
    left(self)
    read_some(self, 0.25)
  end
end

-- Sleeps; with `reading` it takes what comes. Ends early when the client is done.
local function pause(self, seconds, reading)
  local stop = posix.now() + seconds
  while true do
    local rest = stop - posix.now()
    if rest <= 0 or self.hurry() and (self.eof or not reading) then return end
    left(self)
    if reading then
      read_some(self, math.min(rest, 0.05))
    else
      loop.sleep(math.min(rest, 0.05))
    end
  end
end

-- ------------------------------------------------------------------- writing

local function send(self, data)
  local from = 0
  while from < #data do
    local count, _, code = posix.send(self.fd, data, from)
    if count then
      from = from + count
    elseif code == posix.EAGAIN or code == posix.EINTR then
      if self.hurry() then error(GONE, 0) end
      loop.writable(self.fd, math.min(0.25, left(self)))
    else
      self.note = "client gone while sending"
      error(GONE, 0)
    end
  end
end

local function marks_of(step, size)
  local marks = {}
  if step.each then
    local each = math.max(1, step.each)
    for at = each, size - 1, each do marks[#marks + 1] = at end
  else
    for _, at in ipairs(step.cut or {}) do
      if at < 0 then at = size + at end
      if at > 0 and at < size then marks[#marks + 1] = at end
    end
    table.sort(marks)
  end
  marks[#marks + 1] = size
  return marks
end

local function send_pieces(self, data, step)
  if step.take then
    data = step.take >= 0 and data:sub(1, step.take) or data:sub(1, step.take - 1)
  end
  local from = 0
  for _, mark in ipairs(marks_of(step, #data)) do
    if mark > from or #data == 0 then
      if from > 0 then pause(self, (step.gap_ms or 3) / 1000, true) end
      send(self, data:sub(from + 1, mark))
      from = mark
    end
  end
end

-- The reply by plan to the request `back` places before the last that was used (1: the last).
local function meta_reply(self, plan, back)
  return wire_reply.meta(plan, self.frame.requests[self.used - back + 1] or {})
end

local function serve(self, plan)
  local store, limit, idle = plan.store or {}, plan.requests, (plan.ms or 1500) / 1000
  local quiet_until, count = posix.now() + idle, 0
  while (not limit or count < limit) and posix.now() < quiet_until do
    if #self.frame.requests > self.used then
      self.used, count = self.used + 1, count + 1
      send(self, wire_reply.serve(self.frame.requests[self.used], store))
      quiet_until = posix.now() + idle
    elseif self.eof then
      break
    else
      read_some(self, 0.05)
    end
  end
  if limit and count < limit then error(GONE, 0) end
end

local function close(self, how)
  if how == "half" then
    posix.shutdown_write(self.fd)
    return
  end
  if how == "rst" then posix.linger_zero(self.fd) end
  posix.close(self.fd)
  self.fd, self.eof, self.closed = -1, true, true
end

-- ---------------------------------------------------------------- the script

local function as_count(value)
  if value == true then return 1 end
  return tonumber(value) or 0
end

-- Waits for what the next step waits for; the first request may still switch the list of steps.
local function next_step(self)
  while true do
    local step = self.script.chunks[self.step + 1]
    if not step then return nil end
    local count = as_count(step.after_request)
    wait_for(self, function() return #self.frame.requests >= self.used + count end)
    if step == self.script.chunks[self.step + 1] then
      self.used = self.used + count
      return step
    end
  end
end

local function send_metas(self, step)
  local parts = {}
  for i, plan in ipairs(step.metas) do
    parts[i] = meta_reply(self, plan, #step.metas - i + 1)
  end
  send_pieces(self, table.concat(parts), step)
end

local function play_step(self, step)
  if step.after_line then
    local count = self.used + 1
    wait_for(self, function() return self.frame.lines >= count end)
  end
  if step.after_bytes then
    wait_for(self, function() return self.frame.size >= step.after_bytes end)
  end
  if step.delay_ms then pause(self, step.delay_ms / 1000, true) end
  if step.hold_read_ms then pause(self, step.hold_read_ms / 1000, false) end
  if step.bytes_b64 then send_pieces(self, base64.decode(step.bytes_b64), step) end
  if step.fill then send(self, string.char(step.fill.byte):rep(step.fill.len)) end
  if step.meta then send_pieces(self, meta_reply(self, step.meta, 1), step) end
  if step.metas then send_metas(self, step) end
  if step.serve then serve(self, step.serve) end
  if step.close then close(self, step.close) end
end

local function play(self)
  local step = next_step(self)
  while step do
    play_step(self, step)
    self.step = self.step + 1
    step = next_step(self)
  end
  -- The script is over: read on a little, so that the report has what came late.
  local stop = posix.now() + self.linger
  while not self.eof and posix.now() < stop and not self.hurry() do
    read_some(self, math.min(0.05, stop - posix.now()))
  end
end

-- Reads what has already come, without waiting: the client is done and its last bytes count.
local function drain(self)
  while not self.eof and self.fd >= 0 do
    local data = posix.recv(self.fd)
    if not data or data == "" then break end
    self.frame:feed(data)
  end
end

-- Plays the whole script; never throws for what a client did.
function M:play()
  local fine, reason = pcall(play, self)
  if not fine then
    if type(reason) ~= "table" then error(reason, 0) end
    if self.note == "" then self.note = reason[1] end
  end
  drain(self)
  if self.fd >= 0 then posix.close(self.fd) end
  self.fd, self.done = -1, true
end

-- { n, received_b64, requests, steps_done, steps, client_closed, note }
function M:report()
  return {
    n = self.number, received_b64 = base64.encode(self.frame:bytes()),
    requests = #self.frame.requests, steps_done = self.step, steps = #self.script.chunks,
    client_closed = self.eof, note = self.note,
  }
end

return M
