-- What nginx does for a request. Each function whose name begins with `c_` has one caller.
local find, byte, char, concat = ngx.re.find, string.byte, string.char, table.concat

local function c_letters(text)
  local parts = {}
  for i = 1, #text do parts[i] = char(97 + byte(text, i) % 26) end
  return concat(parts)
end

-- Regular expressions are compiled, too, and run from compiled code.
local function c_matches(text)
  local found = 0
  for _ = 1, 50 do
    if find(text, "(a|b)+[c-f]{1,3}(x|y|z)*[0-9]?", "jo") then found = found + 1 end
  end
  return found
end

local function c_numbers(n)
  local sum = 0
  for i = 1, 3000 do sum = (sum * 31 + n + i) % 65521 end
  return sum
end

local function c_answer(n)
  local text = c_letters("some text of request " .. n) -- calls c_letters
  local found = c_matches(text) -- calls c_matches
  -- Another request runs meanwhile.
  ngx.sleep(0)
  local sum = c_numbers(n) -- calls c_numbers
  return text .. found .. sum
end

local answer = c_answer(ngx.worker.pid()) -- calls c_answer
ngx.say(answer)
