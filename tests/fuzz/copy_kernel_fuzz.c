/* Fuzz target of native/copy_kernel.c: every gather is compared with a copy byte by byte.
 *
 *     clang -g -fsanitize=fuzzer,address,undefined -I native native/copy_kernel.c tests/fuzz/copy_kernel_fuzz.c
 *     gcc -g -fsanitize=address,undefined -DSTANDALONE -I native native/copy_kernel.c tests/fuzz/copy_kernel_fuzz.c -pthread
 *
 * With STANDALONE, main runs random inputs: ./a.out [count] [seed].
 */
#include "copy_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SPANS = 64, GUARD = 16, FILL = 0xA5 };

/* What is left of the input; zero at its end. */
typedef struct {
    const uint8_t *data;
    size_t size;
} input;

static uint8_t take(input *in)
{
    if (in->size == 0) {
        return 0;
    }
    in->size--;
    return *in->data++;
}

/* A length: mostly short, and often zero. */
static size_t take_length(input *in)
{
    uint8_t kind = take(in);
    if (kind < 64) {
        return 0;
    }
    return kind < 224 ? take(in) : (size_t)take(in) * 256 + take(in);
}

static void require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "copy_kernel_fuzz: %s\n", what);
        abort();
    }
}

/* Compare one gather into memory of its exact size, behind and before which nothing may change. */
static void check_gather(const rf_span *spans, size_t n, const uint8_t *whole, size_t total, size_t start, size_t nbytes,
                         int threads)
{
    uint8_t *memory = malloc(nbytes + 2 * GUARD);
    require(memory != NULL, "out of memory");
    memset(memory, FILL, nbytes + 2 * GUARD);
    int status = rf_gather(spans, n, start, memory + GUARD, nbytes, threads);
    if (start > total || nbytes > total - start) {
        require(status == -1, "a range outside the spans was taken");
        for (size_t i = 0; i < nbytes; i++) {
            require(memory[GUARD + i] == FILL, "something was written in spite of an error");
        }
    }
    else {
        require(status == 0, "a range inside the spans was refused");
        require(nbytes == 0 || memcmp(memory + GUARD, whole + start, nbytes) == 0, "wrong bytes");
    }
    for (size_t i = 0; i < GUARD; i++) {
        require(memory[i] == FILL && memory[GUARD + nbytes + i] == FILL, "written outside the destination");
    }
    free(memory);
}

/* Totals that don't fit are refused, before any address is looked at. */
static void check_overflow(input *in)
{
    rf_span spans[3];
    size_t total, expected = 0;
    int fits = 1;
    for (int i = 0; i < 3; i++) {
        size_t nbytes = SIZE_MAX >> (take(in) % 4);
        nbytes -= take(in);
        spans[i] = (rf_span){NULL, nbytes};
        fits = fits && nbytes <= SIZE_MAX / 2 - expected;
        expected += fits ? nbytes : 0;
    }
    int status = rf_span_total(spans, 3, &total);
    require(status == (fits ? 0 : -1) && (!fits || total == expected), "wrong sum of lengths");
    uint8_t byte;
    require(fits || rf_gather(spans, 3, 0, &byte, 1, 1) == -1, "spans that overflow were taken");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    uint8_t *parts[MAX_SPANS] = {NULL};
    rf_span spans[MAX_SPANS];
    size_t n = take(&in) % (MAX_SPANS + 1), total = 0;
    for (size_t i = 0; i < n; i++) {
        spans[i].nbytes = take_length(&in);
        total += spans[i].nbytes;
    }
    uint8_t *whole = malloc(total + 1);
    require(whole != NULL, "out of memory");
    size_t position = 0;
    uint8_t pattern = take(&in); /* the bytes copied don't matter: the input is for lengths and ranges */
    for (size_t i = 0; i < n; i++) {
        /* Memory of its own and exact size for each span, so that AddressSanitizer sees a byte too many. */
        size_t nbytes = spans[i].nbytes;
        parts[i] = nbytes > 0 ? malloc(nbytes) : NULL;
        require(nbytes == 0 || parts[i] != NULL, "out of memory");
        for (size_t j = 0; j < nbytes; j++) {
            parts[i][j] = whole[position++] = (uint8_t)(pattern + j * 31 + j / 256 + i * 17);
        }
        spans[i].address = parts[i];
    }
    for (int i = 0; i < 4; i++) {
        size_t start = total > 0 ? ((size_t)take(&in) * 65536 + (size_t)take(&in) * 256 + take(&in)) % (total + 2) : 0;
        size_t left = start <= total ? total - start : 0;
        size_t nbytes = i == 0 ? left : take_length(&in) % (left + 2);
        check_gather(spans, n, whole, total, start, nbytes, (int)take(&in) % 20 - 1);
    }
    check_overflow(&in);
    for (size_t i = 0; i < n; i++) {
        free(parts[i]);
    }
    free(whole);
    return 0;
}

#ifdef STANDALONE
/* xorshift64*: the same cases on every machine. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ULL;
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 10000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) * 2 + 1 : 1;
    static uint8_t data[256];
    for (long i = 0; i < count; i++) {
        size_t size = next_random(&state) % sizeof data;
        for (size_t j = 0; j < size; j++) {
            data[j] = (uint8_t)(next_random(&state) >> 33);
        }
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("%ld cases\n", count);
    return 0;
}
#endif
