<?php
// Functions whose shares of the CPU time the program measures itself.
//
// usage: shares.php FILE: once the file is there, prints the microseconds of each function.

function turns(int $count, int $x): int
{
    for ($i = 0; $i < $count; $i++) {
        $x = $x * 3 % 1000003;
    }
    return $x;
}

function s_half(int $x): int
{
    return turns(40000, $x);
}

function s_third(int $x): int
{
    return turns(25000, $x);
}

function s_text(int $x): int
{
    $text = str_repeat("some text $x", 4000);
    return crc32(strrev($text)) & 1023;
}

$spent = ['s_half' => 0, 's_third' => 0, 's_text' => 0];
echo "ready\n";
$x = 1;
while (!file_exists($argv[1])) {
    foreach ($spent as $function => $before) {
        $start = getrusage();
        $x = $function($x);
        $now = getrusage();
        $spent[$function] += ($now['ru_utime.tv_sec'] - $start['ru_utime.tv_sec']) * 1000000
            + $now['ru_utime.tv_usec'] - $start['ru_utime.tv_usec'];
    }
}
foreach ($spent as $function => $time) {
    echo "$function $time\n";
}
exit(17);
