-- What an editor does. Each function whose name begins with `c_` has one caller.
local function c_fill(n)
  local lines = {}
  for i = 1, 200 do lines[i] = ("line %d of %d"):format(i, n) end
  vim.api.nvim_buf_set_lines(0, 0, -1, false, lines)
  return #lines
end

local function c_read(n)
  local sum = 0
  for _, line in ipairs(vim.api.nvim_buf_get_lines(0, 0, -1, false)) do
    sum = sum + #line + n % 3
  end
  return sum
end

local function c_called(_, n)
  local sum = 0
  for i = 1, 2000 do sum = (sum * 31 + n + i) % 65521 end
  return sum
end

-- The editor's own language calls the function.
local function c_asks(n)
  local answers = vim.fn.map({ n, n + 1, n + 2 }, c_called) -- calls c_called
  return answers[1]
end

local function c_answers(_, n)
  local sum = 0
  for i = 1, 2000 do sum = (sum * 31 + n + i) % 65521 end
  return sum
end

-- The editor calls functions in its first coroutine, whichever has called it.
local function c_resumed(n)
  while true do
    local answers = vim.fn.map({ n, n + 1 }, c_answers) -- calls c_answers
    n = coroutine.yield(answers[1])
  end
end

local resume = coroutine.wrap(c_resumed)

local function c_resumes(n)
  local answer = resume(n) -- calls c_resumed
  return answer
end

local function c_work(n)
  local total = c_fill(n) -- calls c_fill
  total = total + c_read(n) -- calls c_read
  local asked = c_asks(n) -- calls c_asks
  local resumed = c_resumes(n) -- calls c_resumes
  return total + asked + resumed
end

local function c_run()
  local round = 0
  while true do
    round = round + 1
    c_work(round) -- calls c_work
  end
end

io.stdout:write("ready\n")
io.flush()
c_run() -- calls c_run
