# Typical work of Perl programs: patterns, tables, sorting, text, until SIGTERM.
use strict;
use warnings;

$SIG{TERM} = sub { exit 17 };
my @words = map { "word" . ($_ * 7919 % 10007) } 1 .. 3000;
my $text  = join ' ', @words;

sub patterns {
    my $count = 0;
    $count++ while $text =~ /\b(\w+?)(\d{2,})\s+word(\d)/g;
    (my $changed = $text) =~ s/(\d+)/<$1>/g;
    return $count + length $changed;
}

sub tables {
    my %seen;
    $seen{ substr $_, 0, 6 }++ for @words;
    return join ',', map { "$_=$seen{$_}" } sort { $seen{$b} <=> $seen{$a} || $a cmp $b } keys %seen;
}

sub numbers {
    my $sum = 0;
    for my $i (1 .. 20000) {
        $sum = ($sum * 31 + $i) % 1000003;
    }
    return $sum;
}

$| = 1;
print "ready\n";
while (1) {
    patterns();
    tables();
    numbers();
}
