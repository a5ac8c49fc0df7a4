# Does a fixed amount of work when it is told to, and prints what time that took.
#
#   fixed.pl ROUNDS DEPTH
#
# The work is done below so many calls. It begins after a line on standard input.
use strict;
use warnings;
no warnings 'recursion';
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);

my $text = join ' ', map { 'word' . $_ * 7919 % 503 } 0 .. 1999;

sub count_words {
    my %counts;
    $counts{$_}++ for split ' ', $_[0];
    return scalar(my @sorted = sort { $counts{$b} <=> $counts{$a} } keys %counts);
}

sub fibonacci {
    my ($n) = @_;
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

sub work {
    my ($rounds) = @_;
    for (1 .. $rounds) {
        fibonacci(12);
        count_words($text);
    }
    return;
}

sub below {
    my ($depth, $rounds) = @_;
    return $depth ? below($depth - 1, $rounds) : work($rounds);
}

my $line = <STDIN>;
my ($start, $start_cpu) = map { clock_gettime($_) } CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID;
below($ARGV[1], $ARGV[0]);
printf "elapsed_ms %f\n", 1e3 * (clock_gettime(CLOCK_MONOTONIC) - $start);
printf "cpu_ms %f\n", 1e3 * (clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $start_cpu);
