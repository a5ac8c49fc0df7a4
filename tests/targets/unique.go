// Each leaf is called only by its own parent, and that only by its own root, on its own goroutine,
// until SIGTERM. Leaves are short, grow the stack, or end in the runtime, on the system stack or in
// the vDSO. Each goroutine makes way for the next one after some milliseconds of work: on a busy
// machine, Go's monitor hardly runs and preempts none.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

var sink uint64

//go:noinline
func leafShort(n uint64) uint64 { return n*2654435761 ^ n>>3 }

//go:noinline
func parentShort(n uint64) uint64 { return leafShort(n) + 1 }

//go:noinline
func rootShort() {
	for {
		for turn := 0; turn < 2000000; turn++ {
			sink += parentShort(sink)
		}
		runtime.Gosched()
	}
}

func inlinedInner(n uint64) uint64 {
	for i := uint64(0); i < 50; i++ {
		n = n*6364136223846793005 + i
	}
	return n
}

func inlinedOuter(n uint64) uint64 { return inlinedInner(n) ^ 7 }

//go:noinline
func parentInlined(n uint64) uint64 { return inlinedOuter(n) + 1 }

//go:noinline
func rootInlined() {
	for {
		for turn := 0; turn < 60000; turn++ {
			sink += parentInlined(sink)
		}
		runtime.Gosched()
	}
}

//go:noinline
func leafDeep(n int) int {
	var pad [20]int
	pad[n%20] = n
	if n == 0 {
		return pad[0]
	}
	return leafDeep(n-1) + pad[n%20]
}

//go:noinline
func parentDeep() int { return leafDeep(30) + 1 }

//go:noinline
func rootDeep() {
	for {
		for turn := 0; turn < 50000; turn++ {
			sink += uint64(parentDeep())
		}
		runtime.Gosched()
	}
}

//go:noinline
func leafTime() int64 { return time.Now().UnixNano() }

//go:noinline
func parentTime() int64 { return leafTime() + 1 }

//go:noinline
func rootTime() {
	for {
		for turn := 0; turn < 100000; turn++ {
			sink += uint64(parentTime())
		}
		runtime.Gosched()
	}
}

var kept []byte

//go:noinline
func leafMake(n int) []byte { return make([]byte, 40000+n) }

//go:noinline
func parentMake(n int) int {
	kept = leafMake(n)
	return len(kept)
}

//go:noinline
func rootMake() {
	for {
		for turn := 0; turn < 1000; turn++ {
			sink += uint64(parentMake(turn % 7))
		}
		runtime.Gosched()
	}
}

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	for _, root := range []func(){rootShort, rootInlined, rootDeep, rootTime, rootMake} {
		go root()
	}
	time.Sleep(50 * time.Millisecond)
	fmt.Println("ready")
	<-end
	os.Exit(17)
}
