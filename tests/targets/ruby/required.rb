# A part of single.rb.

def c_required(x)
  [x].each do |y|
    c_in_required(y)
  end
  x
end

def c_in_required(x)
  note(:c_in_required)
  200.times { x = x * 3 % 1049 }
  x
end
