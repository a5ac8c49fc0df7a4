<?php
// Functions that are made all the time, each called by one whose name ends with the same digit.

function stub_0($f, $x) { return $f($x); }
function stub_1($f, $x) { return $f($x); }
function stub_2($f, $x) { return $f($x); }
function stub_3($f, $x) { return $f($x); }

$work = 'for ($i = 0; $i < 3000; $i++) { $x = $x * 7 % 1009; }';
echo "ready\n";
for ($number = 0;; $number++) {
    $digit = $number & 3;
    $stub = "stub_$digit";
    // A class without a name, whose method lives as long as the process, and a closure that does
    // not.
    $made = eval("return new class { public function made_$digit(\$x) { $work return \$x; } };");
    $stub([$made, "made_$digit"], $number);
    $leaf = eval("return new class { public static function leaf_$digit(): Closure {
        return function (\$x) { $work return \$x; }; } };");
    $stub($leaf::{"leaf_$digit"}(), $number);
    $file = sys_get_temp_dir() . "/traceprof-churn-" . getmypid() . ".php";
    if ($number % 50 === 0) {
        file_put_contents($file, "<?php function file_{$number}_$digit(\$x) { $work return \$x; }");
        include $file;
        unlink($file);
        $stub("file_{$number}_$digit", $number);
    }
    if ($number >= 1000000) {
        exit(17);
    }
}
