-- bench.targets: what is measured, and what moonjay is to reach.
--
--   targets.find("P2").minimum     --> { 0.75, 2.2 }
--
-- Both figures are relative to the floor, the least that a client can do on this machine
-- (bench/limit.c): a fraction of its operations per second, and a multiple of the CPU that it
-- needs for each.

local M = {}

-- `others`: what else moonjay is measured with beside this row, as { workload, words }, and
-- `judged` where the target speaks of it too.
M.workloads = {
  { name = "P1", words = "one task, get of 100 B",
    minimum = { 0.90, 1.25 }, goal = { 0.94, 1.13 } },
  { name = "P2", words = "100 gets in flight on one connection, 100 B",
    minimum = { 0.75, 2.2 }, goal = { 0.90, 1.6 },
    others = { { "P2-pipeline", "a pipeline" }, { "P2-fresh", "new values" } } },
  { name = "P3", words = "get_many of 100 keys of 100 B, per key",
    minimum = { 0.65, 4.2 }, goal = { 0.80, 2.5 },
    others = { { "P3-fresh", "new values" } } },
  { name = "P4a", words = "one task, set of 100 B",
    minimum = { 0.90, 1.25 }, goal = { 0.94, 1.13 } },
  { name = "P4b", words = "100 sets in flight on one connection, 100 B",
    minimum = { 0.80, 1.9 }, goal = { 0.92, 1.4 },
    others = { { "P4b-pipeline", "a pipeline", judged = true } } },
  { name = "P5", words = "get of 1 MiB into a buffer that is used again",
    minimum = { 0.90, 1.15 }, goal = { 0.97, 1.05 },
    others = { { "P5-gathered", "direct_read=false" } } },
  { name = "P5s", words = "get of 1 MiB as a string",
    minimum = { 0.65, 1.7 }, goal = { 0.75, 1.5 },
    others = { { "P5s-gathered", "direct_read=false" },
               { "P5s-same", "one value", judged = true } } },
  { name = "P6", words = "50 connections, each one get at a time, 100 B",
    minimum = { 0.90, 1.20 }, goal = { 0.97, 1.08 } },
  { name = "P7", words = "the same, one request in ten a set",
    minimum = { 0.90, 1.20 }, goal = { 0.97, 1.08 } },
}

-- System calls per operation: P2 as a multiple of the floor's; with `-R 200` itself.
M.calls = { of_floor = 1.1, with_long_batches = 0.05 }

-- Dalli's rows: how many times Dalli's operations per CPU second moonjay is to reach. Those
-- that send many requests before they wait are pipelined; mixedq waits for each of its gets.
M.dalli = {
  { name = "D-set", times = 2 }, { name = "D-set-raw", times = 2 },
  { name = "D-setq", times = 8 },
  { name = "D-get", times = 2 }, { name = "D-get-raw", times = 2 },
  { name = "D-multiget", times = 8 },
  { name = "D-missing", times = 2 }, { name = "D-mixed", times = 2 },
  { name = "D-mixedq", times = 2 }, { name = "D-incr", times = 2 },
}

-- Whether a ratio to the floor's rate and one to its CPU reach a target.
function M.reached(target, rate, cpu)
  return rate >= target[1] and cpu <= target[2]
end

return M
