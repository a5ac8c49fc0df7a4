# Subs whose innermost ones say, once, from where they were called. Each sub whose name begins with
# `c_` has one caller among them.
#
# usage: single.pl FILE: writes a line for each stack, root first: NAME:LINE and tabs.
use strict;
use warnings;
use FindBin;

my (%notes, $account);
my $shape = Shape->new(1);

# Writes the stack of a sub that is called for the first time.
sub note {
    my ($name) = @_;
    return if $notes{$name}++;
    my @places;
    my $level = 0;
    while (my @call = caller($level++)) {
        # A block is a part of its sub.
        next if $call[3] eq '(eval)' && !defined $call[6];
        my $called = $call[3] eq '(eval)' && $call[7] ? '<required>' : $call[3];
        push @places, "$called:$call[2]";
    }
    print {$account} join("\t", reverse @places[1 .. $#places]), "\n";
    $account->flush;
}

sub c_leaf_add {
    my ($x) = @_;
    note('c_leaf_add');
    for my $i (0 .. 60) {
        $x = ($x * 3 + $i) % 1000003;
    }
    return $x;
}

sub c_leaf_text {
    my ($x) = @_;
    note('c_leaf_text');
    my $text = "abc $x " x 40;
    $text =~ s/b/xyz/g;
    return length($text) + unpack('%32C*', $text);
}

sub c_deep {
    my ($x, $depth) = @_;
    return c_deep($x + 1, $depth - 1) if $depth > 0;
    return c_deepest($x);
}

sub c_deepest {
    my ($x) = @_;
    note('c_deepest');
    $x = ($x << 1) % 1000003 for 1 .. 60;
    return $x;
}

package Shape {
    our $AUTOLOAD;

    sub new { return bless {seen => $_[1]}, $_[0] }

    sub c_method {
        my ($self, $x) = @_;
        return Shape->c_single($x) & 1023;
    }

    sub c_single {
        my ($class, $x) = @_;
        my $shape = $class->new($x);
        my $method = 'c_private';
        return $shape->$method($x)
            + 1;
    }

    sub c_private {
        my ($self, $x) = @_;
        $self->{seen} = $x;
        return main::c_leaf_text($x);
    }

    sub AUTOLOAD {
        my ($self, $x) = @_;
        return c_missing($x);
    }

    sub c_missing {
        my ($x) = @_;
        main::note('c_missing');
        $x ^= $x * 7 & 255 for 1 .. 60;
        return $x;
    }

    sub DESTROY {
        my ($self) = @_;
        my $x = c_destroyed($self->{seen});
        eval { c_in_eval_of_destroy($x) };
    }

    sub c_destroyed {
        my ($x) = @_;
        main::note('c_destroyed');
        $x ^= $x * 5 & 255 for 1 .. 40;
        return $x;
    }

    sub c_in_eval_of_destroy {
        my ($x) = @_;
        main::note('c_in_eval_of_destroy');
        $x ^= $x * 3 & 255 for 1 .. 40;
        return $x;
    }
}

package Number {
    use overload '+' => \&c_plus, '<=>' => sub {
        my ($one, $other) = @_;
        return c_in_operator($$one) <=> c_other($other);
    };

    sub c_plus {
        my ($one, $other) = @_;
        return c_in_plus($$one) + $other;
    }

    sub c_in_plus {
        my ($x) = @_;
        main::note('c_in_plus');
        $x = $x * 3 % 1033 for 1 .. 60;
        return $x;
    }

    sub c_in_operator {
        my ($x) = @_;
        main::note('c_in_operator');
        $x = $x * 3 % 1033 for 1 .. 60;
        return $x;
    }

    sub c_other {
        my ($x) = @_;
        return ref $x ? $$x : $x;
    }
}

package Tied {
    sub TIESCALAR { return bless [$_[1]], $_[0] }

    sub FETCH {
        my ($self) = @_;
        return c_fetched($self->[0]);
    }

    sub c_fetched {
        my ($x) = @_;
        main::note('c_fetched');
        $x = $x * 3 % 1031 for 1 .. 60;
        return $x;
    }
}

package main;

sub c_sort {
    my ($x) = @_;
    my @all = sort { c_compared($a, $b) } $x, 5, 3, 9;
    my @named = sort c_by_name $x, 5, 3, 9;
    return $all[0] + $named[1];
}

sub c_compared {
    my ($one, $other) = @_;
    note('c_compared');
    my $x = $one;
    $x = $x * 5 % 10007 for 1 .. 40;
    return $one <=> $other + ($x & 1);
}

sub c_by_name {
    return c_in_by_name($a) <=> $b;
}

sub c_in_by_name {
    my ($x) = @_;
    note('c_in_by_name');
    $x = $x * 5 % 10009 for 1 .. 40;
    return $x;
}

sub c_closure {
    my ($x) = @_;
    my $add = sub {
        my ($y) = @_;
        return c_in_closure($y) + $x;
    };
    my @mapped = map {
        c_mapped($_)
    } $x, $x + 1;
    return $add->($x) + $mapped[0];
}

sub c_in_closure {
    my ($x) = @_;
    return c_leaf_add($x);
}

sub c_mapped {
    my ($x) = @_;
    note('c_mapped');
    $x = $x * 3 % 1009 for 1 .. 60;
    return $x;
}

sub c_dies {
    my ($x) = @_;
    eval {
        $x += c_before_death($x);
        die "no $x\n";
    };
    return $x + c_after_death(length $@);
}

sub c_before_death {
    my ($x) = @_;
    note('c_before_death');
    $x += $_ & 3 for 1 .. 60;
    return $x;
}

sub c_after_death {
    my ($x) = @_;
    note('c_after_death');
    $x ^= $_ for 1 .. 60;
    return $x;
}

sub c_evaluated {
    my ($x) = @_;
    return eval "\n\nc_in_string(\$x)";
}

sub c_in_string {
    my ($x) = @_;
    note('c_in_string');
    $x = $x * 3 % 1019 for 1 .. 60;
    return $x;
}

sub c_jumps {
    my ($x) = @_;
    return c_jumper($x);
}

sub c_jumper {
    goto &c_jumped;
}

sub c_jumped {
    my ($x) = @_;
    $x = $x * 3 % 1021 for 1 .. 60;
    return $x;
}

sub c_replace {
    my ($x) = @_;
    my $text = "a$x b$x";
    $text =~ s/(\d+)/c_replaced($1)/ge;
    $text =~ /b(?{ c_in_pattern($x) })/;
    return length $text;
}

sub c_replaced {
    my ($x) = @_;
    note('c_replaced');
    $x = $x * 3 % 1019 for 1 .. 60;
    return $x;
}

sub c_in_pattern {
    my ($x) = @_;
    note('c_in_pattern');
    $x = $x * 3 % 1049 for 1 .. 60;
    return $x;
}

sub c_operators {
    my ($x) = @_;
    my $number = bless \$x, 'Number';
    my $sum = $number + 3;
    tie my $tied, 'Tied', $x;
    return $sum + ($number <=> 5) +
        $tied;
}

sub c_signal {
    my ($x) = @_;
    kill USR1 => $$;
    return $x;
}

sub c_handler {
    c_handled(7);
}

sub c_handled {
    my ($x) = @_;
    note('c_handled');
    $x = $x * 3 % 1051 for 1 .. 60;
    return $x;
}

sub c_required {
    my ($x) = @_;
    local our $number = $x;
    return do "$FindBin::Bin/required.pl";
}

sub c_in_required {
    my ($x) = @_;
    note('c_in_required');
    $x = $x * 3 % 1061 for 1 .. 60;
    return $x;
}

sub c_run {
    my ($x) = @_;
    $x += c_deep($x, 20);
    $x += $shape->c_method($x);
    $x += $shape->anything($x);
    $x += c_sort($x);
    $x += c_closure($x);
    $x += c_dies($x);
    $x += c_evaluated($x);
    $x += c_jumps($x);
    $x += c_replace($x);
    $x += c_operators($x);
    $x += c_signal($x);
    $x += c_required($x);
    return $x & 65535;
}

$SIG{USR1} = \&c_handler;
open($account, '>', $ARGV[0]) or die "$ARGV[0]: $!";
$| = 1;
my $x = c_run(1);
print "ready\n";
while (1) {
    $x = c_run($x);
}
