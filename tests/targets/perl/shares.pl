# Subs whose shares of the CPU time in user mode the program measures itself.
#
# usage: shares.pl FILE: once the file is there, prints the microseconds of each sub.
use strict;
use warnings;

sub turns {
    my ($count, $x) = @_;
    $x = $x * 3 % 1000003 for 1 .. $count;
    return $x;
}

sub s_half {
    my ($x) = @_;
    return turns(40000, $x);
}

sub s_third {
    my ($x) = @_;
    return turns(25000, $x);
}

sub s_text {
    my ($x) = @_;
    my $text = "some text $x" x 4000;
    return unpack('%32C*', reverse $text) & 1023;
}

my %subs = (s_half => \&s_half, s_third => \&s_third, s_text => \&s_text);
my %spent = map { $_ => 0 } keys %subs;
$| = 1;
print "ready\n";
my $x = 1;
until (-e $ARGV[0]) {
    for my $name (sort keys %subs) {
        my $start = (times)[0];
        # The clock ticks a hundred times in a second.
        $x = $subs{$name}->($x) for 1 .. 50;
        $spent{$name} += (times)[0] - $start;
    }
}
printf "%s %d\n", $_, 1e6 * $spent{$_} for keys %spent;
exit 17;
