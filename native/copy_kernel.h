/* The copy kernel: gather scattered byte ranges into one contiguous destination.
 *
 * Free of Python.h, so that it can be tested and fuzzed alone. Every function may run without the GIL.
 */
#ifndef ROLLFERRY_COPY_KERNEL_H
#define ROLLFERRY_COPY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum { RF_MAX_THREADS = 16 };

typedef struct {
    const void *address;
    size_t nbytes;
} rf_span;

/* Call `work` with each of `n` parts of `size` bytes, on as many threads, this one included, and wait for all. Parts for which
 * no thread can be started are worked on here. */
void rf_work_on_parts(void *(*work)(void *), void *parts, size_t size, int n);

/* Sum of the lengths of `n` spans into *total; -1 if it does not fit SIZE_MAX / 2. */
int rf_span_total(const rf_span *spans, size_t n, size_t *total);

/* Copy bytes [start, start + nbytes) of the concatenation of `n` spans to `dest`.
 *
 * `threads` > 1 splits the work by bytes over that many threads, this one included; where a thread cannot be
 * started its part is done here. Returns 0, or -1 (nothing written) if the range is not inside the concatenation. */
int rf_gather(const rf_span *spans, size_t n, size_t start, void *dest, size_t nbytes, int threads);

#endif
