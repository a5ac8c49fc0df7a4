-- Functions that come and go, each called by a function with the same digit on its line.
local stubs = {}
stubs[0] = function(made) local sum = made(3) return sum end -- stub 0
stubs[1] = function(made) local sum = made(3) return sum end -- stub 1
stubs[2] = function(made) local sum = made(3) return sum end -- stub 2
stubs[3] = function(made) local sum = made(3) return sum end -- stub 3
stubs[4] = function(made) local sum = made(3) return sum end -- stub 4
stubs[5] = function(made) local sum = made(3) return sum end -- stub 5
stubs[6] = function(made) local sum = made(3) return sum end -- stub 6
stubs[7] = function(made) local sum = made(3) return sum end -- stub 7
stubs[8] = function(made) local sum = made(3) return sum end -- stub 8
stubs[9] = function(made) local sum = made(3) return sum end -- stub 9

local body = "local n = ... local sum = n for i = 1, 4000 do sum = (sum * 3 + i) % 65521 end return sum"

print("ready")
io.flush()
local round = 0
while true do
  round = round + 1
  local digit = round * 7 % 10
  local made = loadstring("return function(...) " .. body .. " end", "=made_" .. digit)()
  stubs[digit](made)
  if round % 50 == 0 then collectgarbage() end
end
