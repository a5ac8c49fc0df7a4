-- Functions whose names begin with `c_` and that each have one caller among them. The comment of a
-- call tells which one is called.
local c_leaf, c_text, c_deep, c_deepest, c_field, c_sum, c_less, c_replaced, c_variable, c_tail
local c_protected, c_body, c_inner, c_stepped, c_made

function c_leaf(n)
  local sum = 0
  for i = 1, 200 do sum = (sum * 31 + n + i) % 65521 end
  return sum
end

function c_text(n)
  local parts = {}
  for i = 1, 20 do parts[i] = tostring(i + n) .. "x" end
  return #table.concat(parts, ",")
end

function c_deep(depth)
  if depth > 0 then
    return c_deep(depth - 1) + 1 -- calls c_deep
  end
  return c_deepest(depth) + 1 -- calls c_deepest
end

function c_deepest(n)
  local sum = 0
  for i = 1, 60 do sum = sum + (n + i) % 7 end
  return sum
end

local meta = {}
function c_field(_, key)
  local sum = #key
  for i = 1, 60 do sum = sum + i % 5 end
  return sum
end
meta.__index = c_field

function c_sum(one)
  local sum = 1
  for i = 1, 60 do sum = sum + i % 3 end
  return sum + #one.list
end
meta.__add = c_sum

function c_less(a, b)
  local sum = 0
  for i = 1, 20 do sum = sum + i % 3 end
  return a < b and sum > 0
end

function c_replaced(text)
  local sum = 0
  for i = 1, 30 do sum = sum + i % 4 end
  return text .. sum
end

function c_variable(...)
  local sum = select("#", ...)
  for i = 1, 60 do sum = sum + i % 9 end
  return sum
end

function c_tail(n)
  local sum = n
  for i = 1, 60 do sum = sum + i % 11 end
  return sum
end

function c_protected(n)
  local sum = n
  for i = 1, 60 do sum = sum + i % 8 end
  if sum % 2 == 0 then error("even") end
  return sum
end

function c_inner(n)
  local sum = n
  for i = 1, 60 do sum = sum + i % 6 end
  return sum
end

function c_body(n)
  while true do
    n = c_inner(n) -- calls c_inner
    coroutine.yield(n)
  end
end

function c_stepped(_, n)
  if n > 20 then return nil end
  local sum = 0
  for i = 1, 30 do sum = sum + i % 6 end
  return n + 1, sum
end

local function via_tail(n)
  return c_tail(n)
end

local function c_work(round)
  local total, text = 0, ""
  for i = 1, 40 do
    total = total + c_leaf(i) -- calls c_leaf
  end
  for i = 1, 10 do
    total = total + c_text(i) -- calls c_text
  end
  for _ = 1, 10 do
    total = total + c_deep(30) -- calls c_deep
  end
  local object = setmetatable({ list = {} }, meta)
  for _ = 1, 20 do
    total = total + object.missing -- calls c_field
    total = total + (object + 1) -- calls c_sum
  end
  local list = {}
  for i = 1, 40 do list[i] = (i * 37 + round) % 41 end
  table.sort(list, c_less) -- calls c_less
  text = string.gsub("a b c d e f g h", "%a", c_replaced) -- calls c_replaced
  for i = 1, 20 do
    total = total + c_variable(i, nil, 3) -- calls c_variable
    total = total + via_tail(i) -- calls c_tail
    pcall(c_protected, i) -- calls c_protected
  end
  for i, sum in c_stepped, nil, 1 do -- calls c_stepped
    total = total + i + sum
  end
  local made = function(n)
    local sum = n
    for i = 1, 60 do sum = sum + i % 5 end
    return sum
  end
  for i = 1, 10 do
    total = total + made(i)
  end
  return total + #text
end

local resume = coroutine.wrap(c_body)

local function c_run()
  local round = 0
  while true do
    round = round + 1
    c_work(round) -- calls c_work
    for i = 1, 20 do
      resume(i) -- calls c_body
    end
  end
end

print("ready")
io.flush()
c_run() -- calls c_run
