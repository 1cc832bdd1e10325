/* Records: dicts of the same keys taken apart into columns, and put together again. */
#include "native.h"

/* Whether two keys are the same: equal, and of one type out of str and int, so that comparing runs no other code. */
static int same_key(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    if (Py_TYPE(a) != Py_TYPE(b) || (!PyUnicode_CheckExact(a) && !PyLong_CheckExact(a))) {
        return 0;
    }
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

static PyObject *new_columns(Py_ssize_t width, Py_ssize_t n)
{
    PyObject *columns = PyList_New(width);
    for (Py_ssize_t j = 0; columns != NULL && j < width; j++) {
        PyObject *column = PyList_New(n);
        if (column == NULL || PyList_SetItem(columns, j, column) < 0) {
            Py_CLEAR(columns);
        }
    }
    return columns;
}

/* Put the values of row `i` into the columns: 1, 0 if its keys are others, -1 on error. */
static int take_row(PyObject *dict, PyObject *keys, PyObject *columns, Py_ssize_t i)
{
    Py_ssize_t width = PyTuple_Size(keys), position = 0, j = 0;
    PyObject *key, *value;
    if (!PyDict_CheckExact(dict) || PyDict_Size(dict) != width) {
        return 0;
    }
    while (PyDict_Next(dict, &position, &key, &value)) {
        int same = j < width ? same_key(key, PyTuple_GetItem(keys, j)) : 0;
        if (same < 1) {
            return same;
        }
        if (PyList_SetItem(PyList_GetItem(columns, j), i, Py_NewRef(value)) < 0) {
            return -1;
        }
        j++;
    }
    return j == width;
}

static PyObject *dict_columns(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *values, *keys;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &values, &PyTuple_Type, &keys)) {
        return NULL;
    }
    Py_ssize_t n = PyList_Size(values);
    PyObject *columns = new_columns(PyTuple_Size(keys), n);
    int taken = columns == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; taken == 1 && i < n; i++) {
        PyObject *dict = PyList_GetItem(values, i);
        taken = dict == NULL ? -1 : take_row(dict, keys, columns, i);
    }
    if (taken == 1) {
        return columns;
    }
    Py_XDECREF(columns);
    return taken == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *build_row(PyObject *keys, PyObject *columns, Py_ssize_t i)
{
    Py_ssize_t width = PyTuple_Size(keys);
    PyObject *dict = PyDict_New();
    for (Py_ssize_t j = 0; dict != NULL && j < width; j++) {
        PyObject *value = PyList_GetItem(PyList_GetItem(columns, j), i);
        if (value == NULL || PyDict_SetItem(dict, PyTuple_GetItem(keys, j), value) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *dict_rows(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *keys, *columns;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &keys, &PyList_Type, &columns)) {
        return NULL;
    }
    Py_ssize_t width = PyTuple_Size(keys), n = -1;
    int fitting = width > 0 && PyList_Size(columns) == width;
    for (Py_ssize_t j = 0; fitting && j < width; j++) {
        PyObject *key = PyTuple_GetItem(keys, j), *column = PyList_GetItem(columns, j);
        fitting = (PyUnicode_CheckExact(key) || PyLong_CheckExact(key)) && PyList_CheckExact(column) &&
                  (n < 0 || PyList_Size(column) == n);
        n = fitting ? PyList_Size(column) : n;
    }
    if (!fitting) {
        PyErr_SetString(PyExc_ValueError, "a list of one length is needed for each str or int key");
        return NULL;
    }
    PyObject *rows = PyList_New(n);
    for (Py_ssize_t i = 0; rows != NULL && i < n; i++) {
        PyObject *dict = build_row(keys, columns, i);
        if (dict == NULL || PyList_SetItem(rows, i, dict) < 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

static PyMethodDef functions[] = {
    {"dict_columns", dict_columns, METH_VARARGS,
     "dict_columns(values, keys)\n--\n\n"
     "The values of each key over a list of dicts, as lists; None unless all have exactly these str or int keys in order."},
    {"dict_rows", dict_rows, METH_VARARGS,
     "dict_rows(keys, columns)\n--\n\nDicts of these keys from a list of values for each, the inverse of dict_columns."},
    {NULL, NULL, 0, NULL},
};

int rf_records_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
