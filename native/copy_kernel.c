#include "copy_kernel.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { PREFETCH_AHEAD = 6, CACHE_LINE = 64 };

typedef struct {
    const rf_span *spans;
    size_t skip; /* bytes of the first span that lie before the part */
    char *dest;
    size_t nbytes;
} part;

void rf_work_on_parts(void *(*work)(void *), void *parts, size_t size, int n)
{
    pthread_t ids[RF_MAX_THREADS];
    int started = 0;
    while (started < n - 1 && started < RF_MAX_THREADS &&
           pthread_create(&ids[started], NULL, work, (char *)parts + size * (size_t)started) == 0) {
        started++;
    }
    for (int i = started; i < n; i++) {
        work((char *)parts + size * (size_t)i);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(ids[i], NULL);
    }
}

int rf_span_total(const rf_span *spans, size_t n, size_t *total)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].nbytes > SIZE_MAX / 2 - sum) {
            return -1;
        }
        sum += spans[i].nbytes;
    }
    *total = sum;
    return 0;
}

/* Rows lie scattered over the heap: the hardware prefetcher can't guess the next one, so ask for its first lines while
 * this one is copied. Never reads past the spans that the part consists of. */
static void copy_part(const part *work)
{
    const rf_span *span = work->spans;
    size_t skip = work->skip;
    size_t left = work->nbytes;
    char *dest = work->dest;
    size_t ahead = 0; /* bytes of the part that lie behind the span to prefetch */
    const rf_span *next = span;
    for (int i = 0; i < PREFETCH_AHEAD && ahead < left + skip; i++) {
        ahead += next->nbytes;
        next++;
    }
    while (left > 0) {
        if (ahead < left + skip) {
            const char *address = next->address;
            __builtin_prefetch(address);
            __builtin_prefetch(address + CACHE_LINE);
            __builtin_prefetch(address + 2 * CACHE_LINE);
            ahead += next->nbytes;
            next++;
        }
        size_t size = span->nbytes - skip;
        if (size > left) {
            size = left;
        }
        if (size > 0) {
            memcpy(dest, (const char *)span->address + skip, size);
        }
        dest += size;
        left -= size;
        ahead -= span->nbytes;
        skip = 0;
        span++;
    }
}

static void *copy_part_thread(void *work)
{
    copy_part(work);
    return NULL;
}

/* Move *span and *skip forward by `nbytes`, which must lie inside the concatenation. */
static void advance(const rf_span **span, size_t *skip, size_t nbytes)
{
    *skip += nbytes;
    while (*skip > 0 && *skip >= (*span)->nbytes) {
        *skip -= (*span)->nbytes;
        (*span)++;
    }
}

int rf_gather(const rf_span *spans, size_t n, size_t start, void *dest, size_t nbytes, int threads)
{
    size_t total;
    if (rf_span_total(spans, n, &total) < 0 || start > total || nbytes > total - start) {
        return -1;
    }
    if (nbytes == 0) {
        return 0;
    }
    if (threads < 1) {
        threads = 1;
    }
    if (threads > RF_MAX_THREADS) {
        threads = RF_MAX_THREADS;
    }
    part parts[RF_MAX_THREADS];
    const rf_span *span = spans;
    size_t skip = 0;
    advance(&span, &skip, start);
    size_t share = nbytes / (size_t)threads;
    for (int i = 0; i < threads; i++) {
        size_t offset = share * (size_t)i;
        size_t size = i == threads - 1 ? nbytes - offset : share;
        parts[i] = (part){span, skip, (char *)dest + offset, size};
        if (i < threads - 1) {
            advance(&span, &skip, size);
        }
    }
    rf_work_on_parts(copy_part_thread, parts, sizeof(part), threads);
    return 0;
}
