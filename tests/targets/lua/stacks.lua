-- Stacks of many kinds. The program tells each one before it waits in it.

-- Returns the functions of Lua from a level on, innermost first: the source, and two lines.
local function trace(level)
  local frames = {}
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then break end
    if info.what ~= "C" then
      local line = math.max(info.currentline, 0)
      frames[#frames + 1] = info.short_src .. ":" .. math.max(info.linedefined, 0) .. ":" .. line
    end
    level = level + 1
  end
  return table.concat(frames, "|")
end

local function tell(name, outer)
  print(name .. "\t" .. trace(2) .. (outer and "|" .. outer or "")) io.flush() io.read()
  return 1
end

local function deep(depth)
  if depth == 0 then return tell("deep") + 0 end
  return deep(depth - 1) + 1
end

local function tail(depth)
  if depth == 0 then return tell("tail") + 0 end
  return tail(depth - 1)
end

local function variable(...)
  local sum = select("#", ...)
  return tell("variable") + sum
end

local function callers(name, outer)
  return tell(name, outer) + 1
end

local function protected()
  local ok, result = pcall(callers, "pcall")
  return ok and result + 1
end

local function handled()
  local function handler(message)
    tell("handler")
    return message
  end
  local ok = xpcall(function() error("wanted") end, handler)
  return not ok
end

local function failing()
  local function handler(message)
    tell("fault")
    return message
  end
  local none
  local ok = xpcall(function() return none.field + 1 end, handler)
  return not ok
end

local function operators()
  local meta = {}
  function meta.__index(_, key) return callers("index " .. key) end
  function meta.__newindex(_, key) callers("newindex " .. key) end
  function meta.__add() return callers("add") end
  function meta.__concat() return callers("concat") .. "" end
  function meta.__lt() return callers("lt") > 0 end
  function meta.__eq() return callers("eq") > 0 end
  function meta.__call(_, name) return callers(name) + 0 end
  function meta.__unm() return callers("unm") + 0 end
  local one, other = setmetatable({}, meta), setmetatable({}, meta)
  local sum = one.field + 1
  one.field = sum
  sum = one + other
  local text = "a" .. one
  if one < other then text = text .. "b" end
  if one == other then text = text .. "c" end
  sum = one("call") + 1
  return -one, sum, text
end

local function natives()
  table.sort({ 2, 1 }, function(a, b) callers("sort") return a < b end)
  local text = string.gsub("x", "x", function() callers("gsub") return "y" end)
  table.foreach({ 1 }, function() callers("foreach") end)
  for _ in function(_, last) if not last then return callers("iterator") end end do text = "z" end
  return text
end

local function coroutines()
  local inner = coroutine.create(function(outer)
    callers("inner", outer)
    tell("inner again", outer)
    outer = coroutine.yield()
    tell("resumed", outer)
  end)
  local wrapped = coroutine.wrap(function(outer)
    coroutine.resume(inner, trace(2) .. "|" .. outer) tell("yielded", outer)
    pcall(coroutine.resume, inner, trace(2) .. "|" .. outer)
    outer = coroutine.yield()
    return tell("wrapped", outer) + 0
  end)
  wrapped(trace(2))
  return wrapped(trace(2)) and 1
end

local function loaded()
  local chunk = assert(loadstring("local tell = ...\ntell('chunk')\nreturn 1", "=named"))
  chunk(tell)
  chunk = assert(loadstring("local tell = ...\n\ntell('text')\nreturn 1"))
  chunk(tell)
  chunk = assert(loadstring(string.dump(assert(loadstring("(...)('stripped') return 1")), true)))
  chunk(tell)
  return 1
end

local function collected()
  local proxy = newproxy(true)
  getmetatable(proxy).__gc = function() callers("finalizer") end
  proxy = nil
  collectgarbage()
  return 1
end

local function long()
  local lines = {}
  for i = 1, 300 do lines[i] = "" end
  lines[301] = "local tell = ... tell('long')"
  lines[302] = "return 1"
  return assert(loadstring(table.concat(lines, "\n"), "=long"))(tell)
end

local function foreign()
  local ffi = require("ffi")
  ffi.cdef("void qsort(void *, size_t, size_t, int (*)(const void *, const void *));")
  local function compare() callers("callback") return 0 end
  local array = ffi.new("int[2]", { 2, 1 })
  ffi.C.qsort(array, 2, 4, compare)
  return 1
end

deep(3)
deep(200)
tail(3)
variable(1, 2, nil)
variable()
protected()
handled()
failing()
operators()
natives()
coroutines()
loaded()
collected()
long()
foreign()
print("end")
io.flush()
io.read()
