// Go calls C, which may call Go back, until SIGTERM. Every function has one caller: rootX is the
// goroutine, parent_x the C function that it calls, and calledX what that calls back. On a thread
// of C, root_thread calls back first.
package main

// int parent_plain(int);
// int parent_general(int);
// int parent_sorted(int);
// int parent_kernel(int);
// int parent_clock(int);
// int parent_back(int);
// int parent_moved(int);
// int parent_inner(int);
// int parent_outer(int);
// int parent_nested(int);
// int parent_thread(int);
// void begin_thread(void);
import "C"

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
func leafBack(n uint64) uint64 {
	for i := uint64(0); i < 1000; i++ {
		n = n*6364136223846793005 + i
	}
	return n
}

//go:noinline
func leafThread(n uint64) uint64 {
	for i := uint64(0); i < 1000; i++ {
		n = n*6364136223846793005 + i
	}
	return n
}

// Uses more stack than a new goroutine has.
//
//go:noinline
func leafMoved(n int) int {
	var pad [128]int
	pad[n%128] = n
	if n == 0 {
		return pad[0]
	}
	return leafMoved(n-1) + pad[n%128]
}

//export calledBack
func calledBack(n C.int) C.int { return C.int(leafBack(uint64(n))) | 1 }

//export calledMoved
func calledMoved(n C.int) C.int { return C.int(leafMoved(64)) | 1 }

//export calledOuter
func calledOuter(n C.int) C.int { return C.parent_inner(n) | 1 }

//export calledNested
func calledNested(depth C.int) C.int { return C.parent_nested(depth) | 1 }

//export calledThread
func calledThread(n C.int) C.int {
	return C.int(leafThread(uint64(n))) | C.parent_thread(n)
}

//go:noinline
func rootPlain() { sink += uint64(C.parent_plain(4000)) }

//go:noinline
func rootGeneral() { sink += uint64(C.parent_general(4000)) }

//go:noinline
func rootSorted() { sink += uint64(C.parent_sorted(200)) }

//go:noinline
func rootKernel() { sink += uint64(C.parent_kernel(10000)) }

//go:noinline
func rootClock() { sink += uint64(C.parent_clock(50000)) }

//go:noinline
func rootBack() { sink += uint64(C.parent_back(2000)) }

//go:noinline
func rootMoved() { sink += uint64(C.parent_moved(4000)) }

//go:noinline
func rootOuter() { sink += uint64(C.parent_outer(10000)) }

//go:noinline
func rootNested() { sink += uint64(C.parent_nested(20)) }

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	roots := []func(){
		rootPlain, rootGeneral, rootSorted, rootKernel, rootClock, rootBack, rootMoved,
		rootOuter, rootNested,
	}
	for _, root := range roots {
		go repeat(root)
	}
	C.begin_thread()
	time.Sleep(50 * time.Millisecond)
	fmt.Println("ready")
	<-end
	os.Exit(17)
}

// repeat runs each turn on a goroutine of its own, whose stack is small.
func repeat(root func()) {
	for {
		done := make(chan bool)
		go func() {
			root()
			done <- true
		}()
		<-done
		runtime.Gosched()
	}
}
