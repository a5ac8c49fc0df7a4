-- Does a fixed amount of work when it is told to, and prints what time that took.
--
--   fixed.lua ROUNDS DEPTH
--
-- The work is done below so many calls. It begins after a line on standard input.
local ffi = require("ffi")
ffi.cdef[[
struct timespec { long seconds, nanoseconds; };
int clock_gettime(int, struct timespec *);
]]
local MONOTONIC = 1

local words = {}
for i = 0, 1999 do words[#words + 1] = "word" .. i * 7919 % 503 end
local text = table.concat(words, " ")

local function count_words()
  local counts, sorted = {}, {}
  for word in text:gmatch("%S+") do counts[word] = (counts[word] or 0) + 1 end
  for word in pairs(counts) do sorted[#sorted + 1] = word end
  table.sort(sorted, function(one, other) return counts[one] > counts[other] end)
  return sorted
end

local function fibonacci(n)
  if n < 2 then return n end
  return fibonacci(n - 1) + fibonacci(n - 2)
end

local function work(rounds)
  for _ = 1, rounds do
    fibonacci(12)
    count_words()
  end
end

local function below(depth, rounds)
  if depth > 0 then below(depth - 1, rounds) else work(rounds) end
end

local function elapsed_ms()
  local now = ffi.new("struct timespec")
  ffi.C.clock_gettime(MONOTONIC, now)
  return tonumber(now.seconds) * 1e3 + tonumber(now.nanoseconds) / 1e6
end

io.read()
local start, start_cpu = elapsed_ms(), os.clock()
below(tonumber(arg[2]), tonumber(arg[1]))
print("elapsed_ms", elapsed_ms() - start)
print("cpu_ms", (os.clock() - start_cpu) * 1e3)
