/* Tensors: lists of tensors as spans, offsets and shapes, by DLPack's C exchange API, version 1.
 *
 * The structures below are those of the DLPack specification (dmlc/dlpack, include/dlpack/dlpack.h, version 1.3); they are
 * part of its ABI. A library hands its function table out as a capsule; what it fills in borrows from the tensor.
 */
#include "native.h"

enum { DL_MAJOR = 1, DL_CPU = 1, DL_FLOAT = 2, DL_COMPLEX = 5 };

typedef struct {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
    void *previous;
    void *allocate;
    void *from_object;
    void *to_object;
    int (*borrow)(void *object, dl_tensor *out);
    void *current_stream;
} dl_exchange;

typedef struct {
    const dl_exchange *exchange;
    dl_tensor first;
    int contiguous;
    int equal_inner;
    PyObject *spans;
    PyObject *offsets;
    int64_t *offset;
    PyObject *shapes;
    int64_t *shape;
    PyObject *requires_grad;
    PyObject *is_neg;
    PyObject *is_conj;
} collection;

/* Whether elements lie one after the other in C order. */
static int is_contiguous(const dl_tensor *tensor)
{
    int64_t expected = 1;
    for (int axis = tensor->ndim - 1; tensor->strides != NULL && axis >= 0; axis--) {
        if (tensor->shape[axis] == 0) {
            return 1;
        }
        if (tensor->shape[axis] != 1 && tensor->strides[axis] != expected) {
            return 0;
        }
        expected *= tensor->shape[axis];
    }
    return 1;
}

/* Bytes of the elements; -1 where that is no whole number that fits. */
static int64_t nbytes_of(const dl_tensor *tensor)
{
    int64_t bits = (int64_t)tensor->dtype.bits * tensor->dtype.lanes;
    int64_t nbytes = bits / 8;
    for (int axis = 0; axis < tensor->ndim; axis++) {
        if (tensor->shape[axis] < 0 || __builtin_mul_overflow(nbytes, tensor->shape[axis], &nbytes)) {
            return -1;
        }
    }
    return bits % 8 ? -1 : nbytes;
}

/* Whether an argumentless method gives False: 1, 0, or -1 on error. */
static int is_false(PyObject *item, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(item, method, NULL);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : answer == Py_False;
}

/* Whether memory and values of a tensor are the same thing: 1, 0, or -1 on error. */
static int is_plain(const collection *c, PyObject *item, const dl_tensor *tensor)
{
    PyObject *grad = PyObject_GetAttr(item, c->requires_grad);
    if (grad == NULL) {
        return -1;
    }
    int plain = grad == Py_False && tensor->device.type == DL_CPU;
    Py_DECREF(grad);
    /* What is conjugated or negated on reading says so by a flag only, of which DLPack knows nothing. */
    if (plain == 1 && (tensor->dtype.code == DL_FLOAT || tensor->dtype.code == DL_COMPLEX)) {
        plain = is_false(item, c->is_neg);
    }
    if (plain == 1 && tensor->dtype.code == DL_COMPLEX) {
        plain = is_false(item, c->is_conj);
    }
    return plain;
}

/* Results of a look at one row, or at all. */
enum { FAILED = -1, UNFIT = 0, FITS = 1, DIFFERS = 2 };

static int start(collection *c, rf_state *state, Py_ssize_t n)
{
    c->contiguous = 1;
    c->equal_inner = 1;
    c->spans = rf_spans_new(state, n, NULL);
    c->requires_grad = PyUnicode_InternFromString("requires_grad");
    c->is_neg = PyUnicode_InternFromString("is_neg");
    c->is_conj = PyUnicode_InternFromString("is_conj");
    if (c->spans == NULL || c->requires_grad == NULL || c->is_neg == NULL || c->is_conj == NULL) {
        return -1;
    }
    if (c->first.ndim > 0) {
        c->offsets = rf_new_int64(n + 1, &c->offset);
        if (c->offsets == NULL) {
            return -1;
        }
        c->offset[0] = 0;
    }
    if (c->first.ndim > 1) {
        npy_intp shape[2] = {n, c->first.ndim};
        c->shapes = PyArray_SimpleNew(2, shape, NPY_INT64);
        if (c->shapes == NULL) {
            return -1;
        }
        c->shape = PyArray_DATA((PyArrayObject *)c->shapes);
    }
    return 0;
}

static int collect_row(collection *c, PyObject *item, Py_ssize_t i)
{
    dl_tensor tensor;
    if (c->exchange->borrow(item, &tensor) != 0) {
        return FAILED;
    }
    int plain = is_plain(c, item, &tensor);
    int64_t nbytes = nbytes_of(&tensor);
    if (plain < 1 || nbytes < 0 || (nbytes > 0 && tensor.data == NULL)) {
        return plain < 0 ? FAILED : UNFIT;
    }
    if (tensor.ndim != c->first.ndim || tensor.dtype.code != c->first.dtype.code ||
        tensor.dtype.bits != c->first.dtype.bits || tensor.dtype.lanes != c->first.dtype.lanes) {
        return DIFFERS;
    }
    if (tensor.ndim > 0 && __builtin_add_overflow(c->offset[i], tensor.shape[0], &c->offset[i + 1])) {
        return UNFIT;
    }
    for (int axis = 0; c->shape != NULL && axis < tensor.ndim; axis++) {
        c->shape[i * tensor.ndim + axis] = tensor.shape[axis];
        c->equal_inner &= axis == 0 || tensor.shape[axis] == c->shape[axis];
    }
    c->contiguous &= is_contiguous(&tensor);
    if (!c->contiguous) {
        return FITS;
    }
    const char *data = (const char *)tensor.data;
    return rf_spans_append(c->spans, nbytes > 0 ? data + tensor.byte_offset : data, nbytes, item) < 0 ? FAILED : FITS;
}

static PyObject *collect_tensors(PyObject *module, PyObject *args)
{
    rf_state *state = rf_get_state(module);
    PyObject *values, *capsule;
    collection c = {0};
    if (state == NULL || !PyArg_ParseTuple(args, "O!O", &PyList_Type, &values, &capsule)) {
        return NULL;
    }
    c.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (c.exchange == NULL) {
        return NULL;
    }
    Py_ssize_t n = PyList_Size(values);
    if (c.exchange->major != DL_MAJOR || c.exchange->borrow == NULL || n < 1) {
        Py_RETURN_FALSE;
    }
    int outcome = c.exchange->borrow(PyList_GetItem(values, 0), &c.first) != 0 ? FAILED : FITS;
    if (outcome == FITS && start(&c, state, n) < 0) {
        outcome = FAILED;
    }
    for (Py_ssize_t i = 0; outcome == FITS && i < n; i++) {
        PyObject *item = PyList_GetItem(values, i); /* attribute look-ups may run Python code, so the list is asked anew */
        Py_XINCREF(item);
        outcome = item == NULL ? FAILED : collect_row(&c, item, i);
        Py_XDECREF(item);
    }
    PyObject *result = NULL;
    if (outcome == FITS) {
        result = Py_BuildValue("OiOOO", c.contiguous ? c.spans : Py_None, (int)c.first.ndim,
                               c.offsets ? c.offsets : Py_None, c.shapes ? c.shapes : Py_None,
                               c.equal_inner ? Py_True : Py_False);
    } else if (outcome != FAILED) {
        result = Py_NewRef(outcome == DIFFERS ? Py_None : Py_False);
    }
    Py_XDECREF(c.spans);
    Py_XDECREF(c.offsets);
    Py_XDECREF(c.shapes);
    Py_XDECREF(c.requires_grad);
    Py_XDECREF(c.is_neg);
    Py_XDECREF(c.is_conj);
    return result;
}

static PyMethodDef functions[] = {
    {"collect_tensors", collect_tensors, METH_VARARGS,
     "collect_tensors(values, exchange)\n--\n\n"
     "(spans, ndim, offsets, shapes, equal_inner) as of collect_arrays, of a list of tensors whose library has handed out\n"
     "DLPack's exchange API; None if they differ in dtype or number of dimensions, False where one isn't plain CPU memory."},
    {NULL, NULL, 0, NULL},
};

int rf_tensors_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
