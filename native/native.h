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

/* A new, empty Spans with room for `capacity` ranges. */
PyObject *rf_spans_new(rf_state *state, Py_ssize_t capacity);
/* Append one range. Takes a new reference to `owner`, which must keep the bytes in place until Spans dies. */
int rf_spans_append(PyObject *spans, const void *address, Py_ssize_t nbytes, PyObject *owner);
/* Append the buffer of `exporter`, held (and so locked against resizing) until Spans dies. */
int rf_spans_append_buffer(PyObject *spans, PyObject *exporter);

/* Note that a range is a temporary copy of the caller's value. */
void rf_spans_mark_copied(PyObject *spans);

/* ---- rows.c ---- */

/* A new int64 ndarray of shape (n,); its data through *data. */
PyObject *rf_new_int64(Py_ssize_t n, int64_t **data);
/* ---- views.c ---- */

/* Check that `offsets` is an aligned, contiguous int64 ndarray with at least one item, that it starts at 0, never
 * falls, and ends at `total`. Gives its data and row count; -1 with ValueError otherwise. */
int rf_check_offsets(PyObject *offsets, int64_t total, const int64_t **data, Py_ssize_t *rows);

/* Each file adds its types to the module and the state, and its functions to the module. */
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
