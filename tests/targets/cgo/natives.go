// The C functions. A file with functions for C, such as main.go, cannot contain any.
package main

/*
#cgo CFLAGS: -O2 -g -fomit-frame-pointer
#include "natives.c"
*/
import "C"
