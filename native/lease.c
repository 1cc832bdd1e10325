/* Lease: owns a memory mapping for as long as any view of it exists.
 *
 * A mapping of a file keeps its open file description alive, and so the locks of that description, after every descriptor
 * is closed. That is how a reader's lock lives exactly as long as its views, at the cost of no descriptor, and also in the
 * child of a fork, which inherits the mapping.
 *
 * It exports the buffer protocol, so that an ndarray made over it has it as its base: numpy shortens the chain of bases
 * of ndarrays, but never past an object of another type.
 */
#include "native.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

typedef struct {
    PyObject_HEAD
    void *address;
    Py_ssize_t nbytes;
} Lease;

static PyObject *new_lease(rf_state *state, void *address, Py_ssize_t nbytes)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(state->lease, Py_tp_alloc);
    Lease *self = (Lease *)allocate(state->lease, 0);
    if (self == NULL) {
        munmap(address, (size_t)nbytes);
        return NULL;
    }
    self->address = address;
    self->nbytes = nbytes;
    return (PyObject *)self;
}

static void lease_dealloc(PyObject *object)
{
    Lease *self = (Lease *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->address != NULL) {
        munmap(self->address, (size_t)self->nbytes);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int lease_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
    Lease *self = (Lease *)object;
    return PyBuffer_FillInfo(view, object, self->address, self->nbytes, 0, flags);
}

static Py_ssize_t lease_length(PyObject *object)
{
    return ((Lease *)object)->nbytes;
}

static PyType_Slot lease_slots[] = {
    {Py_tp_dealloc, lease_dealloc},
    {Py_bf_getbuffer, lease_getbuffer},
    {Py_sq_length, lease_length},
    {Py_tp_doc, "Owner of a memory mapping; lives as long as any view of it."},
    {0, NULL},
};

static PyType_Spec lease_spec = {
    .name = "rollferry._native.Lease",
    .basicsize = sizeof(Lease),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lease_slots,
};

/* The whole mapping must be backed by the file, or touching it would raise SIGBUS. */
static int check_file_size(int fd, Py_ssize_t nbytes)
{
    struct stat status;
    if (nbytes <= 0) {
        PyErr_SetString(PyExc_ValueError, "a mapping needs at least one byte");
        return -1;
    }
    if (fstat(fd, &status) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if (status.st_size < nbytes) {
        PyErr_Format(PyExc_ValueError, "the file has %zd bytes, not %zd", (Py_ssize_t)status.st_size, nbytes);
        return -1;
    }
    return 0;
}

static PyObject *map(PyObject *module, Py_ssize_t nbytes, int flags, int fd)
{
    rf_state *state = rf_get_state(module);
    if (state == NULL) {
        return NULL;
    }
    void *address;
    Py_BEGIN_ALLOW_THREADS
    address = mmap(NULL, (size_t)nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    Py_END_ALLOW_THREADS
    if (address == MAP_FAILED) {
        return errno == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
    }
    return new_lease(state, address, nbytes);
}

static PyObject *map_private(PyObject *module, PyObject *args)
{
    int fd;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "in", &fd, &nbytes) || check_file_size(fd, nbytes) < 0) {
        return NULL;
    }
    return map(module, nbytes, MAP_PRIVATE, fd);
}

static PyObject *map_shared(PyObject *module, PyObject *args)
{
    int fd;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "in", &fd, &nbytes) || check_file_size(fd, nbytes) < 0) {
        return NULL;
    }
    return map(module, nbytes, MAP_SHARED, fd);
}

typedef struct {
    char *address;
    size_t nbytes;
    int error;
} part;

static void *populate_part(void *argument)
{
    part *work = argument;
    work->error = work->nbytes > 0 && madvise(work->address, work->nbytes, MADV_POPULATE_WRITE) < 0 ? errno : 0;
    return NULL;
}

static PyObject *populate(PyObject *module, PyObject *args)
{
    rf_state *state = rf_get_state(module);
    PyObject *object;
    int threads;
    if (state == NULL || !PyArg_ParseTuple(args, "O!i", state->lease, &object, &threads)) {
        return NULL;
    }
    threads = threads < 1 ? 1 : threads > RF_MAX_THREADS ? RF_MAX_THREADS : threads;
    Lease *lease = (Lease *)object;
    size_t nbytes = (size_t)lease->nbytes, page = (size_t)sysconf(_SC_PAGESIZE);
    size_t share = nbytes / (size_t)threads / page * page;
    part parts[RF_MAX_THREADS];
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int i = 0; i < threads; i++) {
        size_t offset = share * (size_t)i;
        parts[i] = (part){(char *)lease->address + offset, i == threads - 1 ? nbytes - offset : share, 0};
    }
    rf_work_on_parts(populate_part, parts, sizeof(part), threads);
    for (int i = 0; i < threads && error == 0; i++) {
        error = parts[i].error;
    }
    Py_END_ALLOW_THREADS
    if (error != 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *allocate(PyObject *module, PyObject *arg)
{
    Py_ssize_t nbytes = PyLong_AsSsize_t(arg);
    if (nbytes == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (nbytes <= 0) {
        PyErr_SetString(PyExc_ValueError, "a mapping needs at least one byte");
        return NULL;
    }
    return map(module, nbytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static PyMethodDef functions[] = {
    {"map_private", map_private, METH_VARARGS,
     "map_private(fd, nbytes)\n--\n\n"
     "Map the first `nbytes` of a file copy-on-write. Locks of the open file description of `fd` last as long as the Lease."},
    {"map_shared", map_shared, METH_VARARGS,
     "map_shared(fd, nbytes)\n--\n\n"
     "Map the first `nbytes` of a file for writing. Locks of the open file description of `fd` last as long as the Lease."},
    {"populate", populate, METH_VARARGS,
     "populate(lease, threads)\n--\n\n"
     "Give every page of a shared mapping memory now, so that no write to it takes a page fault or fails; on several threads,\n"
     "since most of that is the kernel's zeroing. OSError with EFAULT or ENOMEM where there is no memory, and with EINVAL\n"
     "where the kernel can't (before Linux 5.14)."},
    {"allocate", allocate, METH_O, "allocate(nbytes)\n--\n\nA Lease over fresh, zeroed, private memory."},
    {NULL, NULL, 0, NULL},
};

int rf_lease_init(PyObject *module, rf_state *state)
{
    state->lease = (PyTypeObject *)PyType_FromModuleAndSpec(module, &lease_spec, NULL);
    if (state->lease == NULL || PyModule_AddType(module, state->lease) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
