-- One chain of calls in interpreted or compiled code, with arithmetic and functions of the
-- interpreter's own, until it is killed.
local words

local function leaf_chain(n)
  local sum = 0
  for i = 1, 200 do sum = (sum * 31 + n + i) % 65521 end
  return sum
end

local function parent_chain(n) return leaf_chain(n) + 1 end

local function root_chain()
  local total = 0
  for i = 1, 500 do total = total + parent_chain(i) end
  words = {}
  for i = 1, 2000 do words[i] = tostring(i) .. "x" end
  return total + #words
end

print("ready")
io.flush()
while true do root_chain() end
