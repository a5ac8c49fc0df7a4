-- One interpreter calls the other one. Both compute.
local function inner(n)
  local sum = 0
  for i = 1, 1000 do sum = (sum * 31 + i) % n end
  return sum
end

local function deepest(n)
  local sum = 0
  for i = 1, 1000 do sum = (sum * 37 + i) % n end
  return sum
end

local function second()
  for _ = 1, 10 do deepest(65519) end
end

local function first()
  while true do
    for _ = 1, 10 do inner(65521) end
    host_other()
  end
end

if not host_other then return second end
first()
