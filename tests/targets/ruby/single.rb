# Methods whose innermost ones say, once, from where they were called. Each method whose name begins
# with `c_` has one caller among them.
#
# usage: single.rb FILE: writes a line for each stack, root first: LABEL:LINE and tabs.

require_relative 'required'

$notes = {}
$account = File.open(ARGV[0], 'w')

# Writes the stack of a method that is called for the first time.
def note(name)
  return if $notes[name]
  $notes[name] = true
  places = caller_locations(1).reverse.map { |it| "#{it.label}:#{it.lineno}" }
  $account.puts(places.join("\t"))
  $account.flush
end

def c_leaf_add(x)
  note(:c_leaf_add)
  i = 0
  while i < 300
    x = x * 3 + i
    x %= 1000003
    i += 1
  end
  x
end

def c_leaf_text(x)
  note(:c_leaf_text)
  text = "abc #{x} " * 40
  text = text.upcase + text.reverse
  text.gsub('B', 'xyz').length + text.sum
end

def c_leaf_array(x)
  note(:c_leaf_array)
  all = {}
  60.times do |i|
    all["k#{i}"] = x ^ i
  end
  all.sort_by { |_, value| value }.length + all['k7']
end

def c_deep(x, depth)
  return c_deep(x + 1, depth - 1) if depth > 0
  c_deepest(x)
end

def c_deepest(x)
  note(:c_deepest)
  600.times { x = (x << 1) % 1000003 }
  x
end

module Mixed
  def c_mixed(x)
    note(:c_mixed)
    400.times { x = x * 5 % 1009 }
    x
  end
end

class Shape
  include Mixed

  def initialize
    @seen = {}
  end

  def c_method(x)
    Shape.c_single(x) & 1023
  end

  def self.c_single(x)
    shape = new
    shape.send(:c_private, x) +
      shape.c_mixed(x)
  end

  def method_missing(name, *arguments)
    return super unless name == :anything
    c_missing(arguments.first)
  end

  def respond_to_missing?(name, all = false)
    name == :anything || super
  end

  define_method(:c_defined) do |x|
    c_in_defined(x)
  end

  def c_in_defined(x)
    note(:c_in_defined)
    200.times { x = x * 7 % 1013 }
    x
  end

  private

  def c_private(x)
    @seen[x & 7] = x
    c_leaf_text(x) + @seen.size
  end

  def c_missing(x)
    note(:c_missing)
    200.times { x ^= x * 7 & 255 }
    x
  end
end

module Outer
  class Inner
    def c_nested(x, more = 2, key: 3)
      c_leaf_nested(
        x + more + key
      )
    end

    def c_leaf_nested(x)
      note(:c_leaf_nested)
      200.times { x = x * 3 % 1031 }
      x
    end
    alias_method :aliased, :c_leaf_nested
  end
end

def c_mapped(x)
  c_leaf_array(x)
end

def c_map(x)
  all = [x, x + 1].map { |y| c_mapped(y) }
  all = all.each_slice(1).flat_map { |part|
    part.map do |y|
      c_in_slices(y)
    end
  }
  all.sum
end

def c_in_slices(x)
  note(:c_in_slices)
  100.times { x += x & 3 }
  x & 1023
end

def c_compared(a, b)
  note(:c_compared)
  x = a
  100.times { x = x * 5 % 10007 }
  a <=> b + (x & 1)
end

def c_closure(x)
  add = ->(y) { c_in_closure(y) + x }
  [x, 5, 3].sort { |a, b| c_compared(a, b) }
  add.call(x) & 1023
end

def c_in_closure(x)
  c_leaf_add(x)
end

def c_throws(x)
  begin
    c_thrower(x)
  rescue RuntimeError => error
    x = c_in_rescue(error.message.length)
  ensure
    x += c_in_ensure(x)
  end
  begin
    c_ensures(x)
  rescue RuntimeError
    x += c_in_other_rescue(x)
  end
  x
end

def c_in_other_rescue(x)
  note(:c_in_other_rescue)
  200.times { |i| x ^= i }
  x
end

def c_thrower(x)
  x += c_before_throw(x)
  raise "no #{x}"
end

def c_before_throw(x)
  note(:c_before_throw)
  200.times { |i| x += i & 3 }
  x
end

def c_in_rescue(x)
  note(:c_in_rescue)
  200.times { |i| x ^= i }
  x
end

def c_in_ensure(x)
  note(:c_in_ensure)
  200.times { |i| x = x + i & 4095 }
  x
end

def c_ensures(x)
  raise "other #{x}"
ensure
  c_while_raised(x)
end

def c_while_raised(x)
  note(:c_while_raised)
  200.times { |i| x = x + i & 4095 }
  x
end

def c_fiber(x)
  fiber = Fiber.new do |y|
    y += c_before_yield(y)
    y += Fiber.yield(y)
    c_after_yield(y)
  end
  fiber.resume(x) +
    fiber.resume(4)
end

def c_before_yield(x)
  note(:c_before_yield)
  200.times { x = x * 3 % 1009 }
  x
end

def c_after_yield(x)
  note(:c_after_yield)
  200.times { x = x * 3 % 1013 }
  x
end

def c_enumerate(x)
  numbers = Enumerator.new do |to|
    3.times { |i| to << c_enumerated(x + i) }
  end
  numbers.next + numbers.lazy.map { |y| y + 1 }.first(2).sum
end

def c_enumerated(x)
  note(:c_enumerated)
  100.times { x = x * 3 % 1019 }
  x
end

def c_evaluated(x)
  eval('c_in_eval(x)', binding, 'evaluated.rb', 70)
end

def c_in_eval(x)
  note(:c_in_eval)
  200.times { x = x * 3 % 1019 }
  x
end

def c_replace(x)
  "a#{x} b#{x}".gsub(/\d+/) { |found| c_replaced(found.to_i).to_s }.length
end

def c_replaced(x)
  note(:c_replaced)
  200.times { x = x * 3 % 1019 }
  x
end

def c_caught(x)
  catch(:done) do
    loop do
      c_in_loop(x)
      throw :done, x
    end
  end
end

def c_in_loop(x)
  note(:c_in_loop)
  200.times { x = x * 3 % 1021 }
  x
end

class Ordered
  include Comparable
  attr_reader :x

  def initialize(x)
    @x = x
  end

  def <=>(other)
    c_in_operator(x) <=> other.x
  end

  def c_in_operator(x)
    note(:c_in_operator)
    200.times { x = x * 3 % 1033 }
    x
  end
end

def c_operators(x)
  Ordered.new(x) > Ordered.new(5) ? 1 : 0
end

def c_run(x)
  x += c_deep(x, 20)
  x += Shape.new.c_method(x)
  x += Shape.new.anything(x)
  x += Shape.new.c_defined(x)
  x += Outer::Inner.new.c_nested(x)
  x += c_map(x)
  x += c_closure(x)
  x += c_throws(x)
  x += c_fiber(x)
  x += c_enumerate(x)
  x += c_evaluated(x)
  x += c_replace(x)
  x += c_caught(x)
  x += c_operators(x)
  x += c_required(x)
  x & 65535
end

def c_in_thread(x)
  loop do
    x = c_leaf_thread(x)
  end
end

def c_leaf_thread(x)
  note(:c_leaf_thread)
  200.times { x = x * 3 % 1039 }
  sleep(0.0001)
  x
end

$stdout.sync = true
Thread.new do
  c_in_thread(1)
end
x = 1
$ready = false
while true
  x = c_run(x)
  unless $ready
    sleep(0.01) until $notes[:c_leaf_thread]
    puts 'ready'
    $ready = true
  end
end
