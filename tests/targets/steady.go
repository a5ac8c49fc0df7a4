// Goroutines on deep stacks, garbage and its collection, until SIGTERM. Each checks its results.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

var wrong int64

//go:noinline
func deep(n int) int {
	if n == 0 {
		return 0
	}
	var pad [64]int
	pad[n%64] = n
	return deep(n-1) + pad[n%64] - n
}

func work() {
	for {
		if deep(500) != 0 {
			atomic.AddInt64(&wrong, 1)
		}
		_ = make([]byte, 10000)
	}
}

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	for i := 0; i < 8; i++ {
		go work()
	}
	go func() {
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	// The first timer makes the runtime open its poller.
	time.Sleep(50 * time.Millisecond)
	fmt.Println("ready")
	<-end
	fmt.Println("wrong", atomic.LoadInt64(&wrong))
	os.Exit(17)
}
