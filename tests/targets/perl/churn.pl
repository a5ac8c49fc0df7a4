# Subs that are made all the time, each called by one whose name ends with the same digit.
use strict;
use warnings;

sub stub_0 { return $_[0]->($_[1]) }
sub stub_1 { return $_[0]->($_[1]) }
sub stub_2 { return $_[0]->($_[1]) }
sub stub_3 { return $_[0]->($_[1]) }

my @stubs = (\&stub_0, \&stub_1, \&stub_2, \&stub_3);
$| = 1;
print "ready\n";
for (my $number = 0; ; $number++) {
    my $digit = $number & 3;
    my $line = $digit + 1;
    my $work = '$x = $x * 7 % 1009 for 1 .. 400; return $x;';
    # A sub with a name, which goes with its package, and a closure.
    my $named = eval "package Made_$digit;\n#line $line \"file_$digit\"\n"
        . "sub made_$digit { my (\$x) = \@_; $work }\n\\&made_$digit" or die $@;
    my $closure = eval "\n#line $line \"file_$digit\"\nsub { my (\$x) = \@_; \$number & 1; $work }"
        or die $@;
    for (1 .. 5) {
        $stubs[$digit]->($named, $number);
        $stubs[$digit]->($closure, $number);
    }
    no strict 'refs';
    undef &{"Made_${digit}::made_$digit"};
    undef %{"Made_${digit}::"} if $number % 3 == 0;
}
