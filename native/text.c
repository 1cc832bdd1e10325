/* Lists of str, bytes and bytearray <-> bytes and offsets.
 *
 * Most text is ASCII: it is read where it lies. Decoding may run Python code (a codec's error handler), so cuts are
 * checked again where they are used.
 */
#include "native.h"

#include <string.h>

/* str.isascii, called straight: the limited API has no other test that neither copies the text nor leaves an encoded
 * copy inside the string. It is the same C function in every interpreter. */
static PyCFunction str_isascii;

static int find_isascii(void)
{
    const PyMethodDef *method = PyType_GetSlot(&PyUnicode_Type, Py_tp_methods);
    for (; method != NULL && method->ml_name != NULL; method++) {
        if (strcmp(method->ml_name, "isascii") == 0 && method->ml_flags == METH_NOARGS) {
            str_isascii = method->ml_meth;
            return 0;
        }
    }
    PyErr_SetString(PyExc_SystemError, "this Python has no str.isascii");
    return -1;
}

/* Asked first, because UTF-8 of other text would stay in the str for good. 1, 0, or -1 on an error. */
static int is_ascii(PyObject *item)
{
    if (rf_objects_known) {
        return rf_reads_ascii(item);
    }
    PyObject *ascii = str_isascii(item, NULL);
    Py_XDECREF(ascii);
    return ascii == NULL ? -1 : ascii == Py_True;
}

/* ---- text_scan: each append_* gives the bytes of its item, or -1 ---- */

static Py_ssize_t append_bytes(PyObject *spans, PyObject *item)
{
    Py_ssize_t n = PyBytes_Size(item);
    if (rf_spans_append(spans, PyBytes_AsString(item), n, item) < 0) {
        return -1;
    }
    return n;
}

static Py_ssize_t append_bytearray(PyObject *spans, PyObject *item)
{
    Py_ssize_t n = PyByteArray_Size(item);
    if (n > 0 && rf_spans_append_buffer(spans, item) < 0) {
        return -1;
    }
    return n;
}

static Py_ssize_t append_str(PyObject *spans, PyObject *item)
{
    int ascii = is_ascii(item);
    Py_ssize_t n;
    if (ascii < 0) {
        return -1;
    }
    if (ascii) {
        const char *text = PyUnicode_AsUTF8AndSize(item, &n);
        if (text == NULL || rf_spans_append(spans, text, n, item) < 0) {
            return -1;
        }
        return n;
    }
    PyObject *encoded = PyUnicode_AsEncodedString(item, "utf-8", "surrogatepass");
    if (encoded == NULL) {
        return -1;
    }
    n = append_bytes(spans, encoded);
    rf_spans_mark_copied(spans);
    Py_DECREF(encoded);
    return n;
}

static PyObject *decode_str(const char *text, Py_ssize_t n)
{
    return PyUnicode_DecodeUTF8(text, n, "surrogatepass");
}

typedef struct {
    const char *name;
    PyTypeObject *type;
    Py_ssize_t (*append)(PyObject *, PyObject *);
    PyObject *(*decode)(const char *, Py_ssize_t);
} kind;

static const kind kinds[] = {
    {"str", &PyUnicode_Type, append_str, decode_str},
    {"bytes", &PyBytes_Type, append_bytes, PyBytes_FromStringAndSize},
    {"bytearray", &PyByteArray_Type, append_bytearray, PyByteArray_FromStringAndSize},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const kind *find_type(const PyTypeObject *type)
{
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].type == type) {
            return &kinds[i];
        }
    }
    PyErr_SetString(PyExc_TypeError, "text_scan takes str, bytes or bytearray items");
    return NULL;
}

static const kind *find_kind(const char *name)
{
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown text kind '%.20s'", name);
    return NULL;
}

static int scan_items(PyObject *values, Py_ssize_t n, PyObject *spans, int64_t *offsets)
{
    const kind *kind = NULL;
    int64_t total = 0;
    offsets[0] = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyList_GetItem(values, i); /* IndexError where the list shrank meanwhile */
        if (item == NULL || (kind == NULL && (kind = find_type(Py_TYPE(item))) == NULL)) {
            return -1;
        }
        if (Py_TYPE(item) != kind->type) {
            PyErr_Format(PyExc_TypeError, "item %zd is not %s as the items before it are", i, kind->name);
            return -1;
        }
        Py_INCREF(item);
        Py_ssize_t nbytes = kind->append(spans, item);
        Py_DECREF(item);
        if (nbytes < 0) {
            return -1;
        }
        total += nbytes; /* the same sum that rf_spans_append checks */
        offsets[i + 1] = total;
    }
    return 0;
}

static PyObject *text_scan(PyObject *module, PyObject *values)
{
    rf_state *state = rf_get_state(module);
    if (state == NULL) {
        return NULL;
    }
    if (!PyList_Check(values)) {
        return PyErr_Format(PyExc_TypeError, "text_scan takes a list");
    }
    Py_ssize_t n = PyList_Size(values);
    int64_t *data;
    PyObject *spans = rf_spans_new(state, n, NULL);
    PyObject *offsets = spans != NULL ? rf_new_int64(n + 1, &data) : NULL;
    PyObject *result = NULL;
    if (offsets != NULL && scan_items(values, n, spans, data) == 0) {
        result = PyTuple_Pack(2, spans, offsets);
    }
    Py_XDECREF(spans);
    Py_XDECREF(offsets);
    return result;
}

/* ---- text_list, text_rows ---- */

/* Encoded items that a caller handed in to be decoded. */
typedef struct {
    Py_buffer view;
    const kind *kind;
    const int64_t *offsets;
    Py_ssize_t items;
    char *copy;
    Py_ssize_t capacity;
} stored;

/* A copy of an item, until the next one: CPython reads text several times, and makes a str that breaks its own rules where
 * another process writes to the bundle in between. */
static const char *copied(stored *in, const char *text, Py_ssize_t n)
{
    if (n > in->capacity) {
        char *copy = PyMem_Realloc(in->copy, (size_t)n);
        if (copy == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        in->copy = copy;
        in->capacity = n;
    }
    return n == 0 ? text : memcpy(in->copy, text, (size_t)n);
}

static PyObject *decode_item(stored *in, Py_ssize_t i)
{
    Py_ssize_t start, n;
    if (rf_cut(in->offsets, i, in->view.len, &start, &n) < 0) {
        return NULL;
    }
    const char *text = (const char *)in->view.buf + start;
    if (in->kind->decode == decode_str) {
        text = copied(in, text, n);
    }
    return text == NULL ? NULL : in->kind->decode(text, n);
}

static int decode_items(stored *in, Py_ssize_t first, Py_ssize_t n, PyObject *row,
                        int (*set)(PyObject *, Py_ssize_t, PyObject *))
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = decode_item(in, first + i);
        if (item == NULL || set(row, i, item) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *decode_row(stored *in, Py_ssize_t first, Py_ssize_t n, int tuple)
{
    PyObject *row = tuple ? PyTuple_New(n) : PyList_New(n);
    if (row != NULL && decode_items(in, first, n, row, tuple ? PyTuple_SetItem : PyList_SetItem) < 0) {
        Py_CLEAR(row);
    }
    return row;
}

static PyObject *decode_rows(stored *in, const int64_t *row_offsets, Py_ssize_t rows, int tuple)
{
    PyObject *result = PyList_New(rows);
    if (result == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t first, n;
        PyObject *row = rf_cut(row_offsets, i, in->items, &first, &n) < 0 ? NULL : decode_row(in, first, n, tuple);
        if (row == NULL || PyList_SetItem(result, i, row) < 0) {
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

static int check_stored(stored *in, const char *kind_name, PyObject *offsets)
{
    in->kind = find_kind(kind_name);
    return in->kind != NULL ? rf_check_offsets(offsets, in->view.len, &in->offsets, &in->items) : -1;
}

static PyObject *text_list(PyObject *Py_UNUSED(module), PyObject *args)
{
    stored in = {.copy = NULL};
    PyObject *offsets, *result = NULL;
    const char *kind_name;
    if (!PyArg_ParseTuple(args, "y*Os:text_list", &in.view, &offsets, &kind_name)) {
        return NULL;
    }
    if (check_stored(&in, kind_name, offsets) == 0) {
        result = decode_row(&in, 0, in.items, 0);
    }
    PyMem_Free(in.copy);
    PyBuffer_Release(&in.view);
    return result;
}

static PyObject *text_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    stored in = {.copy = NULL};
    PyObject *offsets, *cuts, *row_type, *result = NULL;
    const char *kind_name;
    if (!PyArg_ParseTuple(args, "y*OOsO:text_rows", &in.view, &offsets, &cuts, &kind_name, &row_type)) {
        return NULL;
    }
    int tuple = row_type == (PyObject *)&PyTuple_Type;
    const int64_t *row_offsets;
    Py_ssize_t rows;
    if (!tuple && row_type != (PyObject *)&PyList_Type) {
        PyErr_SetString(PyExc_TypeError, "row_type is list or tuple");
    } else if (check_stored(&in, kind_name, offsets) == 0 &&
               rf_check_offsets(cuts, in.items, &row_offsets, &rows) == 0) {
        result = decode_rows(&in, row_offsets, rows, tuple);
    }
    PyMem_Free(in.copy);
    PyBuffer_Release(&in.view);
    return result;
}

static PyMethodDef functions[] = {
    {"text_scan", text_scan, METH_O,
     "text_scan(values)\n--\n\n"
     "Spans over the bytes of every item, and their offsets."},
    {"text_list", text_list, METH_VARARGS,
     "text_list(data, offsets, kind)\n--\n\n"
     "A list of str, bytes or bytearray."},
    {"text_rows", text_rows, METH_VARARGS,
     "text_rows(data, offsets, row_offsets, kind, row_type)\n--\n\n"
     "The items of text_list, grouped into rows."},
    {NULL, NULL, 0, NULL},
};

int rf_text_init(PyObject *module, rf_state *Py_UNUSED(state))
{
    if (find_isascii() < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
