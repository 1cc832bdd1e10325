/* Rows: lists of values classified, and lists of arrays as spans, offsets and shapes. */
#include "native.h"

PyObject *rf_new_int64(Py_ssize_t n, int64_t **data)
{
    npy_intp shape[1] = {n};
    PyObject *array = PyArray_SimpleNew(1, shape, NPY_INT64);
    if (array != NULL) {
        *data = PyArray_DATA((PyArrayObject *)array);
    }
    return array;
}

/* ---- classification ---- */

enum { MAX_TYPES = 65535 };

/* The index of `type` in `types`, appended where it is new. */
static Py_ssize_t type_index(PyObject *types, PyTypeObject *type)
{
    Py_ssize_t n = PyList_Size(types);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyList_GetItem(types, i) == (PyObject *)type) {
            return i;
        }
    }
    if (n >= MAX_TYPES) {
        PyErr_SetString(PyExc_ValueError, "more than 65,535 types in one list");
        return -1;
    }
    return PyList_Append(types, (PyObject *)type) < 0 ? -1 : n;
}

static PyObject *type_groups(PyObject *module, PyObject *values)
{
    (void)module;
    if (!PyList_CheckExact(values)) {
        PyErr_SetString(PyExc_TypeError, "a list is needed");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(values);
    PyObject *types = PyList_New(0);
    PyObject *tags = NULL;
    uint16_t *data = NULL;
    PyTypeObject *last = NULL;
    Py_ssize_t index = 0;
    PyObject *const *items = rf_objects_known ? rf_items(values, n, NULL) : NULL;
    for (Py_ssize_t i = 0; types != NULL && i < n; i++) {
        PyTypeObject *type = Py_TYPE(rf_next_item(values, items, i, n));
        if (type != last) {
            index = type_index(types, type);
            if (index < 0) {
                Py_CLEAR(types);
                break;
            }
            last = type;
        }
        if (index > 0 && tags == NULL) {
            npy_intp shape[1] = {n};
            tags = PyArray_ZEROS(1, shape, NPY_UINT16, 0);
            if (tags == NULL) {
                Py_CLEAR(types);
                break;
            }
            data = PyArray_DATA((PyArrayObject *)tags);
        }
        if (data != NULL) {
            data[i] = (uint16_t)index;
        }
    }
    PyObject *result = types == NULL ? NULL : PyTuple_Pack(2, types, tags == NULL ? Py_None : tags);
    Py_XDECREF(types);
    Py_XDECREF(tags);
    return result;
}

/* ---- flattening ---- */

/* flatten(rows): the items of lists, or of tuples, one after the other, and where each row starts. */
static PyObject *flatten(PyObject *Py_UNUSED(module), PyObject *rows)
{
    if (!PyList_CheckExact(rows)) {
        PyErr_SetString(PyExc_TypeError, "a list is needed");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(rows);
    int64_t *offset;
    PyObject *offsets = rf_new_int64(n + 1, &offset);
    if (offsets == NULL) {
        return NULL;
    }
    offset[0] = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *row = PyList_GetItem(rows, i);
        if (!PyList_CheckExact(row) && !PyTuple_CheckExact(row)) {
            PyErr_SetString(PyExc_TypeError, "rows are lists or tuples");
            Py_DECREF(offsets);
            return NULL;
        }
        offset[i + 1] = offset[i] + (PyList_CheckExact(row) ? PyList_Size(row) : PyTuple_Size(row));
    }
    /* Nothing below runs Python code but making the list, which may run the collector and with it anything. */
    PyObject *items = PyList_New((Py_ssize_t)offset[n]);
    rf_scratch scratch = {NULL, 0};
    bool same = items != NULL && PyList_Size(rows) == n;
    for (Py_ssize_t i = 0; same && i < n; i++) {
        PyObject *row = PyList_GetItem(rows, i);
        Py_ssize_t length = (Py_ssize_t)(offset[i + 1] - offset[i]);
        same = PyTuple_CheckExact(row) ? PyTuple_Size(row) == length
                                       : PyList_CheckExact(row) && PyList_Size(row) == length;
        PyObject *const *row_items = same ? rf_items(row, length, &scratch) : NULL;
        same = row_items != NULL;
        for (Py_ssize_t j = 0; same && j < length; j++) {
            same = PyList_SetItem(items, (Py_ssize_t)offset[i] + j, Py_NewRef(row_items[j])) == 0;
        }
    }
    rf_scratch_free(&scratch);
    if (!same) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "a list was changed while it was being put");
        }
        Py_CLEAR(items);
    }
    PyObject *result = items == NULL ? NULL : PyTuple_Pack(2, items, offsets);
    Py_XDECREF(items);
    Py_DECREF(offsets);
    return result;
}

/* ---- collecting ---- */

typedef struct {
    PyArray_Descr *descr;
    int64_t itemsize;
    int ndim;
    int contiguous;   /* every row is C-contiguous */
    int equal_inner;  /* every row has the inner shape of the first */
    PyObject *spans;
    PyObject *offsets; /* of the first axis; NULL for rows of no dimension */
    int64_t *offset;
    PyObject *shapes;
    int64_t *shape;
} collection;

static int same_descr(PyArray_Descr *a, PyArray_Descr *b)
{
    return a == b || PyObject_RichCompareBool((PyObject *)a, (PyObject *)b, Py_EQ);
}

static int start_collection(collection *c, rf_state *state, PyObject *values, PyObject *first, Py_ssize_t n)
{
    c->descr = PyArray_DESCR((PyArrayObject *)first);
    c->itemsize = PyArray_ITEMSIZE((PyArrayObject *)first);
    c->ndim = PyArray_NDIM((PyArrayObject *)first);
    c->contiguous = 1;
    c->equal_inner = 1;
    c->spans = rf_spans_new(state, n, values);
    if (c->spans == NULL) {
        return -1;
    }
    if (c->ndim == 0) {
        return 0;
    }
    c->offsets = rf_new_int64(n + 1, &c->offset);
    if (c->offsets == NULL) {
        return -1;
    }
    c->offset[0] = 0;
    if (c->ndim > 1) {
        npy_intp shape[2] = {n, c->ndim};
        c->shapes = PyArray_SimpleNew(2, shape, NPY_INT64);
        if (c->shapes == NULL) {
            return -1;
        }
        c->shape = PyArray_DATA((PyArrayObject *)c->shapes);
    }
    return 0;
}

static void end_collection(collection *c)
{
    Py_XDECREF(c->spans);
    Py_XDECREF(c->offsets);
    Py_XDECREF(c->shapes);
}

/* Rows lie all over the heap, with their shapes elsewhere: ask for both while those before are looked at. */
static inline void prefetch_rows(PyObject *const *items, Py_ssize_t i, Py_ssize_t n)
{
    enum { OBJECT_AHEAD = 32, SHAPE_AHEAD = 16, CACHE_LINE = 64 };
    if (i + OBJECT_AHEAD < n) {
        const char *object = (const char *)items[i + OBJECT_AHEAD];
        __builtin_prefetch(object, 1);
        __builtin_prefetch(object + CACHE_LINE);
        PyObject *nearer = items[i + SHAPE_AHEAD];
        if (PyArray_CheckExact(nearer)) {
            __builtin_prefetch(PyArray_DIMS((PyArrayObject *)nearer));
        }
    }
}

/* Add row `i`: 1 if it was added, 0 if it doesn't fit the others, -1 on error. */
static int collect_row(collection *c, PyObject *item, Py_ssize_t i)
{
    if (!PyArray_CheckExact(item)) {
        return 0;
    }
    PyArrayObject *row = (PyArrayObject *)item;
    if (PyArray_NDIM(row) != c->ndim) {
        return 0;
    }
    int same = same_descr(PyArray_DESCR(row), c->descr);
    if (same < 1) {
        return same;
    }
    const npy_intp *dims = PyArray_DIMS(row);
    if (c->ndim > 0 && __builtin_add_overflow(c->offset[i], (int64_t)dims[0], &c->offset[i + 1])) {
        PyErr_SetString(PyExc_OverflowError, "the rows are too large together");
        return -1;
    }
    if (c->shape != NULL) {
        int64_t *shape = c->shape + i * c->ndim;
        for (int axis = 0; axis < c->ndim; axis++) {
            shape[axis] = dims[axis];
            c->equal_inner &= axis == 0 || dims[axis] == c->shape[axis];
        }
    }
    c->contiguous &= PyArray_IS_C_CONTIGUOUS(row) != 0;
    if (!c->contiguous) {
        return 1;
    }
    int64_t nbytes = c->itemsize; /* numpy has seen to it that the product fits */
    for (int axis = 0; axis < c->ndim; axis++) {
        nbytes *= dims[axis];
    }
    return rf_spans_append(c->spans, PyArray_DATA(row), (Py_ssize_t)nbytes, NULL) < 0 ? -1 : 1;
}

/* Add the rows from `*i` on, as far as they have the very dtype object of the first, so that no Python code runs. */
static int collect_like_first(collection *c, PyObject *const *items, Py_ssize_t *i, Py_ssize_t n)
{
    int added = 1;
    while (added == 1 && *i < n) {
        prefetch_rows(items, *i, n);
        PyObject *item = items[*i];
        if (!PyArray_CheckExact(item) || PyArray_DESCR((PyArrayObject *)item) != c->descr) {
            break;
        }
        added = collect_row(c, item, *i);
        *i += 1;
    }
    return added;
}

static PyObject *collect_arrays(PyObject *module, PyObject *values)
{
    rf_state *state = rf_get_state(module);
    if (state == NULL) {
        return NULL;
    }
    if (!PyList_CheckExact(values) || PyList_Size(values) < 1 || !PyArray_CheckExact(PyList_GetItem(values, 0))) {
        PyErr_SetString(PyExc_TypeError, "a list that starts with an ndarray is needed");
        return NULL;
    }
    collection c = {0};
    Py_ssize_t n = PyList_Size(values);
    PyObject *result = NULL;
    PyObject *first = Py_NewRef(PyList_GetItem(values, 0));
    int added = start_collection(&c, state, values, first, n) < 0 ? -1 : 1;
    for (Py_ssize_t i = 0; added == 1 && i < n;) {
        /* Comparing dtypes may run Python code, which could change the list. */
        PyObject *item = PyList_GetItem(values, i);
        Py_XINCREF(item);
        added = item == NULL ? -1 : collect_row(&c, item, i++);
        Py_XDECREF(item);
        if (rf_objects_known && added == 1 && PyList_Size(values) == n) {
            added = collect_like_first(&c, rf_items(values, n, NULL), &i, n);
        }
    }
    if (added == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (added == 1) {
        result = Py_BuildValue("OOiOOO", c.contiguous ? c.spans : Py_None, (PyObject *)c.descr, c.ndim,
                               c.offsets ? c.offsets : Py_None, c.shapes ? c.shapes : Py_None,
                               c.equal_inner ? Py_True : Py_False);
    }
    end_collection(&c);
    Py_DECREF(first);
    return result;
}

static PyMethodDef functions[] = {
    {"type_groups", type_groups, METH_O,
     "type_groups(values)\n--\n\n"
     "The distinct types of a list's items in order of appearance, and each item's index among them as a uint16 array\n"
     "(None where there is at most one type)."},
    {"flatten", flatten, METH_O,
     "flatten(rows)\n--\n\n"
     "(items, offsets) of a list of lists or tuples: all their items in a list, and int64 offsets, rows + 1, into it.\n"
     "RuntimeError where one is changed meanwhile."},
    {"collect_arrays", collect_arrays, METH_O,
     "collect_arrays(values)\n--\n\n"
     "(spans, dtype, ndim, offsets, shapes, equal_inner) of a list of ndarrays of one dtype and number of dimensions;\n"
     "None if they differ. `spans` is None where a row is not C-contiguous; `offsets` (int64, rows + 1) are along the\n"
     "first axis, None for ndim 0; `shapes` (int64, rows x ndim) is None for ndim < 2. The spans keep the list, which must\n"
     "not be changed any more."},
    {NULL, NULL, 0, NULL},
};

int rf_rows_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
