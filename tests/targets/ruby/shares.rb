# Methods whose shares of the CPU time in user mode the program measures itself.
#
# usage: shares.rb FILE: once the file is there, prints the microseconds of each method.

def turns(count, x)
  count.times { x = x * 3 % 1000003 }
  x
end

def s_half(x)
  turns(40000, x)
end

def s_third(x)
  turns(25000, x)
end

def s_text(x)
  text = "some text #{x}" * 8000
  text.reverse.sum & 1023
end

def now
  (Process.times.utime * 1_000_000).round
end

spent = { s_half: 0, s_third: 0, s_text: 0 }
$stdout.sync = true
puts 'ready'
x = 1
until File.exist?(ARGV[0])
  spent.each_key do |method|
    start = now
    x = send(method, x)
    spent[method] += now - start
  end
end
spent.each { |method, time| puts "#{method} #{time}" }
exit(17)
