/* Where CPython keeps what is inside of its lists, tuples, ints, floats and strs.
 *
 * The stable ABI asks a function for each item, which takes longer than reading it. The places below are those of CPython
 * 3.11 to 3.14 with a GIL; they are compared with what the functions say when the module is imported, and not used if
 * anything differs, or in any other version.
 */
#include "native.h"

bool rf_objects_known = false;
bool rf_ints_are_tagged = false;
static bool verified = false;

/* Bits of the state of a str: 3.14 has made its first part wider. */
static uint32_t compact_ascii_bits;

bool rf_reads_ascii(PyObject *text)
{
    uint32_t state;
    memcpy(&state, (char *)text + sizeof(PyObject) + 2 * sizeof(Py_ssize_t), sizeof state);
    return (state & compact_ascii_bits) == compact_ascii_bits;
}

/* Where the items of a tuple begin: 3.14 has put its hash before them. */
static Py_ssize_t tuple_start = sizeof(PyVarObject);

static long size_of(PyTypeObject *type, const char *attribute)
{
    PyObject *size = PyObject_GetAttrString((PyObject *)type, attribute);
    long value = size == NULL ? -1 : PyLong_AsLong(size);
    Py_XDECREF(size);
    return value;
}

static bool has_sizes(PyTypeObject *type, long basic, long item)
{
    return size_of(type, "__basicsize__") == basic && size_of(type, "__itemsize__") == item;
}

static bool reads_int(long long value)
{
    PyObject *object = PyLong_FromLongLong(value);
    int64_t found = 0;
    bool small = value > -(1LL << 30) && value < 1LL << 30;
    bool same = object != NULL && rf_read_small_int(object, &found) == small && (!small || found == value);
    Py_XDECREF(object);
    return same;
}

static bool reads_float(double value)
{
    PyObject *object = PyFloat_FromDouble(value);
    double found = object == NULL ? 0 : rf_read_float(object);
    Py_XDECREF(object);
    return memcmp(&found, &value, sizeof value) == 0;
}

static bool reads_text(const char *utf8, bool ascii)
{
    PyObject *text = PyUnicode_FromString(utf8);
    bool same = text != NULL && rf_reads_ascii(text) == ascii;
    Py_XDECREF(text);
    return same;
}

static bool reads_items(PyObject *sequence)
{
    rf_scratch none = {NULL, 0};
    PyObject *const *items = sequence == NULL ? NULL : rf_items(sequence, 2, &none);
    bool same = items != NULL && items[0] == Py_None && items[1] == Py_Ellipsis;
    Py_XDECREF(sequence);
    return same;
}

static bool verify(void)
{
    static const long long values[] = {
        0, 1, -1, 255, -5, 256, 257, -256, (1LL << 30) - 1, 1 - (1LL << 30), 1LL << 30, -(1LL << 30), 1LL << 31,
        1LL << 60, INT64_MAX, INT64_MIN,
    };
    tuple_start = size_of(&PyTuple_Type, "__basicsize__");
    if (!has_sizes(&PyList_Type, 40, 0) || tuple_start < 24 || tuple_start > 32 ||
        size_of(&PyTuple_Type, "__itemsize__") != sizeof(PyObject *) ||
        !has_sizes(&PyLong_Type, 24, sizeof(uint32_t)) || !has_sizes(&PyFloat_Type, 24, 0)) {
        return false;
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (!reads_int(values[i])) {
            return false;
        }
    }
    if (!reads_float(1.5) || !reads_float(-1e300)) {
        return false;
    }
    if (!reads_text("", true) || !reads_text("a", true) || !reads_text("ascii text", true) ||
        !reads_text("\u00e9", false) || !reads_text("caf\u00e9", false) || !reads_text("\u20ac", false) ||
        !reads_text("\U0001F600", false)) {
        return false;
    }
    return reads_items(Py_BuildValue("[OO]", Py_None, Py_Ellipsis)) &&
           reads_items(Py_BuildValue("(OO)", Py_None, Py_Ellipsis));
}

/* trust_objects(trusted): for tests, which compare both ways. Gives what it was. */
static PyObject *trust_objects(PyObject *Py_UNUSED(module), PyObject *trusted)
{
    bool before = rf_objects_known;
    int wanted = PyObject_IsTrue(trusted);
    if (wanted < 0) {
        return NULL;
    }
    rf_objects_known = wanted && verified;
    return PyBool_FromLong(before);
}

static PyObject **scratch_of(rf_scratch *scratch, Py_ssize_t n)
{
    if (n > scratch->capacity) {
        PyObject **items = PyMem_Realloc(scratch->items, (size_t)n * sizeof *items);
        if (items == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        scratch->items = items;
        scratch->capacity = n;
    }
    return scratch->items;
}

PyObject **rf_known_items(PyObject *sequence)
{
    if (Py_TYPE(sequence) == &PyTuple_Type) {
        return (PyObject **)((char *)sequence + tuple_start);
    }
    PyObject **items;
    memcpy(&items, (char *)sequence + sizeof(PyVarObject), sizeof items);
    return items;
}

PyObject *const *rf_items(PyObject *sequence, Py_ssize_t n, rf_scratch *scratch)
{
    static PyObject *const nothing[1];
    if (n == 0) {
        return nothing; /* an empty list has no memory for items */
    }
    if (rf_objects_known) {
        return rf_known_items(sequence);
    }
    PyObject **items = scratch_of(scratch, n);
    for (Py_ssize_t i = 0; items != NULL && i < n; i++) {
        items[i] = Py_TYPE(sequence) == &PyTuple_Type ? PyTuple_GetItem(sequence, i) : PyList_GetItem(sequence, i);
    }
    return items;
}

PyObject **rf_slots(PyObject *sequence, Py_ssize_t n, rf_scratch *scratch)
{
    if (rf_objects_known) {
        return rf_known_items(sequence);
    }
    PyObject **slots = scratch_of(scratch, n);
    if (slots != NULL) {
        memset(slots, 0, (size_t)n * sizeof *slots);
    }
    return slots;
}

int rf_fill_slots(PyObject *sequence, Py_ssize_t n, PyObject **slots, bool complete)
{
    if (rf_objects_known) {
        return complete ? 0 : -1; /* what is there already is the sequence's */
    }
    int status = complete ? 0 : -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (status < 0) {
            Py_XDECREF(slots[i]);
        } else if (Py_TYPE(sequence) == &PyTuple_Type) {
            status = PyTuple_SetItem(sequence, i, slots[i]);
        } else {
            status = PyList_SetItem(sequence, i, slots[i]);
        }
    }
    return status;
}

void rf_scratch_free(rf_scratch *scratch)
{
    PyMem_Free(scratch->items);
    scratch->items = NULL;
    scratch->capacity = 0;
}

static PyMethodDef functions[] = {
    {"trust_objects", trust_objects, METH_O,
     "trust_objects(trusted)\n--\n\nWhether to read built-in objects directly, where that was verified; gives what it was."},
    {NULL, NULL, 0, NULL},
};

int rf_cpython_init(PyObject *module, rf_state *Py_UNUSED(state))
{
    unsigned long minor = (Py_Version >> 16) & 0xFF;
    if (Py_Version >> 24 == 3 && minor >= 11 && minor <= 14 && sizeof(PyVarObject) == 24) {
        rf_ints_are_tagged = minor >= 12;
        /* interned: 2 bits (16 from 3.14 on), kind: 3, compact: 1, ascii: 1 */
        compact_ascii_bits = 3U << (minor >= 14 ? 16 + 3 : 2 + 3);
        rf_objects_known = true; /* for the verification */
        rf_objects_known = verified = verify();
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return PyModule_AddFunctions(module, functions);
}
