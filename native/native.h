/* Declarations shared by the files of rollferry._native that use Python.h.
 *
 * The module is built against the limited API (cp311), so one binary serves CPython 3.11 and later.
 */
#ifndef ROLLFERRY_NATIVE_H
#define ROLLFERRY_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL rollferry_ARRAY_API
#ifndef ROLLFERRY_IMPORT_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <stdbool.h>
#include <string.h>

#include "copy_kernel.h"

typedef struct {
    PyTypeObject *spans;
    PyTypeObject *lease;
    PyTypeObject *memo;
    PyTypeObject *number_column;
} rf_state;

/* The state of the module; NULL with an exception set where there is none. */
rf_state *rf_get_state(PyObject *module);

/* ---- spans.c: source address ranges, and the objects that keep them alive ---- */

/* A new, empty Spans with room for `capacity` ranges; `keeper`, which may be NULL, lives as long as it. */
PyObject *rf_spans_new(rf_state *state, Py_ssize_t capacity, PyObject *keeper);
/* Append one range. `owner`, which lives as long as Spans, must keep the bytes in place; NULL where the keeper does. */
int rf_spans_append(PyObject *spans, const void *address, Py_ssize_t nbytes, PyObject *owner);
/* Append the buffer of `exporter`, held (and so locked against resizing) until Spans dies. */
int rf_spans_append_buffer(PyObject *spans, PyObject *exporter);

/* Note that a range is a temporary copy of the caller's value. */
void rf_spans_mark_copied(PyObject *spans);

/* ---- cpython.c: the items of lists and tuples, and small ints, without a call for each ---- */

/* Whether this CPython keeps them where cpython.c expects them. Otherwise what follows asks the API. */
extern bool rf_objects_known;
extern bool rf_ints_are_tagged;

/* Memory for the items where they have to be asked for; starts as {NULL, 0}. */
typedef struct {
    PyObject **items;
    Py_ssize_t capacity;
} rf_scratch;

/* The `n` items of an exact list or tuple, borrowed: good as long as the GIL is kept, no Python code runs, and `scratch`
 * isn't used again. NULL with MemoryError. */
PyObject *const *rf_items(PyObject *sequence, Py_ssize_t n, rf_scratch *scratch);
/* Room for the `n` > 0 items of a new list or tuple, all NULL, to be filled with new references; then call rf_fill_slots. */
PyObject **rf_slots(PyObject *sequence, Py_ssize_t n, rf_scratch *scratch);
/* Hand the slots over to the sequence; if they are not `complete`, drop them and give -1. */
int rf_fill_slots(PyObject *sequence, Py_ssize_t n, PyObject **slots, bool complete);
/* Item `i` of `n`; as items lie all over the heap, one that comes later is asked for meanwhile. */
static inline PyObject *rf_prefetched(PyObject *const *items, Py_ssize_t i, Py_ssize_t n)
{
    enum { AHEAD = 16 };
    if (i + AHEAD < n) {
        __builtin_prefetch(items[i + AHEAD]);
    }
    return items[i];
}

/* Item `i` of an exact list, borrowed: out of `items`, or where that is NULL by asking. */
static inline PyObject *rf_next_item(PyObject *list, PyObject *const *items, Py_ssize_t i, Py_ssize_t n)
{
    return items == NULL ? PyList_GetItem(list, i) : rf_prefetched(items, i, n);
}

void rf_scratch_free(rf_scratch *scratch);

/* The items of an exact list or tuple that has some; only where the layout is known. */
PyObject **rf_known_items(PyObject *sequence);
/* Whether an exact str has only ASCII characters; only where the layout is known. */
bool rf_reads_ascii(PyObject *text);

/* The value of an exact int of at most 30 bits; false for others, and where the API has to be asked. */
static inline bool rf_read_small_int(PyObject *object, int64_t *value)
{
    if (!rf_objects_known) {
        return false;
    }
    intptr_t size; /* 3.11: digits, negative for a negative int; later: sign in the lowest two bits, digits above the third */
    uint32_t digit;
    memcpy(&size, (char *)object + sizeof(PyObject), sizeof size);
    if (rf_ints_are_tagged) {
        intptr_t sign = 1 - (size & 3);
        size = (intptr_t)((uintptr_t)size >> 3) * sign;
    }
    if (size < -1 || size > 1) {
        return false;
    }
    if (size == 0) {
        *value = 0;
        return true;
    }
    memcpy(&digit, (char *)object + sizeof(PyVarObject), sizeof digit);
    *value = size * (int64_t)digit;
    return true;
}

/* The value of an exact float. */
static inline double rf_read_float(PyObject *object)
{
    double value;
    if (!rf_objects_known) {
        return PyFloat_AsDouble(object);
    }
    memcpy(&value, (char *)object + sizeof(PyObject), sizeof value);
    return value;
}

/* ---- rows.c ---- */

/* A new int64 ndarray of shape (n,); its data through *data. */
PyObject *rf_new_int64(Py_ssize_t n, int64_t **data);
/* ---- views.c ---- */

/* Check that `offsets` is an aligned, contiguous int64 ndarray with at least one item, that it starts at 0, never
 * falls, and ends at `total`. Gives its data and row count; -1 with ValueError otherwise. */
int rf_check_offsets(PyObject *offsets, int64_t total, const int64_t **data, Py_ssize_t *rows);

/* One number of memory that another thread or process may write to meanwhile: read exactly once, whatever the compiler
 * would like better, so that what is checked is what is used. */
static inline int64_t rf_read_once(const int64_t *place)
{
    return *(const volatile int64_t *)place;
}

/* Start and length of part `i` of `total`. Checked although rf_check_offsets did so: since then code may have run that
 * writes to the offsets, or they lie in a bundle that is written to. -1 with ValueError. */
int rf_cut(const int64_t *offsets, Py_ssize_t i, Py_ssize_t total, Py_ssize_t *start, Py_ssize_t *n);

/* Each file adds its types to the module and the state, and its functions to the module. */
int rf_cpython_init(PyObject *module, rf_state *state);
int rf_spans_init(PyObject *module, rf_state *state);
int rf_lease_init(PyObject *module, rf_state *state);
int rf_memo_init(PyObject *module, rf_state *state);
int rf_rows_init(PyObject *module, rf_state *state);
int rf_views_init(PyObject *module, rf_state *state);
int rf_records_init(PyObject *module, rf_state *state);
int rf_tensors_init(PyObject *module, rf_state *state);
int rf_numbers_init(PyObject *module, rf_state *state);
int rf_text_init(PyObject *module, rf_state *state);
int rf_files_init(PyObject *module, rf_state *state);

#endif
