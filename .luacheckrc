std = "luajit"
max_line_length = 96

files["spec"] = { std = "luajit+busted" }
-- The program itself gives a script its `arg`.
files["lua/moonjay/cli.lua"] = { globals = { "arg" } }
-- busted reads its command line from `arg`.
files["spec/run.lua"] = { globals = { "arg" } }
-- What runtime_play.c calls, and what judges it.
for _, name in ipairs { "judge", "steps", "busy" } do
  files["spec/fault/" .. name .. ".lua"] = { globals = { "judge", "main", "linger" } }
end
-- The host calls it by its name.
files["spec/fuzz/call.lua"] = { globals = { "play" } }
