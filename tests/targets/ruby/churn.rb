# Methods that are made all the time, each called by one whose name ends with the same digit. Their
# classes have names for a while, and objects move.

def stub_0(it, x) = it.public_send(:made_0, x)
def stub_1(it, x) = it.public_send(:made_1, x)
def stub_2(it, x) = it.public_send(:made_2, x)
def stub_3(it, x) = it.public_send(:made_3, x)

$stdout.sync = true
puts 'ready'
kept = []
number = 0
while true
  digit = number & 3
  made = Class.new
  Object.const_set("Made_#{digit}", made) if number % 2 == 0
  made.class_eval(<<~END, "file_#{digit}.rb", digit + 1)
    def made_#{digit}(x)
      [x].each { |y| leaf_#{digit}(y) }
    end
    def leaf_#{digit}(x)
      300.times { x = x * 7 % 1009 }
      x
    end
  END
  object = made.new
  20.times { send(:"stub_#{digit}", object, number) }
  Object.send(:remove_const, "Made_#{digit}") if number % 2 == 0
  kept << made
  kept.clear if number % 97 == 0
  GC.start if number % 200 == 0
  GC.compact if number % 500 == 0
  number += 1
end
