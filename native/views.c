/* Views: contiguous values cut into rows by offsets or shapes, all of which may be hostile, and change at any time. */
#include "native.h"

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

int rf_cut(const int64_t *offsets, Py_ssize_t i, Py_ssize_t total, Py_ssize_t *start, Py_ssize_t *n)
{
    int64_t first = rf_read_once(&offsets[i]), end = rf_read_once(&offsets[i + 1]);
    if (first < 0 || end < first || end > total) {
        PyErr_SetString(PyExc_ValueError, "the offsets were changed while they were being read");
        return -1;
    }
    *start = (Py_ssize_t)first;
    *n = (Py_ssize_t)(end - first);
    return 0;
}

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
        Py_ssize_t start, n;
        PyObject *view = NULL;
        if (rf_cut(offset, i, PyArray_DIM(values, 0), &start, &n) == 0) {
            dims[0] = n;
            view = new_view(values, start * stride, ndim, dims);
        }
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
    if (PyArray_NDIM(values) != 1 || !is_int64(shapes, 2) || PyArray_DIM((PyArrayObject *)shapes, 1) > NPY_MAXDIMS) {
        PyErr_SetString(PyExc_ValueError, "shapes must be a contiguous int64 array of one row for each view");
        return NULL;
    }
    int64_t left = PyArray_DIM(values, 0);
    Py_ssize_t rows = PyArray_DIM((PyArrayObject *)shapes, 0), position = 0, itemsize = PyArray_ITEMSIZE(values);
    int ndim = (int)PyArray_DIM((PyArrayObject *)shapes, 1);
    const int64_t *shape = PyArray_DATA((PyArrayObject *)shapes);
    int64_t own[NPY_MAXDIMS]; /* of one row */
    npy_intp dims[NPY_MAXDIMS];
    PyObject *list = PyList_New(rows);
    for (Py_ssize_t i = 0; list != NULL && i < rows; i++, shape += ndim) {
        for (int axis = 0; axis < ndim; axis++) {
            own[axis] = rf_read_once(&shape[axis]);
        }
        int64_t count = count_items(own, ndim, left);
        if (count < 0 || count > left) {
            PyErr_Format(PyExc_ValueError, "the shape of row %zd does not fit its values", i);
            Py_CLEAR(list);
            break;
        }
        for (int axis = 0; axis < ndim; axis++) {
            dims[axis] = own[axis];
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
        Py_ssize_t start, n;
        PyObject *row = rf_cut(offset, i, PyList_Size(items), &start, &n) < 0 ? NULL : PyList_GetSlice(items, start, start + n);
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
    if (ndim > NPY_MAXDIMS) {
        PyErr_SetString(PyExc_ValueError, "too many dimensions");
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

int rf_views_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
