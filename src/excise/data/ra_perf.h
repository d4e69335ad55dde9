/*
 * ra_perf.h: time the steps of a C program, one RA_PERF line a step.
 *
 * C99, no allocation, no dependency where the three macros below are given. Marks go into a buffer
 * of set size and are printed in one batch after the last time stamp; the batch ends with what
 * printing took (perf_flush), and with the marks that found no room (perf_overflow), if any. All of
 * it is compiled out unless RA_PERF_ENABLED is defined.
 *
 *     #define _POSIX_C_SOURCE 199309L
 *     #define RA_PERF_ENABLED
 *     #include "ra_perf.h"
 *
 *     RA_PERF_BUFFER(perf);
 *     void sign_ecdsa(void);
 *
 *     int main(void)
 *     {
 *         RA_PERF_BEGIN(whole);
 *         RA_PERF_BEGIN(sign);
 *         sign_ecdsa();
 *         RA_PERF_END(perf, sign, "pta", "sign_ecdsa", "plain");
 *         RA_PERF_END(perf, whole, "pta", "cmd_total", "plain");
 *         RA_PERF_FLUSH(perf, "pta", "plain");
 *         return 0;
 *     }
 *
 * The first line shows CLOCK_MONOTONIC under -std=c99; RA_PERF_NOW and RA_PERF_HZ do without it.
 *
 * Layer, event and key are string literals of lower-case letters, digits and _. A key with labels,
 * such as "plain|build=imx_caam", prints them too.
 *
 * RA_PERF_CAPACITY   marks between two flushes (16)
 * RA_PERF_NOW()      ticks as uint64_t (CLOCK_MONOTONIC in ns)
 * RA_PERF_HZ         ticks a second, needed with RA_PERF_NOW; printed as <layer>|cntfrq then
 * RA_PERF_PUTS(s)    print a text that ends its own lines (fputs to stdout, then fflush)
 *
 * A buffer belongs to one thread. The line is that of iisec-suzaki/optee-ra,
 * docs/performance-measurement.md: RA_PERF|<layer>|<event>|<duration_us>|key=<mode>
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef RA_PERF_H
#define RA_PERF_H

#ifdef RA_PERF_ENABLED

#include <stddef.h>
#include <stdint.h>

#ifndef RA_PERF_CAPACITY
#define RA_PERF_CAPACITY 16
#endif

#ifdef RA_PERF_NOW
#ifndef RA_PERF_HZ
#error "RA_PERF_NOW needs RA_PERF_HZ, its ticks a second"
#endif
#define RA_PERF_PRINTS_HZ 1
#else
#include <time.h>
#ifndef CLOCK_MONOTONIC
#error "define _POSIX_C_SOURCE 199309L before the first include, or give RA_PERF_NOW and RA_PERF_HZ"
#endif
#define RA_PERF_HZ 1000000000u
#define RA_PERF_PRINTS_HZ 0
static inline uint64_t ra_perf_monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
#define RA_PERF_NOW() ra_perf_monotonic_ns()
#endif

#ifndef RA_PERF_PUTS
#include <stdio.h>
static inline void ra_perf_puts(const char *text)
{
	fputs(text, stdout);
	fflush(stdout);
}
#define RA_PERF_PUTS(text) ra_perf_puts(text)
#endif

#define RA_PERF_LINE_BYTES 192

struct ra_perf_mark {
	const char *layer;
	const char *event;
	const char *key;
	uint64_t ticks;
};

struct ra_perf_buffer {
	size_t used;
	uint64_t lost;
	struct ra_perf_mark marks[RA_PERF_CAPACITY];
};

static inline void ra_perf_note(struct ra_perf_buffer *buffer, const char *layer,
				const char *event, const char *key, uint64_t ticks)
{
	struct ra_perf_mark *mark;

	if (buffer->used >= RA_PERF_CAPACITY) {
		buffer->lost++;
		return;
	}
	mark = &buffer->marks[buffer->used++];
	mark->layer = layer;
	mark->event = event;
	mark->key = key;
	mark->ticks = ticks;
}

/* Append a text; return the length after it, or RA_PERF_LINE_BYTES when it does not fit. */
static inline size_t ra_perf_append(char *line, size_t length, const char *text)
{
	while (*text != '\0' && length < RA_PERF_LINE_BYTES)
		line[length++] = *text++;
	return length;
}

/* Print one line; return 0 when it is longer than a line may be, and was not printed. */
static inline int ra_perf_line(const char *layer, const char *event, const char *key,
			       uint64_t value)
{
	char line[RA_PERF_LINE_BYTES + 1];
	char digits[21];
	size_t place = sizeof(digits) - 1;
	size_t length;

	digits[place] = '\0';
	do {
		digits[--place] = (char)('0' + (int)(value % 10u));
		value /= 10u;
	} while (value != 0u);
	length = ra_perf_append(line, 0, "RA_PERF|");
	length = ra_perf_append(line, length, layer);
	length = ra_perf_append(line, length, "|");
	length = ra_perf_append(line, length, event);
	length = ra_perf_append(line, length, "|");
	length = ra_perf_append(line, length, digits + place);
	length = ra_perf_append(line, length, "|key=");
	length = ra_perf_append(line, length, key);
	length = ra_perf_append(line, length, "\n");
	if (length >= RA_PERF_LINE_BYTES)
		return 0;
	line[length] = '\0';
	RA_PERF_PUTS(line);
	return 1;
}

static inline uint64_t ra_perf_us(uint64_t ticks)
{
	const uint64_t hz = (uint64_t)RA_PERF_HZ;

	return ticks / hz * 1000000u + ticks % hz * 1000000u / hz;
}

static inline void ra_perf_flush(struct ra_perf_buffer *buffer, const char *layer, const char *key)
{
	uint64_t began;
	uint64_t lost = buffer->lost;
	size_t i;

	if (buffer->used == 0 && lost == 0u)
		return;
	began = RA_PERF_NOW();
	if (RA_PERF_PRINTS_HZ)
		ra_perf_line(layer, "cntfrq", "-", (uint64_t)RA_PERF_HZ);
	for (i = 0; i < buffer->used; i++) {
		const struct ra_perf_mark *mark = &buffer->marks[i];

		if (!ra_perf_line(mark->layer, mark->event, mark->key, ra_perf_us(mark->ticks)))
			lost++;
	}
	buffer->used = 0;
	buffer->lost = 0;
	ra_perf_line(layer, "perf_flush", key, ra_perf_us(RA_PERF_NOW() - began));
	if (lost != 0u)
		ra_perf_line(layer, "perf_overflow", key, lost);
}

#define RA_PERF_BUFFER(buffer) static struct ra_perf_buffer buffer
#define RA_PERF_BEGIN(mark) const uint64_t mark = RA_PERF_NOW()
#define RA_PERF_END(buffer, mark, layer, event, key) \
	ra_perf_note(&(buffer), layer, event, key, RA_PERF_NOW() - (mark))
#define RA_PERF_FLUSH(buffer, layer, key) ra_perf_flush(&(buffer), layer, key)

#else /* RA_PERF_ENABLED */

/* Declarations that need no storage, of names that may stay unused. */
#define RA_PERF_BUFFER(buffer) struct buffer##_is_compiled_out
#define RA_PERF_BEGIN(mark) enum { mark }
#define RA_PERF_END(buffer, mark, layer, event, key) ((void)(mark))
#define RA_PERF_FLUSH(buffer, layer, key) ((void)0)

#endif /* RA_PERF_ENABLED */
#endif /* RA_PERF_H */
