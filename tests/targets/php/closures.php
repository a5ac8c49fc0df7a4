<?php
// Closures that are made, called and dropped. `in NAME` marks each line that calls `work`, or what
// calls it, in the function of this name.
function work($count) {
    $sum = 0;
    for ($at = 0; $at < $count; $at++) $sum += $at % 7; // in work
    return $sum;
}

function declared($count) {
    return work($count); // in declared
}

class Maker {
    private $one = 1;

    private function method($count) {
        return work($count) + $this->one; // in Maker::method
    }

    static function common($count) {
        return work($count); // in Maker::common
    }

    function run() {
        $copy = $this->method(...);
        $sum = $copy(300); // in Maker::run
        $copy = self::common(...);
        $sum += $copy(300); // in Maker::run
        $closure = fn($count) => work($count) + $this->one; // in Maker::{closure}
        $sum += $closure(300); // in Maker::run
        return $sum;
    }
}

function make($number) {
    return function ($count) use ($number) {
        $nested = fn($count) => work($count); // in {closure}
        return $nested($count) + $number; // in {closure}
    };
}

function run() {
    $sum = make(1)(300); // in run
    $sum += (declared(...))(300); // in run
    $sum += array_sum(array_map(fn($count) => work($count), [100, 100])); // in run {closure}
    $sum += array_sum(array_map(static function ($count) { // in run
        return work($count); // in {closure}
    }, [100, 100]));
    $sum += (new Maker())->run(); // in run
    return $sum;
}

echo "ready\n";
while (true) run(); // in {main}
