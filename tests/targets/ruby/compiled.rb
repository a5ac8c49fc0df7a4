# Short methods that are compiled, each with one caller, at the same depths of the stack.

def y_turns(x)
  i = 0
  while i < 1000
    x = (y_one(x) + y_two(x)) & 1023
    i += 1
  end
  x
end

def y_one(x)
  y_in_one(x) + x.gcd(6)
end

def y_in_one(x)
  x + 1
end

def y_two(x)
  x.lcm(6) + y_in_two(x) + y_also_in_two(x)
end

def y_in_two(x)
  x.pow(2)
end

def y_also_in_two(x)
  x.fdiv(3).floor
end

$stdout.sync = true
x = 1
100.times { x = y_turns(x) }
puts 'ready'
x = y_turns(x) while true
