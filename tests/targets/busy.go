// Computes for about two seconds of CPU time and ends with its own code.
package main

import (
	"os"
	"time"
)

//go:noinline
func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

func main() {
	sum := 0
	for start := time.Now(); time.Since(start) < 2*time.Second; {
		sum += fib(20)
	}
	if sum == 0 {
		os.Exit(1)
	}
	os.Exit(46)
}
