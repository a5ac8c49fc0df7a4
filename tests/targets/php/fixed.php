<?php
// Does a fixed amount of work when it is told to, and prints what time that took.
//
//   fixed.php ROUNDS DEPTH
//
// The work is done below so many calls. It begins after a line on standard input.

function count_words(string $text): array
{
    $counts = [];
    foreach (explode(' ', $text) as $word) {
        $counts[$word] = ($counts[$word] ?? 0) + 1;
    }
    arsort($counts);
    return $counts;
}

function fibonacci(int $n): int
{
    return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2);
}

function work(int $rounds): void
{
    global $text;
    for ($round = 0; $round < $rounds; $round++) {
        fibonacci(12);
        count_words($text);
    }
}

function below(int $depth, int $rounds): void
{
    $depth ? below($depth - 1, $rounds) : work($rounds);
}

function cpu_ms(): float
{
    $used = getrusage();
    $ms = fn($kind) => $used["ru_$kind.tv_sec"] * 1e3 + $used["ru_$kind.tv_usec"] / 1e3;
    return $ms('utime') + $ms('stime');
}

$text = implode(' ', array_map(fn($i) => 'word' . $i * 7919 % 503, range(0, 1999)));
fgets(STDIN);
[$start, $start_cpu] = [hrtime(true), cpu_ms()];
below((int) $argv[2], (int) $argv[1]);
echo 'elapsed_ms ', (hrtime(true) - $start) / 1e6, "\n";
echo 'cpu_ms ', cpu_ms() - $start_cpu, "\n";
