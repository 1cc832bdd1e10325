/* Memo: which objects of a batch were already stored, by identity, so that each is stored once.
 *
 * Rows that nothing else refers to can't occur twice: a reference count of two (the caller's container and the list
 * handed to `unique`) proves it without a look-up, which makes the common case almost free. That only holds where the
 * container itself can't be reached twice, so the encoder asks for a thorough look where it can.
 */
#include "native.h"

typedef struct {
    PyObject *key; /* a strong reference: a freed object's address could come back as another object */
    int64_t column;
    int64_t position;
} entry;

typedef struct {
    PyObject_HEAD
    entry *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
} Memo;

static size_t hash_pointer(const void *pointer)
{
    uint64_t x = (uint64_t)(uintptr_t)pointer;
    x = (x >> 4) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(x ^ (x >> 29));
}

static entry *find(const Memo *self, const PyObject *key)
{
    size_t mask = self->capacity - 1;
    size_t slot = hash_pointer(key) & mask;
    while (self->entries[slot].key != NULL && self->entries[slot].key != key) {
        slot = (slot + 1) & mask;
    }
    return &self->entries[slot];
}

static int grow(Memo *self)
{
    if (self->count < self->capacity / 2) {
        return 0;
    }
    Memo bigger = *self;
    bigger.capacity = self->capacity == 0 ? 256 : self->capacity * 2;
    bigger.entries = PyMem_Calloc(bigger.capacity, sizeof(entry));
    if (bigger.entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->capacity; i++) {
        if (self->entries[i].key != NULL) {
            *find(&bigger, self->entries[i].key) = self->entries[i];
        }
    }
    PyMem_Free(self->entries);
    self->entries = bigger.entries;
    self->capacity = bigger.capacity;
    return 0;
}

/* Result of the pass over one list: made only when the first repeated object shows up. */
typedef struct {
    PyObject *values;
    Py_ssize_t count;
    PyObject *uniques; /* list; NULL until a repetition was seen */
    PyObject *index;
    int64_t *positions;
    PyObject *foreign; /* flat list of column, position */
    Py_ssize_t foreign_count;
} repetition;

static int start_repetition(repetition *r, Py_ssize_t upto)
{
    /* `count` and not the list's length now: allocating may run code that shrinks the list. */
    r->uniques = PyList_GetSlice(r->values, 0, upto);
    r->foreign = PyList_New(0);
    r->index = rf_new_int64(r->count, &r->positions);
    if (r->uniques == NULL || r->foreign == NULL || r->index == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < upto; i++) {
        r->positions[i] = i;
    }
    return 0;
}

static int append_foreign(repetition *r, int64_t column, int64_t position)
{
    PyObject *a = PyLong_FromLongLong(column);
    PyObject *b = PyLong_FromLongLong(position);
    int failed = a == NULL || b == NULL || PyList_Append(r->foreign, a) < 0 || PyList_Append(r->foreign, b) < 0;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return failed ? -1 : 0;
}

/* Note item `i`; a repeated one makes positions[i] >= 0 an index into uniques, < 0 one into foreign (-1 - n). */
static int note(Memo *self, repetition *r, Py_ssize_t i, PyObject *item, int64_t column, int thorough)
{
    int64_t next = r->uniques == NULL ? i : (int64_t)PyList_Size(r->uniques);
    if (thorough || Py_REFCNT(item) > 2) {
        if (grow(self) < 0) {
            return -1;
        }
        entry *found = find(self, item);
        if (found->key != NULL) {
            if (r->uniques == NULL && start_repetition(r, i) < 0) {
                return -1;
            }
            if (found->column == column) {
                r->positions[i] = found->position;
                return 0;
            }
            r->positions[i] = -1 - r->foreign_count++;
            return append_foreign(r, found->column, found->position);
        }
        *found = (entry){Py_NewRef(item), column, next};
        self->count++;
    }
    if (r->uniques != NULL) {
        r->positions[i] = next;
        return PyList_Append(r->uniques, item);
    }
    return 0;
}

/* Whether a bytes or str object is too small to be worth a reference instead of a copy. */
static int is_small(PyObject *item, Py_ssize_t minimum)
{
    if (PyBytes_CheckExact(item)) {
        return PyBytes_Size(item) < minimum;
    }
    if (PyUnicode_CheckExact(item)) {
        return PyUnicode_GetLength(item) < minimum;
    }
    return 0;
}

/* Whether nothing but `values` and one container refers to any of its items. */
static int are_alone(PyObject *values, Py_ssize_t n)
{
    PyObject *const *items = rf_objects_known ? rf_items(values, n, NULL) : NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (Py_REFCNT(rf_next_item(values, items, i, n)) > 2) {
            return 0;
        }
    }
    return 1;
}

static PyObject *memo_unique(PyObject *object, PyObject *args)
{
    Memo *self = (Memo *)object;
    long long column;
    Py_ssize_t minimum;
    int thorough;
    repetition r = {0};
    if (!PyArg_ParseTuple(args, "O!Lnp", &PyList_Type, &r.values, &column, &minimum, &thorough)) {
        return NULL;
    }
    r.count = PyList_Size(r.values);
    if (!thorough && are_alone(r.values, r.count)) {
        Py_RETURN_NONE;
    }
    int failed = 0;
    for (Py_ssize_t i = 0; i < r.count && !failed; i++) {
        PyObject *item = PyList_GetItem(r.values, i);
        if (item == NULL) {
            failed = 1;
        }
        else if (is_small(item, minimum)) {
            if (r.uniques != NULL) {
                r.positions[i] = (int64_t)PyList_Size(r.uniques);
                failed = PyList_Append(r.uniques, item) < 0;
            }
        }
        else {
            failed = note(self, &r, i, item, column, thorough) < 0;
        }
    }
    PyObject *result = NULL;
    if (!failed) {
        result = r.uniques == NULL ? Py_NewRef(Py_None) : PyTuple_Pack(3, r.index, r.uniques, r.foreign);
    }
    Py_XDECREF(r.index);
    Py_XDECREF(r.uniques);
    Py_XDECREF(r.foreign);
    return result;
}

/* are_referenced_elsewhere(values): whether more than `values` and one container refer to any of its items. */
static PyObject *are_referenced_elsewhere(PyObject *module, PyObject *values)
{
    (void)module;
    if (!PyList_CheckExact(values)) {
        PyErr_SetString(PyExc_TypeError, "a list is needed");
        return NULL;
    }
    return PyBool_FromLong(!are_alone(values, PyList_Size(values)));
}

static PyObject *memo_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Memo takes no arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "")) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static void memo_dealloc(PyObject *object)
{
    Memo *self = (Memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (size_t i = 0; i < self->capacity; i++) {
        Py_XDECREF(self->entries[i].key);
    }
    PyMem_Free(self->entries);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef memo_methods[] = {
    {"unique", memo_unique, METH_VARARGS,
     "unique(values, column, minimum, thorough)\n--\n\n"
     "None if no object of `values` was seen before, here or in an earlier column. Else (index, uniques, foreign):\n"
     "values[i] is uniques[index[i]], or where index[i] < 0 the object at the (column, position) pair number\n"
     "-1 - index[i] of the flat list `foreign`. bytes and str shorter than `minimum` are taken as unique; so are, unless\n"
     "`thorough`, objects that only `values` and one container refer to."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot memo_slots[] = {
    {Py_tp_new, memo_new},
    {Py_tp_dealloc, memo_dealloc},
    {Py_tp_methods, memo_methods},
    {Py_tp_doc, "Memo()\n--\n\nThe objects of a batch that were stored already, by identity."},
    {0, NULL},
};

static PyType_Spec memo_spec = {
    .name = "rollferry._native.Memo",
    .basicsize = sizeof(Memo),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memo_slots,
};

static PyMethodDef functions[] = {
    {"are_referenced_elsewhere", are_referenced_elsewhere, METH_O,
     "are_referenced_elsewhere(values)\n--\n\nWhether more than `values` and one container refer to any of its items."},
    {NULL, NULL, 0, NULL},
};

int rf_memo_init(PyObject *module, rf_state *state)
{
    state->memo = (PyTypeObject *)PyType_FromModuleAndSpec(module, &memo_spec, NULL);
    if (state->memo == NULL || PyModule_AddType(module, state->memo) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
