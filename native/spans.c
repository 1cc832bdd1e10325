/* Spans: the source side of a copy. Address ranges in order, and the references and buffers that keep them in place. */
#include "native.h"

typedef struct {
    PyObject_HEAD
    rf_span *spans;
    PyObject *keeper;    /* keeps what spans without an owner lie in; may be NULL */
    PyObject **owners;   /* owners[i] keeps spans[i] alive; NULL where `buffers` or `keeper` does. NULL while all are */
    Py_buffer **buffers; /* held exports, `buffer_count` of them */
    Py_ssize_t count;
    Py_ssize_t capacity;
    Py_ssize_t buffer_count;
    Py_ssize_t nbytes;
    int copied; /* some ranges are temporary copies */
} Spans;

PyObject *rf_spans_new(rf_state *state, Py_ssize_t capacity, PyObject *keeper)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->spans, Py_tp_alloc);
    Spans *self = (Spans *)allocate(state->spans, 0);
    if (self == NULL) {
        return NULL;
    }
    if (capacity < 1) {
        capacity = 1;
    }
    self->keeper = Py_XNewRef(keeper);
    self->spans = PyMem_Malloc((size_t)capacity * sizeof(rf_span));
    if (self->spans == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->capacity = capacity;
    return (PyObject *)self;
}

static int reserve(Spans *self)
{
    if (self->count < self->capacity) {
        return 0;
    }
    if (self->capacity > PY_SSIZE_T_MAX / 2 / (Py_ssize_t)sizeof(rf_span)) {
        PyErr_NoMemory();
        return -1;
    }
    size_t capacity = (size_t)self->capacity * 2;
    rf_span *spans = PyMem_Realloc(self->spans, capacity * sizeof(rf_span));
    if (spans != NULL) {
        self->spans = spans;
    }
    PyObject **owners = self->owners == NULL ? NULL : PyMem_Realloc(self->owners, capacity * sizeof(PyObject *));
    if (owners != NULL) {
        self->owners = owners;
    }
    if (spans == NULL || (owners == NULL && self->owners != NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    self->capacity = (Py_ssize_t)capacity;
    return 0;
}

int rf_spans_append(PyObject *spans, const void *address, Py_ssize_t nbytes, PyObject *owner)
{
    Spans *self = (Spans *)spans;
    if (nbytes < 0 || nbytes > PY_SSIZE_T_MAX - self->nbytes) {
        PyErr_SetString(PyExc_OverflowError, "the rows are too large together");
        return -1;
    }
    if (nbytes == 0) {
        return 0;
    }
    if (reserve(self) < 0) {
        return -1;
    }
    if (owner != NULL && self->owners == NULL) {
        self->owners = PyMem_Calloc((size_t)self->capacity, sizeof(PyObject *));
        if (self->owners == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    self->spans[self->count] = (rf_span){address, (size_t)nbytes};
    if (self->owners != NULL) {
        self->owners[self->count] = Py_XNewRef(owner);
    }
    self->count++;
    self->nbytes += nbytes;
    return 0;
}

void rf_spans_mark_copied(PyObject *spans)
{
    ((Spans *)spans)->copied = 1;
}

int rf_spans_append_buffer(PyObject *spans, PyObject *exporter)
{
    Spans *self = (Spans *)spans;
    Py_buffer **buffers = PyMem_Realloc(self->buffers, (size_t)(self->buffer_count + 1) * sizeof(Py_buffer *));
    if (buffers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->buffers = buffers;
    Py_buffer *buffer = PyMem_Malloc(sizeof(Py_buffer));
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyObject_GetBuffer(exporter, buffer, PyBUF_C_CONTIGUOUS) < 0) {
        PyMem_Free(buffer);
        return -1;
    }
    self->buffers[self->buffer_count++] = buffer;
    return rf_spans_append(spans, buffer->buf, buffer->len, NULL);
}

static void spans_dealloc(PyObject *object)
{
    Spans *self = (Spans *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (Py_ssize_t i = 0; self->owners != NULL && i < self->count; i++) {
        Py_XDECREF(self->owners[i]);
    }
    Py_XDECREF(self->keeper);
    for (Py_ssize_t i = 0; i < self->buffer_count; i++) {
        PyBuffer_Release(self->buffers[i]);
        PyMem_Free(self->buffers[i]);
    }
    PyMem_Free(self->buffers);
    PyMem_Free(self->owners);
    PyMem_Free(self->spans);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *spans_gather(PyObject *object, PyObject *args)
{
    Spans *self = (Spans *)object;
    Py_buffer dest;
    Py_ssize_t start;
    int threads;
    if (!PyArg_ParseTuple(args, "w*ni", &dest, &start, &threads)) {
        return NULL;
    }
    if (start < 0 || start > self->nbytes || dest.len > self->nbytes - start) {
        PyErr_Format(PyExc_ValueError, "%zd bytes from %zd on are not inside the %zd bytes of the spans", dest.len,
                     start, self->nbytes);
        PyBuffer_Release(&dest);
        return NULL;
    }
    /* The ranges and what keeps them in place don't change any more, so the copy runs without the GIL. */
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = rf_gather(self->spans, (size_t)self->count, (size_t)start, dest.buf, (size_t)dest.len, threads);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&dest);
    if (failed) {
        PyErr_SetString(PyExc_ValueError, "the spans are inconsistent");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *spans_nbytes(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(((Spans *)object)->nbytes);
}

static PyObject *spans_contiguous(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Spans *)object)->count == 1);
}

static PyObject *spans_copied(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((Spans *)object)->copied);
}

/* One range can be read in place: its view keeps the Spans, and so the owner. */
static int spans_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    Spans *self = (Spans *)object;
    if (self->count != 1) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "the spans are not one range");
        return -1;
    }
    return PyBuffer_FillInfo(view, object, (void *)self->spans[0].address, self->nbytes, 1, flags);
}

static PyMethodDef spans_methods[] = {
    {"gather", spans_gather, METH_VARARGS,
     "gather(dest, start, threads)\n--\n\n"
     "Fill the writable buffer `dest` with the bytes from `start` on of the concatenated spans; releases the GIL."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef spans_getset[] = {
    {"nbytes", spans_nbytes, NULL, "Bytes of all spans together.", NULL},
    {"contiguous", spans_contiguous, NULL, "Whether they are one range, which the buffer protocol then gives.", NULL},
    {"copied", spans_copied, NULL, "Whether some of the bytes are temporary copies of the caller's values.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot spans_slots[] = {
    {Py_tp_dealloc, spans_dealloc},
    {Py_tp_methods, spans_methods},
    {Py_tp_getset, spans_getset},
    {Py_bf_getbuffer, spans_getbuffer},
    {Py_tp_doc, "Source address ranges of a copy, with what keeps them in place."},
    {0, NULL},
};

static PyType_Spec spans_spec = {
    .name = "rollferry._native.Spans",
    .basicsize = sizeof(Spans),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = spans_slots,
};

/* spans_of_buffers(exporters): each exporter's buffer, held and locked against resizing until the Spans dies. */
static PyObject *spans_of_buffers(PyObject *module, PyObject *exporters)
{
    rf_state *state = rf_get_state(module);
    if (state == NULL) {
        return NULL;
    }
    if (!PyList_CheckExact(exporters)) {
        PyErr_SetString(PyExc_TypeError, "a list of buffers is needed");
        return NULL;
    }
    PyObject *spans = rf_spans_new(state, PyList_Size(exporters), NULL);
    for (Py_ssize_t i = 0; spans != NULL && i < PyList_Size(exporters); i++) {
        /* Exporting a buffer may run Python code, which could empty the list. */
        PyObject *exporter = Py_NewRef(PyList_GetItem(exporters, i));
        if (rf_spans_append_buffer(spans, exporter) < 0) {
            Py_CLEAR(spans);
        }
        Py_DECREF(exporter);
    }
    return spans;
}

/* spans_of_addresses(owners, addresses, sizes): for memory that only its owner can address, such as a tensor's. */
static PyObject *spans_of_addresses(PyObject *module, PyObject *args)
{
    rf_state *state = rf_get_state(module);
    PyObject *owners, *addresses, *sizes;
    if (state == NULL || !PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &owners, &PyList_Type, &addresses,
                                           &PyList_Type, &sizes)) {
        return NULL;
    }
    Py_ssize_t n = PyList_Size(owners);
    if (PyList_Size(addresses) != n || PyList_Size(sizes) != n) {
        PyErr_SetString(PyExc_ValueError, "owners, addresses and sizes differ in length");
        return NULL;
    }
    PyObject *spans = rf_spans_new(state, n, NULL);
    for (Py_ssize_t i = 0; spans != NULL && i < n; i++) {
        void *address = PyLong_AsVoidPtr(PyList_GetItem(addresses, i));
        Py_ssize_t size = PyErr_Occurred() ? -1 : PyLong_AsSsize_t(PyList_GetItem(sizes, i));
        if (PyErr_Occurred() || (size > 0 && address == NULL) ||
            rf_spans_append(spans, address, size, PyList_GetItem(owners, i)) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a row has no memory");
            }
            Py_CLEAR(spans);
        }
    }
    return spans;
}

static PyMethodDef functions[] = {
    {"spans_of_buffers", spans_of_buffers, METH_O,
     "spans_of_buffers(exporters)\n--\n\nSpans over the contiguous buffers of a list of exporters."},
    {"spans_of_addresses", spans_of_addresses, METH_VARARGS,
     "spans_of_addresses(owners, addresses, sizes)\n--\n\nSpans over memory that each owner keeps in place."},
    {NULL, NULL, 0, NULL},
};

int rf_spans_init(PyObject *module, rf_state *state)
{
    state->spans = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spans_spec, NULL);
    if (state->spans == NULL || PyModule_AddType(module, state->spans) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
