# Does a fixed amount of work when it is told to, and prints what time that took.
#
#   fixed.rb ROUNDS DEPTH
#
# The work is done below so many calls. It begins after a line on standard input.

def count_words(text)
  counts = Hash.new(0)
  text.split.each { |word| counts[word] += 1 }
  counts.keys.sort_by { |word| -counts[word] }
end

def fibonacci(number)
  number < 2 ? number : fibonacci(number - 1) + fibonacci(number - 2)
end

def work(rounds)
  rounds.times do
    fibonacci(12)
    count_words(TEXT)
  end
end

def below(depth, rounds)
  depth > 0 ? below(depth - 1, rounds) : work(rounds)
end

def ms(clock)
  Process.clock_gettime(clock, :float_millisecond)
end

TEXT = Array.new(2000) { |i| "word#{i * 7919 % 503}" }.join(' ')
$stdin.gets
start = ms(Process::CLOCK_MONOTONIC)
start_cpu = ms(Process::CLOCK_PROCESS_CPUTIME_ID)
below(ARGV[1].to_i, ARGV[0].to_i)
puts "elapsed_ms #{ms(Process::CLOCK_MONOTONIC) - start}"
puts "cpu_ms #{ms(Process::CLOCK_PROCESS_CPUTIME_ID) - start_cpu}"
