# Threads with interpreters of their own. What is called `w_` and a letter is called by the sub `t_`
# and the same letter, which is the outermost one of a thread. Threads of `t_c` come and go.
use strict;
use warnings;
use threads;

sub t_a { w_a($_[0]) while 1 }
sub t_b { w_b($_[0]) while 1 }
sub t_c { w_c($_) for 1 .. 2000 }

sub w_a { my ($x) = @_; $x = $x * 3 % 1009 for 1 .. 60; return $x }
sub w_b { my ($x) = @_; $x = $x * 5 % 1009 for 1 .. 60; return $x }
sub w_c { my ($x) = @_; $x = $x * 7 % 1009 for 1 .. 60; return $x }

threads->create(\&t_a, 1)->detach;
threads->create(\&t_b, 2)->detach;
$| = 1;
print "ready\n";
threads->create(\&t_c)->join while 1;
