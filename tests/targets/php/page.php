<?php
// A page of a web server: work of a known structure, and how the server compiled the file.

function p_page(int $number): int
{
    $sum = 0;
    foreach (range(1, 20) as $row) {
        $sum += p_row($number + $row); // calls p_row
    }
    return $sum;
}

function p_row(int $number): int
{
    return p_cell($number) + p_text($number); // calls p_cell p_text
}

function p_cell(int $x): int
{
    for ($i = 0; $i < 2000; $i++) {
        $x = $x * 3 % 10007;
    }
    return $x;
}

function p_text(int $x): int
{
    return array_sum(array_map(fn ($y) => p_shorten($y), range(0, 30))) + $x; // calls p_shorten
}

function p_shorten(int $x): int
{
    return strlen(str_repeat("x$x", 30));
}

header('Content-Type: text/plain');
echo p_page((int) ($_GET['number'] ?? 1)), "\n"; // calls p_page
