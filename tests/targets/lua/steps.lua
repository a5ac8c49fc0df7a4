-- Functions whose names begin with `c_`, each with one caller among them, which does little. So all
-- kinds of calls and returns are in some ten thousand machine instructions. The comment of a call
-- tells which one is called.
local c_leaf, c_deep, c_deepest, c_field, c_sum, c_less, c_replaced, c_variable, c_tail, c_protected
local c_body, c_inner, c_stepped, c_maker, c_pair, c_given, c_taker, c_closed, c_failed, c_walked
local c_many, c_called, c_tail_of_many, c_length, c_equal, c_stored

function c_leaf(n)
  return (n * 31 + 7) % 65521
end

function c_deep(depth)
  if depth > 0 then
    local more = c_deep(depth - 1) -- calls c_deep
    return more + 1
  end
  return c_deepest(depth) + 1 -- calls c_deepest
end

function c_deepest(n)
  return n % 7
end

local meta = {}
function c_field(_, key)
  return #key
end
meta.__index = c_field

function c_stored(object, key, value)
  rawset(object, key, value)
end
meta.__newindex = c_stored

function c_sum(one)
  return #one.list
end
meta.__add = c_sum

function c_length(one)
  return one.list[1] or 3
end
meta.__call = c_length

function c_equal(one, other)
  return one.list == other.list
end
meta.__eq = c_equal

function c_less(a, b)
  return a < b
end

function c_replaced(text)
  return text .. "-"
end

function c_variable(...)
  return select("#", ...)
end

function c_tail(n)
  return n % 11
end

function c_protected(n)
  if n % 2 == 0 then error("even") end
  return n
end

function c_failed(message)
  return #message
end

function c_inner(n)
  return n % 6
end

function c_body(n)
  while true do
    n = c_inner(n) -- calls c_inner
    coroutine.yield(n)
  end
end

function c_stepped(_, n)
  if n > 2 then return nil end
  return n + 1, n
end

-- Functions that are returned are in the place of the one that returns.
function c_given(n)
  return n % 5
end

function c_maker()
  return c_given
end

function c_pair(n)
  return c_given, n, c_given
end

function c_closed(n)
  local own = n
  return function() return own end
end

function c_taker(fun, n)
  return fun, n
end

function c_called(n)
  return n, n, n
end

function c_tail_of_many(...)
  return ...
end

function c_many(a, b, c, d, e, f)
  return a, b, c, d, e, f
end

function c_walked(list)
  local sum = 0
  for _, value in ipairs(list) do sum = sum + value end
  for _, value in pairs(list) do sum = sum + value end
  return sum
end

local function via_tail(n)
  return c_tail(n)
end

local function via_many(...)
  return c_tail_of_many(...)
end

local list = { 3, 1, 2 }
local object = setmetatable({ list = list }, meta)
local other = setmetatable({ list = list }, meta)

local function c_work(round)
  local total, text = 0, ""
  total = total + c_leaf(round) -- calls c_leaf
  total = total + c_deep(3) -- calls c_deep
  total = total + object.missing -- calls c_field
  total = total + (object + 1) -- calls c_sum
  total = total + object() -- calls c_length
  if object == other then total = total + 1 end -- calls c_equal
  object.new = 1 -- calls c_stored
  rawset(object, "new", nil)
  table.sort({ 3, 1, 2 }, c_less) -- calls c_less
  text = string.gsub("a b", "%a", c_replaced) -- calls c_replaced
  total = total + c_variable(round, nil, 3) -- calls c_variable
  total = total + via_tail(round) -- calls c_tail
  pcall(c_protected, round) -- calls c_protected
  xpcall(error, c_failed, "no") -- calls c_failed
  for i, n in c_stepped, nil, 1 do -- calls c_stepped
    total = total + i + n
  end
  local made = c_maker() -- calls c_maker
  total = total + made(round) -- calls c_given
  local pair, number = c_pair(round) -- calls c_pair
  total = total + pair(number) -- calls c_given
  total = total + c_closed(round)() -- calls c_closed
  local taken = c_taker(c_work_again, round) -- calls c_taker
  local one, two, three = c_called(round) -- calls c_called
  total = total + one + two + three
  via_many(1, 2, 3, round) -- calls c_tail_of_many
  c_many(select(2, 1, 2, 3)) -- calls c_many
  total = total + c_walked(list) -- calls c_walked
  return total + #text, taken
end

-- A function that is handed to another one and returned by it while it runs itself.
c_work_again = c_work

local resume = coroutine.wrap(c_body)

local function c_run()
  local round = 0
  while true do
    round = round + 1
    c_work(round) -- calls c_work
    resume(round) -- calls c_body
  end
end

print("ready")
io.flush()
c_run() -- calls c_run
