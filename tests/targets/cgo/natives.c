// The C functions of main.go. Each leaf has code of its own, so that compilers do not merge them.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// Functions of main.go.
int calledBack(int turn);
int calledMoved(int turns);
int calledOuter(int turns);
int calledNested(int depth);
int calledThread(int turns);

#define APART __attribute__((noinline, noclone))

static volatile uint64_t sink;

#define LEAF(name, number)                                                                        \
	APART uint64_t leaf_##name(uint64_t turns)                                                \
	{                                                                                         \
		uint64_t sum = sink;                                                              \
		for (uint64_t at = 0; at < turns; at++) {                                         \
			sum = sum * 6364136223846793005u + (at ^ number);                         \
			__asm__ volatile("" : "+r"(sum));                                         \
		}                                                                                 \
		return sink = sum;                                                                \
	}

LEAF(plain, 1)
LEAF(general, 2)
LEAF(back, 3)
LEAF(moved, 4)
LEAF(inner, 5)
LEAF(nested, 6)
LEAF(thread, 7)

APART int parent_plain(int turns)
{
	uint64_t sum = 0;
	for (int at = 0; at < turns; at++)
		sum += leaf_plain(500);
	return (int)sum | 1;
}

// The frame pointer's register has some other value while the leaf runs. The compiler may have
// values of its own in the red zone.
APART int parent_general(int turns)
{
	uint64_t sum = 0;
	for (uint64_t at = 0; at < (uint64_t)turns; at++) {
		uint64_t other = at * 0x9e3779b97f4a7c15u;
		__asm__ volatile(".cfi_remember_state; lea -128(%%rsp), %%rsp\n\t"
				 ".cfi_adjust_cfa_offset 128\n\t"
				 "push %%rbp\n\t"
				 ".cfi_adjust_cfa_offset 8; .cfi_rel_offset rbp, 0\n\t"
				 "mov %1, %%rbp; sub $8, %%rsp\n\t"
				 ".cfi_adjust_cfa_offset 8\n\t"
				 "mov $500, %%edi; call *%2; add $8, %%rsp\n\t"
				 ".cfi_adjust_cfa_offset -8\n\t"
				 "pop %%rbp\n\t"
				 ".cfi_restore_state; .cfi_adjust_cfa_offset 128\n\t"
				 "lea 128(%%rsp), %%rsp\n\t"
				 ".cfi_adjust_cfa_offset -128"
				 : "=&a"(sum)
				 : "r"(other), "r"(leaf_general)
				 : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
	}
	return (int)sum | 1;
}

int leaf_sorted(const void *one, const void *other)
{
	return *(const int *)one - *(const int *)other;
}

APART int parent_sorted(int turns)
{
	int values[256];
	for (int turn = 0; turn < turns; turn++) {
		for (int at = 0; at < 256; at++)
			values[at] = (at * 7919 + turn) % 256;
		qsort(values, 256, sizeof values[0], leaf_sorted);
	}
	return values[3] | 1;
}

// Most of its time is in the kernel.
APART int parent_kernel(int turns)
{
	int sum = 0;
	for (int turn = 0; turn < turns; turn++)
		sum += getppid() > 0;
	return sum | 1;
}

APART int parent_clock(int turns)
{
	struct timespec now = {0, 0};
	for (int turn = 0; turn < turns; turn++)
		clock_gettime(CLOCK_MONOTONIC, &now);
	return (int)now.tv_sec | 1;
}

APART int parent_back(int turns)
{
	uint64_t sum = 0;
	for (int turn = 0; turn < turns; turn++) {
		sum += leaf_back(200);
		sum += (uint64_t)calledBack(turn);
	}
	return (int)sum | 1;
}

// The callback makes the goroutine's stack move. From then on the frame pointer that is saved here
// leads to memory that is free.
APART int parent_moved(int turns)
{
	uint64_t sum = (uint64_t)calledMoved(turns);
	for (int turn = 0; turn < turns; turn++)
		sum += leaf_moved(500);
	return (int)sum | 1;
}

APART int parent_inner(int turns)
{
	uint64_t sum = 0;
	for (int turn = 0; turn < turns; turn++)
		sum += leaf_inner(200);
	return (int)sum | 1;
}

APART int parent_outer(int turns)
{
	return calledOuter(turns) | 1;
}

APART int parent_nested(int depth)
{
	uint64_t sum = leaf_nested(20000);
	if (depth > 0)
		sum += (uint64_t)calledNested(depth - 1);
	return (int)sum | 1;
}

APART int parent_thread(int turns)
{
	uint64_t sum = 0;
	for (int turn = 0; turn < turns; turn++)
		sum += leaf_thread(200);
	return (int)sum | 1;
}

void *root_thread(void *unused)
{
	(void)unused;
	for (;;)
		sink += (uint64_t)calledThread(10);
	return NULL;
}

void begin_thread(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, root_thread, NULL) != 0)
		abort();
}
