/* Time what one RA_PERF mark costs, beside what the clock's own two readings cost. */
#define _POSIX_C_SOURCE 199309L
#include <inttypes.h>
#include <stdio.h>

#define RA_PERF_ENABLED
#define RA_PERF_CAPACITY 4096
#include "ra_perf.h"

static volatile uint64_t sink;
extern struct ra_perf_buffer perf; /* seen by other files, so that no store to it is dropped */
struct ra_perf_buffer perf;

static uint64_t marked(void)
{
	const uint64_t began = ra_perf_monotonic_ns();
	int i;

	perf.used = 0;
	for (i = 0; i < RA_PERF_CAPACITY; i++) {
		RA_PERF_BEGIN(step);
		RA_PERF_END(perf, step, "pta", "empty", "plain");
	}
	return ra_perf_monotonic_ns() - began;
}

static uint64_t clocked(void)
{
	const uint64_t began = ra_perf_monotonic_ns();
	int i;

	for (i = 0; i < RA_PERF_CAPACITY; i++) {
		const uint64_t first = ra_perf_monotonic_ns();

		sink = ra_perf_monotonic_ns() - first;
	}
	return ra_perf_monotonic_ns() - began;
}

int main(void)
{
	int round;

	for (round = 0; round < 200; round++) {
		const uint64_t with_mark = marked();
		const uint64_t clock_alone = clocked();

		printf("%" PRIu64 " %" PRIu64 "\n", with_mark, clock_alone);
	}
	return 0;
}
