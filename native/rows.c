/* Rows: lists of arrays to spans, and contiguous values back to lists of views. */
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

static int is_int64(PyObject *object, int ndim)
{
    if (!PyArray_CheckExact(object)) {
        return 0;
    }
    PyArrayObject *array = (PyArrayObject *)object;
    return PyArray_TYPE(array) == NPY_INT64 && PyArray_NDIM(array) == ndim && PyArray_ISCARRAY_RO(array);
}

int rf_check_offsets(PyObject *offsets, int64_t total, const int64_t **data, Py_ssize_t *rows)
{
    if (!is_int64(offsets, 1) || PyArray_SIZE((PyArrayObject *)offsets) < 1) {
        PyErr_SetString(PyExc_ValueError, "offsets must be a contiguous int64 array of at least one item");
        return -1;
    }
    const int64_t *values = PyArray_DATA((PyArrayObject *)offsets);
    Py_ssize_t n = PyArray_SIZE((PyArrayObject *)offsets) - 1;
    int rising = values[0] == 0 && values[n] == total;
    for (Py_ssize_t i = 0; i < n && rising; i++) {
        rising = values[i] <= values[i + 1];
    }
    if (!rising) {
        PyErr_SetString(PyExc_ValueError, "offsets must rise from 0 to the number of values");
        return -1;
    }
    *data = values;
    *rows = n;
    return 0;
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
    for (Py_ssize_t i = 0; types != NULL && i < n; i++) {
        PyTypeObject *type = Py_TYPE(PyList_GetItem(values, i));
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

/* ---- collecting ---- */

typedef struct {
    PyArray_Descr *descr;
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

static int start_collection(collection *c, rf_state *state, PyObject *first, Py_ssize_t n)
{
    c->descr = PyArray_DESCR((PyArrayObject *)first);
    c->ndim = PyArray_NDIM((PyArrayObject *)first);
    c->contiguous = 1;
    c->equal_inner = 1;
    c->spans = rf_spans_new(state, n);
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
    if (c->ndim > 0) {
        c->offset[i + 1] = c->offset[i] + dims[0];
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
    return rf_spans_append(c->spans, PyArray_DATA(row), PyArray_NBYTES(row), item) < 0 ? -1 : 1;
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
    int added = start_collection(&c, state, first, n) < 0 ? -1 : 1;
    for (Py_ssize_t i = 0; added == 1 && i < n; i++) {
        /* Comparing dtypes may run Python code, so the list could have shrunk. */
        PyObject *item = PyList_GetItem(values, i);
        Py_XINCREF(item);
        added = item == NULL ? -1 : collect_row(&c, item, i);
        Py_XDECREF(item);
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

/* ---- views ---- */

/* A view of `values` from its item `start` on. The caller has checked that `dims` fits. */
static PyObject *new_view(PyArrayObject *values, Py_ssize_t start_bytes, int ndim, const npy_intp *dims)
{
    PyArray_Descr *descr = PyArray_DESCR(values);
    int flags = NPY_ARRAY_C_CONTIGUOUS | (PyArray_FLAGS(values) & (NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE));
    Py_INCREF((PyObject *)descr); /* taken over by the view */
    PyObject *view = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, (npy_intp *)dims, NULL,
                                          (char *)PyArray_DATA(values) + start_bytes, flags, NULL);
    if (view == NULL) {
        return NULL;
    }
    if (PyArray_SetBaseObject((PyArrayObject *)view, Py_NewRef((PyObject *)values)) < 0) {
        Py_DECREF(view);
        return NULL;
    }
    return view;
}

static PyArrayObject *check_values(PyObject *object, int minimum_ndim)
{
    if (!PyArray_CheckExact(object) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)object) ||
        PyDataType_REFCHK(PyArray_DESCR((PyArrayObject *)object)) ||
        PyArray_NDIM((PyArrayObject *)object) < minimum_ndim) {
        PyErr_SetString(PyExc_ValueError, "values must be a contiguous ndarray without objects");
        return NULL;
    }
    return (PyArrayObject *)object;
}

/* split_rows(values, offsets): row i is values[offsets[i]:offsets[i + 1]]. */
static PyObject *split_rows(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *object, *offsets;
    const int64_t *offset;
    Py_ssize_t rows;
    if (!PyArg_ParseTuple(args, "OO", &object, &offsets)) {
        return NULL;
    }
    PyArrayObject *values = check_values(object, 1);
    if (values == NULL || rf_check_offsets(offsets, PyArray_DIM(values, 0), &offset, &rows) < 0) {
        return NULL;
    }
    int ndim = PyArray_NDIM(values);
    npy_intp dims[NPY_MAXDIMS];
    Py_ssize_t stride = PyArray_ITEMSIZE(values);
    for (int axis = 1; axis < ndim; axis++) {
        dims[axis] = PyArray_DIM(values, axis);
        stride *= dims[axis];
    }
    PyObject *list = PyList_New(rows);
    for (Py_ssize_t i = 0; list != NULL && i < rows; i++) {
        dims[0] = offset[i + 1] - offset[i];
        PyObject *view = new_view(values, offset[i] * stride, ndim, dims);
        if (view == NULL || PyList_SetItem(list, i, view) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* The number of items of a shape; -1 if it is negative somewhere or more than `limit`. */
static int64_t count_items(const int64_t *shape, int ndim, int64_t limit)
{
    int empty = 0;
    for (int axis = 0; axis < ndim; axis++) {
        /* The other axes of an empty array still have to be representable. */
        if (shape[axis] < 0 || shape[axis] > PY_SSIZE_T_MAX / 4096) {
            return -1;
        }
        empty |= shape[axis] == 0;
    }
    int64_t count = empty ? 0 : 1;
    for (int axis = 0; axis < ndim && !empty; axis++) {
        if (count > limit / shape[axis]) {
            return -1;
        }
        count *= shape[axis];
    }
    return count;
}

/* split_shapes(values, shapes): consecutive rows of one-dimensional values, each of its own shape. */
static PyObject *split_shapes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *object, *shapes;
    if (!PyArg_ParseTuple(args, "OO", &object, &shapes)) {
        return NULL;
    }
    PyArrayObject *values = check_values(object, 1);
    if (values == NULL) {
        return NULL;
    }
    if (PyArray_NDIM(values) != 1 || !is_int64(shapes, 2) || PyArray_DIM((PyArrayObject *)shapes, 1) > 32) {
        PyErr_SetString(PyExc_ValueError, "shapes must be a contiguous int64 array with a row of at most 32 items each");
        return NULL;
    }
    int64_t left = PyArray_DIM(values, 0);
    Py_ssize_t rows = PyArray_DIM((PyArrayObject *)shapes, 0), position = 0, itemsize = PyArray_ITEMSIZE(values);
    int ndim = (int)PyArray_DIM((PyArrayObject *)shapes, 1);
    const int64_t *shape = PyArray_DATA((PyArrayObject *)shapes);
    npy_intp dims[NPY_MAXDIMS];
    PyObject *list = PyList_New(rows);
    for (Py_ssize_t i = 0; list != NULL && i < rows; i++, shape += ndim) {
        int64_t count = count_items(shape, ndim, left);
        if (count < 0 || count > left) {
            PyErr_Format(PyExc_ValueError, "the shape of row %zd does not fit its values", i);
            Py_CLEAR(list);
            break;
        }
        for (int axis = 0; axis < ndim; axis++) {
            dims[axis] = shape[axis];
        }
        PyObject *view = new_view(values, position * itemsize, ndim, dims);
        if (view == NULL || PyList_SetItem(list, i, view) < 0) {
            Py_CLEAR(list);
        }
        position += count;
        left -= count;
    }
    if (list != NULL && left != 0) {
        PyErr_SetString(PyExc_ValueError, "the shapes do not cover all values");
        Py_CLEAR(list);
    }
    return list;
}

/* group_rows(items, offsets, row_type): row i is row_type(items[offsets[i]:offsets[i + 1]]). */
static PyObject *group_rows(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *items, *offsets, *row_type;
    const int64_t *offset;
    Py_ssize_t rows;
    if (!PyArg_ParseTuple(args, "O!OO", &PyList_Type, &items, &offsets, &row_type)) {
        return NULL;
    }
    if (rf_check_offsets(offsets, PyList_Size(items), &offset, &rows) < 0) {
        return NULL;
    }
    int tuples = row_type == (PyObject *)&PyTuple_Type;
    PyObject *list = PyList_New(rows);
    for (Py_ssize_t i = 0; list != NULL && i < rows; i++) {
        PyObject *row = PyList_GetSlice(items, offset[i], offset[i + 1]);
        if (row != NULL && tuples) {
            PyObject *tuple = PyList_AsTuple(row);
            Py_DECREF(row);
            row = tuple;
        }
        if (row == NULL || PyList_SetItem(list, i, row) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* object_array(items, shape): numpy's own assignment would unpack items that are arrays or sequences. */
static PyObject *object_array(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *items, *shape;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &items, &PyTuple_Type, &shape)) {
        return NULL;
    }
    int64_t dims64[NPY_MAXDIMS];
    npy_intp dims[NPY_MAXDIMS];
    Py_ssize_t ndim = PyTuple_Size(shape), n = PyList_Size(items);
    if (ndim > 32) {
        PyErr_SetString(PyExc_ValueError, "at most 32 dimensions");
        return NULL;
    }
    for (Py_ssize_t axis = 0; axis < ndim; axis++) {
        dims64[axis] = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
        if (dims64[axis] == -1 && PyErr_Occurred()) {
            return NULL;
        }
        dims[axis] = dims64[axis];
    }
    if (count_items(dims64, (int)ndim, n) != n) {
        PyErr_SetString(PyExc_ValueError, "the shape does not fit the number of items");
        return NULL;
    }
    PyObject *array = PyArray_SimpleNew((int)ndim, dims, NPY_OBJECT);
    if (array == NULL) {
        return NULL;
    }
    PyObject **slots = PyArray_DATA((PyArrayObject *)array);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *old = slots[i];
        slots[i] = Py_NewRef(PyList_GetItem(items, i));
        Py_XDECREF(old);
    }
    return array;
}

static PyMethodDef functions[] = {
    {"type_groups", type_groups, METH_O,
     "type_groups(values)\n--\n\n"
     "The distinct types of a list's items in order of appearance, and each item's index among them as a uint16 array\n"
     "(None where there is at most one type)."},
    {"collect_arrays", collect_arrays, METH_O,
     "collect_arrays(values)\n--\n\n"
     "(spans, dtype, ndim, offsets, shapes, equal_inner) of a list of ndarrays of one dtype and number of dimensions;\n"
     "None if they differ. `spans` is None where a row is not C-contiguous; `offsets` (int64, rows + 1) are along the\n"
     "first axis, None for ndim 0; `shapes` (int64, rows x ndim) is None for ndim < 2."},
    {"split_rows", split_rows, METH_VARARGS,
     "split_rows(values, offsets)\n--\n\nThe views values[offsets[i]:offsets[i + 1]] as a list."},
    {"split_shapes", split_shapes, METH_VARARGS,
     "split_shapes(values, shapes)\n--\n\nConsecutive views of one-dimensional values, one for each row of `shapes`."},
    {"group_rows", group_rows, METH_VARARGS,
     "group_rows(items, offsets, row_type)\n--\n\nThe slices of a list between offsets, as lists or tuples."},
    {"object_array", object_array, METH_VARARGS,
     "object_array(items, shape)\n--\n\nAn object array that holds exactly the given items."},
    {NULL, NULL, 0, NULL},
};

int rf_rows_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
