-- The specs of rooms that no script can reach, written in C: each of spec/c/*.c is a program
-- that prints "ok NAME" or "not ok NAME" for each of its specs. Every line becomes a spec.
-- So does every group of the corpus that the targets of spec/fuzz are given here.

local lfs = require "lfs"
local program = require "spec.support.program"

local DEADLINE = 300 -- seconds; a program that hangs fails

local function run(command)
  command = ("timeout %d %s 2>&1; echo status $?"):format(DEADLINE, command)
  local pipe = assert(io.popen(command))
  local output = pipe:read("*a")
  pipe:close()
  return output, tonumber(output:match("status (%d+)\n$"))
end

local function describe_program(name, command)
  describe(name, function()
    local output, status = run(command)
    local count = 0
    for line in output:gmatch("[^\n]+") do
      local what = line:match("^ok (.*)") or line:match("^not ok (.*)")
      if what then
        count = count + 1
        it(what, function() assert.truthy(line:find("^ok "), output) end)
      end
    end
    it("ran to its end", function()
      assert.equal(0, status, output)
      assert.is_true(count > 0, output)
    end)
  end)
end

local folder = program.path:match("^(.*)/") .. "/spec"
for source in lfs.dir("spec/c") do
  local name = source:match("^(.*)%.c$")
  if name then describe_program(name, folder .. "/" .. name) end
end

local corpora = {}
for file in lfs.dir("spec/data/corpus") do
  local target = file:match("^(%a+).*%.txt$")
  if target then
    corpora[target] = (corpora[target] or "") .. " spec/data/corpus/" .. file
  end
end
for target, files in pairs(corpora) do
  describe_program("fuzz/" .. target, folder .. "/fuzz_" .. target .. files)
end

-- Not each place where a runtime takes memory, of which there are thousands: `make fault` does.
describe_program("fault", folder .. "/sweep --step 10")
