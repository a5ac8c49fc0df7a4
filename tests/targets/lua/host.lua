-- A coroutine that native code resumes: that of a function of Lua, or that of the program.
local function inner(n)
  local sum = 0
  for i = 1, 1000 do sum = (sum * 31 + i) % n end
  return sum
end

local function body()
  while true do
    inner(65521)
    coroutine.yield()
  end
end

local function outer(co)
  while true do host_resume(co) end
end

if not host_resume then return body end
outer(coroutine.create(body))
