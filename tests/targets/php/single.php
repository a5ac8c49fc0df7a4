<?php
// Functions whose names begin with `c_`, each with one caller among them. A comment behind a call
// says which function it calls, so the caller's frame is at that line. Between the two may be
// closures, functions in C, and other functions.
//
// usage: single.php [seconds]

namespace {

function c_leaf_add(int $x): int
{
    for ($i = 0; $i < 300; $i++) {
        $x = $x * 3 + $i;
        $x %= 1000003;
    }
    return $x;
}

function c_leaf_text(int $x): int
{
    $text = str_repeat("abc $x ", 40);
    $text = strtoupper($text) . strrev($text);
    return strlen(str_replace('B', 'xyz', $text)) + crc32($text);
}

function c_leaf_array(int $x): int
{
    $all = [];
    for ($i = 0; $i < 60; $i++) {
        $all["k$i"] = $x ^ $i;
    }
    asort($all);
    return count($all) + $all['k7'];
}

function c_deep(int $x, int $depth): int
{
    if ($depth > 0) {
        return c_deep($x + 1, $depth - 1); // calls c_deep
    }
    return c_deepest($x); // calls c_deepest
}

function c_deepest(int $x): int
{
    for ($i = 0; $i < 600; $i++) {
        $x = ($x << 1) % 1000003;
    }
    return $x;
}

class Shape
{
    private array $seen = [];

    public function c_method(int $x): int
    {
        return self::c_static($x) & 1023; // calls c_static
    }

    public static function c_static(int $x): int
    {
        $object = new static();
        return $object->c_private($x); // calls c_private
    }

    private function c_private(int $x): int
    {
        $this->seen[$x & 7] = $x;
        return c_leaf_text($x) + count($this->seen); // calls c_leaf_text
    }

    public function __call(string $name, array $arguments): int
    {
        return c_called($arguments[0]);
    }

    public static function __callStatic(string $name, array $arguments): int
    {
        return c_called_static($arguments[0]);
    }
}

function c_called(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x ^= $i * 7;
    }
    return $x;
}

function c_called_static(int $x): int
{
    return c_leaf_called($x) & 511; // calls c_leaf_called
}

function c_leaf_called(int $x): int
{
    return array_sum(range(0, 200)) + $x;
}

function c_magic(int $x): int
{
    $shape = new Shape();
    $x += $shape->anything($x); // calls c_called
    return $x + Shape::something($x); // calls c_called_static
}

function c_mapped(int $x): int
{
    return c_leaf_array($x); // calls c_leaf_array
}

function c_map(int $x): int
{
    $all = array_map('c_mapped', [$x, $x + 1]); // calls c_mapped
    return array_sum($all);
}

function c_closure(int $x): int
{
    $add = fn (int $y): int => c_in_closure($y) + $x;
    $compare = function ($a, $b) use ($x) {
        return $a <=> $b + c_in_compare($x);
    };
    $list = [$x, 5, 3];
    usort($list, $compare); // calls c_in_compare
    return $add($x) & 1023; // calls c_in_closure
}

function c_in_closure(int $x): int
{
    return c_leaf_add($x); // calls c_leaf_add
}

function c_in_compare(int $x): int
{
    for ($i = 0; $i < 100; $i++) {
        $x = $x * 5 % 10007;
    }
    return $x & 1;
}

function c_generator(int $x): \Generator
{
    for ($i = 0; $i < 3; $i++) {
        yield c_in_generator($x + $i); // calls c_in_generator
    }
}

function c_in_generator(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 7 % 1009;
    }
    return $x;
}

function c_outer_generator(int $x): \Generator
{
    $x += 1;
    yield from c_middle_generator($x); // calls c_middle_generator
}

function c_middle_generator(int $x): \Generator
{
    $x += 1;
    yield 1;
    yield from c_inner_generator($x); // calls c_inner_generator
}

function c_inner_generator(int $x): \Generator
{
    yield c_in_inner($x); // calls c_in_inner
    yield 2;
}

function c_in_inner(int $x): int
{
    for ($i = 0; $i < 300; $i++) {
        $x = $x * 11 % 1009;
    }
    return $x;
}

function c_iterate(int $x): int
{
    $sum = 0;
    foreach (c_generator($x) as $value) { // calls c_generator
        $sum += $value;
    }
    $generator = c_outer_generator($x); // calls c_outer_generator
    while ($generator->valid()) { // calls c_outer_generator
        $sum += $generator->current(); // calls c_outer_generator
        $generator->next(); // calls c_outer_generator
    }
    return $sum;
}

function c_throws(int $x): int
{
    try {
        c_thrower($x); // calls c_thrower
    } catch (\RuntimeException $e) {
        $x = c_after_catch(strlen($e->getMessage())); // calls c_after_catch
    } finally {
        $x += c_in_finally($x); // calls c_in_finally
    }
    return $x;
}

function c_thrower(int $x): never
{
    $x += c_before_throw($x); // calls c_before_throw
    throw new \RuntimeException("no $x");
}

function c_before_throw(int $x): int
{
    return c_leaf_before($x); // calls c_leaf_before
}

function c_leaf_before(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x += $i & 3;
    }
    return $x;
}

function c_after_catch(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x ^= $i;
    }
    return $x;
}

function c_in_finally(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x + $i & 4095;
    }
    return $x;
}

function c_fiber(int $x): int
{
    $fiber = new Fiber('c_in_fiber');
    $fiber->start($x); // calls c_in_fiber
    $fiber->resume(4); // calls c_in_fiber
    return $fiber->getReturn();
}

function c_in_fiber(int $x): int
{
    $x += c_before_suspend($x); // calls c_before_suspend
    $x += Fiber::suspend();
    return $x + c_after_suspend($x); // calls c_after_suspend
}

function c_before_suspend(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 3 % 1009;
    }
    return $x;
}

function c_after_suspend(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 3 % 1013;
    }
    return $x;
}

function c_included(int $x): int
{
    return (include __DIR__ . '/included.php') + $x; // calls c_in_include
}

function c_evaluated(int $x): int
{
    return eval('return c_in_eval($x);'); // calls c_in_eval
}

function c_in_eval(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 3 % 1019;
    }
    return $x;
}

function c_replaced(array $found): string
{
    for ($i = 0; $i < 200; $i++) {
        $found[1] = $found[1] * 3 % 1019;
    }
    return (string) $found[1];
}

function c_replace(int $x): int
{
    return (int) preg_replace_callback('/(\d+)/', 'c_replaced', "a$x b$x"); // calls c_replaced
}

class Dies
{
    public function __construct(private int $x)
    {
    }

    public function __destruct()
    {
        c_in_destructor($this->x);
    }
}

function c_in_destructor(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 3 % 1021;
    }
    return $x;
}

function c_lives(int $x): int
{
    $object = new Dies($x);
    $object = null; // calls c_in_destructor
    return $x;
}

}

namespace Some\Name {

function c_named(int $x): int
{
    return c_leaf_named($x); // calls c_leaf_named
}

function c_leaf_named(int $x): int
{
    for ($i = 0; $i < 200; $i++) {
        $x = $x * 3 % 1031;
    }
    return $x;
}

}

namespace {

function c_run(int $x): int
{
    $x += c_deep($x, 20); // calls c_deep
    $x += (new Shape())->c_method($x); // calls c_method
    $x += c_magic($x); // calls c_magic
    $x += c_map($x); // calls c_map
    $x += c_closure($x); // calls c_closure
    $x += c_iterate($x); // calls c_iterate
    $x += c_throws($x); // calls c_throws
    $x += c_fiber($x); // calls c_fiber
    $x += c_included($x); // calls c_included
    $x += c_evaluated($x); // calls c_evaluated
    $x += c_replace($x); // calls c_replace
    $x += c_lives($x); // calls c_lives
    $x += \Some\Name\c_named($x); // calls c_named
    return $x & 65535;
}

echo "ready\n";
$end = microtime(true) + (float) ($argv[1] ?? 3600);
$x = 1;
while (microtime(true) < $end) {
    $x = c_run($x); // calls c_run
}

}
