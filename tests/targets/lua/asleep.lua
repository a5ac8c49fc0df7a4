-- Sleeps in a coroutine, in a function of the C library.
local function inner(ffi)
  return ffi.C.sleep(3600) + 1
end

local function outer()
  local left = inner(require("ffi"))
  return left
end

local function resumer(co)
  local _, left = coroutine.resume(co)
  return left
end

require("ffi").cdef("unsigned int sleep(unsigned int);")
print("ready")
io.flush()
print(resumer(coroutine.create(outer)))
