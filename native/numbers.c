/* Lists of Python numbers <-> typed buffers.
 *
 * The GIL is kept from the first item to the last, and only items of exact built-in types are touched, so no Python
 * code runs inside these loops and borrowed references stay good. Between a scan and its fill everything may change.
 */
#include "number_kernels.h"

#include <structmember.h>

/* ---- NumberColumn: what a scan found, and the list it found it in ---- */

typedef struct {
    PyObject_HEAD
    summary summary;
    PyObject *values;
    PyObject *dtype, *kind, *row_type, *offsets, *minimum, *maximum;
    Py_ssize_t nbytes, kept_nbytes;
    char nested;
} column;

/* There is no tp_clear: a cycle through a column also runs through a list, which clears itself. */
static int column_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((column *)self)->values);
    return 0;
}

static void column_dealloc(PyObject *self)
{
    column *c = (column *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyMem_Free(c->summary.kept);
    PyObject *members[] = {c->values, c->dtype, c->kind, c->row_type, c->offsets, c->minimum, c->maximum};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        Py_XDECREF(members[i]);
    }
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* False where a row is not what the scan saw, or there is no memory, with MemoryError. */
static bool fill_row(const column *c, const dtype *type, PyObject *row, Py_ssize_t n, char *dest, rf_scratch *scratch)
{
    PyObject *const *items = rf_items(row, n, scratch);
    return items != NULL && type->fill[c->summary.kind](items, n, &c->summary.range, dest);
}

static bool fill_rows(const column *c, const dtype *type, const int64_t *offsets, Py_ssize_t rows, char *dest)
{
    const sequence *seq = c->summary.rows;
    rf_scratch scratch = {NULL, 0};
    bool same = PyList_Size(c->values) == rows;
    for (Py_ssize_t i = 0; same && i < rows; i++) {
        PyObject *row = PyList_GetItem(c->values, i);
        Py_ssize_t n = (Py_ssize_t)(offsets[i + 1] - offsets[i]);
        same = row != NULL && Py_TYPE(row) == seq->type && seq->size(row) == n &&
               fill_row(c, type, row, n, dest + offsets[i] * type->itemsize, &scratch);
    }
    rf_scratch_free(&scratch);
    return same;
}

static int fill_view(const column *c, const dtype *type, Py_buffer *view)
{
    const summary *s = &c->summary;
    /* The count was scanned with room for 8 bytes a number, so this product is safe. */
    if (view->len != s->count * type->itemsize) {
        PyErr_Format(PyExc_ValueError, "%zd numbers of %s do not fill %zd bytes", s->count, type->name, view->len);
        return -1;
    }
    if (s->kept != NULL) {
        type->convert[s->kind](s->kept, s->count, view->buf);
        return 0;
    }
    bool same;
    if (s->rows != NULL) {
        /* Checked here because Python code may write to the offsets that it was given. */
        const int64_t *offsets;
        Py_ssize_t rows;
        if (rf_check_offsets(s->offsets, s->count, &offsets, &rows) < 0) {
            return -1;
        }
        same = fill_rows(c, type, offsets, rows, view->buf);
    } else {
        rf_scratch scratch = {NULL, 0};
        same = PyList_Size(c->values) == s->count && fill_row(c, type, c->values, s->count, view->buf, &scratch);
        rf_scratch_free(&scratch);
    }
    if (!same && !(PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError))) {
        PyErr_SetString(PyExc_RuntimeError, "the list was changed while it was being put");
    }
    return same ? 0 : -1;
}

static PyObject *column_fill(PyObject *self, PyObject *args)
{
    const column *c = (column *)self;
    PyObject *dest;
    const char *name;
    if (!PyArg_ParseTuple(args, "Os:fill", &dest, &name)) {
        return NULL;
    }
    const dtype *type = find_dtype(name);
    if (type == NULL) {
        return NULL;
    }
    if (!holds(type, &c->summary)) {
        return PyErr_Format(PyExc_ValueError, "%s does not hold these numbers", name);
    }
    Py_buffer view;
    if (PyObject_GetBuffer(dest, &view, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    int status = fill_view(c, type, &view);
    PyBuffer_Release(&view);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- number_scan ---- */

static const dtype *choose_dtype(const summary *s)
{
    for (int i = 0; i < DTYPES; i++) {
        if (holds(&dtypes[i], s)) {
            return &dtypes[i];
        }
    }
    return NULL;
}

/* KINDS where it is not a type of number. */
static kind find_kind(const PyTypeObject *type)
{
    kind k = 0;
    while (k < KINDS && kinds[k].type != type) {
        k++;
    }
    return k;
}

/* Count the numbers of rows, note where each row starts, and find the kind of the first. 1 where all rows are of one type and
 * the first that is not empty has numbers, 0 where not, -1 on an error. */
static int measure_rows(PyObject *values, Py_ssize_t rows, summary *s, rf_scratch *scratch)
{
    int64_t *offsets;
    s->offsets = rf_new_int64(rows + 1, &offsets);
    if (s->offsets == NULL) {
        return -1;
    }
    offsets[0] = 0;
    for (Py_ssize_t i = 0; i < rows; i++) {
        PyObject *row = PyList_GetItem(values, i);
        if (row == NULL || Py_TYPE(row) != s->rows->type) {
            return 0;
        }
        Py_ssize_t n = s->rows->size(row);
        if (n > 0 && s->kind == KINDS) {
            PyObject *const *items = rf_items(row, n, scratch);
            s->kind = items == NULL ? KINDS : find_kind(Py_TYPE(items[0]));
            if (s->kind == KINDS) {
                return items == NULL ? -1 : 0;
            }
        }
        if (n > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(int64_t) - s->count) {
            PyErr_NoMemory();
            return -1;
        }
        s->count += n;
        offsets[i + 1] = s->count;
    }
    return 1;
}

/* The same for a flat list. */
static int measure_flat(PyObject *values, Py_ssize_t n, summary *s)
{
    s->count = n;
    s->kind = find_kind(Py_TYPE(PyList_GetItem(values, 0)));
    return s->kind != KINDS;
}

static int scan_row(PyObject *row, Py_ssize_t start, Py_ssize_t n, summary *s, rf_scratch *scratch)
{
    PyObject *const *items = rf_items(row, n, scratch);
    int32_t *kept = s->kept == NULL ? NULL : (int32_t *)s->kept + start;
    return items == NULL ? -1 : kinds[s->kind].scan(items, n, s, kept);
}

static int scan_rows(PyObject *values, Py_ssize_t rows, summary *s, rf_scratch *scratch)
{
    const int64_t *offsets = PyArray_DATA((PyArrayObject *)s->offsets);
    int fits = 1;
    for (Py_ssize_t i = 0; fits == 1 && i < rows; i++) {
        Py_ssize_t n = (Py_ssize_t)(offsets[i + 1] - offsets[i]);
        fits = scan_row(PyList_GetItem(values, i), (Py_ssize_t)offsets[i], n, s, scratch);
    }
    return fits;
}

/* Numbers are read once only where there is room to keep them: they lie all over the heap. */
static void keep_numbers(summary *s, Py_ssize_t room)
{
    if (s->count <= room / KEPT_SIZE) {
        s->kept = PyMem_Malloc((size_t)(s->count > 0 ? s->count : 1) * KEPT_SIZE); /* without memory, they are read again */
    }
}

/* Whether what was kept is exactly the numbers. */
static bool is_kept_exactly(const summary *s)
{
    const int_range *r = &s->range;
    return s->kind == FLOAT ? s->float4 : r->low >= INT32_MIN && r->high <= INT32_MAX && r->above_high == 0;
}

/* 1 where the list has numbers of one kind, or rows of them; 0 where not, -1 on an error. */
static int scan_list(PyObject *values, Py_ssize_t room, summary *s, rf_scratch *scratch)
{
    Py_ssize_t n = PyList_Size(values);
    if (n == 0) {
        return 0;
    }
    s->rows = find_sequence(Py_TYPE(PyList_GetItem(values, 0)));
    int fits = s->rows == NULL ? measure_flat(values, n, s) : measure_rows(values, n, s, scratch);
    if (fits != 1 || s->kind == KINDS) {
        return fits;
    }
    keep_numbers(s, room);
    fits = s->rows == NULL ? scan_row(values, 0, n, s, scratch) : scan_rows(values, n, s, scratch);
    if (fits != 1 || !is_kept_exactly(s)) {
        PyMem_Free(s->kept);
        s->kept = NULL;
    }
    return fits;
}

static PyObject *new_minimum(const int_range *r)
{
    return r->low <= r->high ? PyLong_FromLongLong(r->low) : PyLong_FromUnsignedLongLong(r->above_low);
}

static PyObject *new_maximum(const int_range *r)
{
    return r->above_low <= r->above_high ? PyLong_FromUnsignedLongLong(r->above_high) : PyLong_FromLongLong(r->high);
}

static PyObject *new_column(PyTypeObject *type, PyObject *values, const summary *s, const dtype *chosen)
{
    column *c = (column *)PyType_GenericAlloc(type, 0);
    if (c == NULL) {
        PyMem_Free(s->kept);
        return NULL;
    }
    c->summary = *s;
    c->values = Py_NewRef(values);
    c->dtype = PyUnicode_FromString(chosen->name);
    c->kind = PyUnicode_FromString(kinds[s->kind].name);
    c->row_type = Py_NewRef(s->rows != NULL ? (PyObject *)s->rows->type : Py_None);
    c->offsets = Py_NewRef(s->rows != NULL ? s->offsets : Py_None);
    c->minimum = s->kind == FLOAT ? Py_NewRef(Py_None) : new_minimum(&s->range);
    c->maximum = s->kind == FLOAT ? Py_NewRef(Py_None) : new_maximum(&s->range);
    c->nbytes = s->count * chosen->itemsize;
    c->nested = s->rows != NULL;
    c->kept_nbytes = s->kept == NULL ? 0 : s->count * KEPT_SIZE;
    if (c->dtype == NULL || c->kind == NULL || c->minimum == NULL || c->maximum == NULL) {
        Py_CLEAR(c);
    }
    return (PyObject *)c;
}

static PyObject *number_scan(PyObject *module, PyObject *args)
{
    rf_state *state = rf_get_state(module);
    PyObject *values;
    Py_ssize_t room = 0;
    if (state == NULL || !PyArg_ParseTuple(args, "O|n:number_scan", &values, &room)) {
        return NULL;
    }
    if (!PyList_Check(values)) {
        return PyErr_Format(PyExc_TypeError, "number_scan takes a list");
    }
    summary s = {.kind = KINDS, .range = empty_range, .float4 = true};
    PyObject *result = NULL;
    rf_scratch scratch = {NULL, 0};
    int fits = scan_list(values, room, &s, &scratch);
    rf_scratch_free(&scratch);
    if (fits == 1 && s.kind == KINDS) {
        s.kind = INT; /* every row is empty */
        s.range.low = s.range.high = 0;
    }
    const dtype *chosen = fits == 1 ? choose_dtype(&s) : NULL;
    if (chosen != NULL) {
        result = new_column(state->number_column, values, &s, chosen);
        s.kept = NULL; /* the column's now */
    } else if (fits >= 0) {
        PyErr_Clear(); /* an int too large for uint64 raised */
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(s.kept);
    Py_XDECREF(s.offsets);
    return result;
}

/* ---- number_list, number_rows ---- */

/* A typed buffer that a caller handed in to be decoded. */
typedef struct {
    Py_buffer view;
    const dtype *type;
    bool (*build)(PyObject **, Py_ssize_t, const char *, const interned *);
    Py_ssize_t count;
    interned known;
    rf_scratch scratch;
} stored;

/* A table of the ints that occur pays where each occurs several times; without memory for it, there is none. */
static void prepare_interned(stored *in)
{
    if (in->type->bounds == NULL || in->count == 0) {
        return;
    }
    uint64_t low, high;
    in->type->bounds(in->view.buf, in->count, &low, &high);
    if (high - low < (uint64_t)in->count / 2) {
        in->known = (interned){PyMem_Calloc((size_t)(high - low) + 1, sizeof(PyObject *)), low, high - low + 1};
    }
}

static void release_stored(stored *in)
{
    PyMem_Free(in->known.made);
    rf_scratch_free(&in->scratch);
    PyBuffer_Release(&in->view);
}

static int check_stored(stored *in, const char *type_name, const char *kind_name)
{
    in->type = find_dtype(type_name);
    if (in->type == NULL) {
        return -1;
    }
    for (int k = 0; k < KINDS; k++) {
        if (strcmp(kinds[k].name, kind_name) == 0) {
            in->build = in->type->build[k];
        }
    }
    if (in->build == NULL) {
        PyErr_Format(PyExc_ValueError, "%s does not hold numbers of kind '%.20s'", type_name, kind_name);
        return -1;
    }
    if (in->view.len % in->type->itemsize) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are not a whole number of %s", in->view.len, type_name);
        return -1;
    }
    in->count = in->view.len / in->type->itemsize;
    prepare_interned(in);
    return 0;
}

static PyObject *build_row(stored *in, const sequence *seq, Py_ssize_t start, Py_ssize_t n)
{
    PyObject *row = seq->make(n);
    PyObject **slots = row == NULL || n == 0 ? NULL : rf_slots(row, n, &in->scratch);
    if (slots == NULL) {
        if (n > 0) {
            Py_CLEAR(row);
        }
        return row;
    }
    const char *data = (const char *)in->view.buf + start * in->type->itemsize;
    if (rf_fill_slots(row, n, slots, in->build(slots, n, data, &in->known)) < 0) {
        Py_CLEAR(row);
    }
    return row;
}

static PyObject *number_list(PyObject *Py_UNUSED(module), PyObject *args)
{
    stored in = {.build = NULL};
    const char *type_name, *kind_name;
    if (!PyArg_ParseTuple(args, "y*ss:number_list", &in.view, &type_name, &kind_name)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (check_stored(&in, type_name, kind_name) == 0) {
        result = build_row(&in, flat, 0, in.count);
    }
    release_stored(&in);
    return result;
}

static PyObject *build_rows(stored *in, const sequence *seq, const int64_t *offsets, Py_ssize_t rows)
{
    PyObject *result = PyList_New(rows);
    if (result == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t start, n;
        PyObject *row = rf_cut(offsets, i, in->count, &start, &n) < 0 ? NULL : build_row(in, seq, start, n);
        if (row == NULL || PyList_SetItem(result, i, row) < 0) {
            Py_DECREF(result);
            return NULL;
        }
    }
    return result;
}

static PyObject *number_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    stored in = {.build = NULL};
    const char *type_name, *kind_name;
    PyObject *cuts, *row_type, *result = NULL;
    if (!PyArg_ParseTuple(args, "y*ssOO:number_rows", &in.view, &type_name, &kind_name, &cuts, &row_type)) {
        return NULL;
    }
    const sequence *seq = find_sequence(row_type);
    const int64_t *offsets;
    Py_ssize_t rows;
    if (seq == NULL) {
        PyErr_SetString(PyExc_TypeError, "row_type is list or tuple");
    } else if (check_stored(&in, type_name, kind_name) == 0 && rf_check_offsets(cuts, in.count, &offsets, &rows) == 0) {
        result = build_rows(&in, seq, offsets, rows);
    }
    release_stored(&in);
    return result;
}

/* ---- the module's part ---- */

static PyMemberDef column_members[] = {
    {"dtype", T_OBJECT_EX, offsetof(column, dtype), READONLY, "Narrowest lossless dtype."},
    {"kind", T_OBJECT_EX, offsetof(column, kind), READONLY, "'int', 'float' or 'bool'."},
    {"nested", T_BOOL, offsetof(column, nested), READONLY, "Whether the items are rows of numbers."},
    {"row_type", T_OBJECT_EX, offsetof(column, row_type), READONLY, "list, tuple, or None."},
    {"count", T_PYSSIZET, offsetof(column, summary.count), READONLY, "Numbers in all rows."},
    {"nbytes", T_PYSSIZET, offsetof(column, nbytes), READONLY, "Bytes of them in `dtype`."},
    {"kept_nbytes", T_PYSSIZET, offsetof(column, kept_nbytes), READONLY, "Bytes of memory that keep the numbers."},
    {"offsets", T_OBJECT_EX, offsetof(column, offsets), READONLY, "int64 (rows + 1,), or None."},
    {"minimum", T_OBJECT_EX, offsetof(column, minimum), READONLY, "int; None for floats."},
    {"maximum", T_OBJECT_EX, offsetof(column, maximum), READONLY, "int; None for floats."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef column_methods[] = {
    {"fill", column_fill, METH_VARARGS,
     "fill(dest, dtype)\n--\n\n"
     "Write every number into a buffer of exactly their size."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot column_slots[] = {
    {Py_tp_doc, "The numbers of a list, scanned and ready to fill a buffer."},
    {Py_tp_dealloc, column_dealloc},
    {Py_tp_traverse, column_traverse},
    {Py_tp_members, column_members},
    {Py_tp_methods, column_methods},
    {0, NULL},
};

static PyType_Spec column_spec = {
    .name = "rollferry._native.NumberColumn",
    .basicsize = sizeof(column),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = column_slots,
};

static PyMethodDef functions[] = {
    {"number_scan", number_scan, METH_VARARGS,
     "number_scan(values, room=0)\n--\n\n"
     "A NumberColumn, or None where the list is not one. It keeps the numbers, so that the list is read only once, where\n"
     "that takes `room` bytes at most."},
    {"number_list", number_list, METH_VARARGS,
     "number_list(data, dtype, kind)\n--\n\n"
     "A list of Python numbers."},
    {"number_rows", number_rows, METH_VARARGS,
     "number_rows(data, dtype, kind, offsets, row_type)\n--\n\n"
     "A list of rows."},
    {NULL, NULL, 0, NULL},
};

int rf_numbers_init(PyObject *module, rf_state *state)
{
    state->number_column = (PyTypeObject *)PyType_FromModuleAndSpec(module, &column_spec, NULL);
    if (state->number_column == NULL || PyModule_AddType(module, state->number_column) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
