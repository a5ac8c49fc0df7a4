<?php
// single.php includes this file again and again.
if (!function_exists('c_in_include')) {
    function c_in_include(int $x): int
    {
        for ($i = 0; $i < 200; $i++) {
            $x = $x * 3 % 1033;
        }
        return $x;
    }
}
return c_in_include($x);
