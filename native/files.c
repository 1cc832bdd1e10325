/* What the embedded engine needs of Linux and the standard library lacks: locks of open file descriptions, and the kind
 * of a file system. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static int set_lock(int fd, short kind, Py_ssize_t byte)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static PyObject *try_lock(PyObject *module, PyObject *args)
{
    (void)module;
    int fd, exclusive;
    Py_ssize_t byte;
    if (!PyArg_ParseTuple(args, "inp", &fd, &byte, &exclusive)) {
        return NULL;
    }
    if (set_lock(fd, exclusive ? F_WRLCK : F_RDLCK, byte) == 0) {
        Py_RETURN_TRUE;
    }
    if (errno == EAGAIN || errno == EACCES) {
        Py_RETURN_FALSE;
    }
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *is_locked(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    Py_ssize_t byte;
    if (!PyArg_ParseTuple(args, "in", &fd, &byte)) {
        return NULL;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &lock) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(lock.l_type != F_UNLCK);
}

/* Open a file and take a shared lock of one byte; the path must lead to it still when it is locked. -1 and errno, which is
 * ENOENT where it doesn't, or another has an exclusive lock. */
static int open_locked(const char *path, Py_ssize_t byte)
{
    struct stat here, there;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* which a FIFO in its place would block */
    if (fd < 0) {
        return -1;
    }
    int error = 0;
    if (set_lock(fd, F_RDLCK, byte) < 0) {
        error = errno == EAGAIN || errno == EACCES ? ENOENT : errno;
    } else if (lstat(path, &there) < 0 || fstat(fd, &here) < 0) {
        error = errno;
    } else if (here.st_ino != there.st_ino || here.st_dev != there.st_dev) {
        error = ENOENT;
    }
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static PyObject *open_leased(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *path;
    Py_ssize_t byte;
    if (!PyArg_ParseTuple(args, "O&n", PyUnicode_FSConverter, &path, &byte)) {
        return NULL;
    }
    int fd;
    Py_BEGIN_ALLOW_THREADS
    fd = open_locked(PyBytes_AsString(path), byte);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (fd >= 0) {
        result = PyLong_FromLong(fd);
    } else if (errno == ENOENT) {
        result = Py_NewRef(Py_None);
    } else {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    }
    Py_DECREF(path);
    return result;
}

static PyObject *unlock(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    Py_ssize_t byte;
    if (!PyArg_ParseTuple(args, "in", &fd, &byte)) {
        return NULL;
    }
    if (set_lock(fd, F_UNLCK, byte) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *is_memory_backed(PyObject *module, PyObject *arg)
{
    (void)module;
    struct statfs status;
    long fd = PyLong_AsLong(arg);
    if (fd == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (fstatfs((int)fd, &status) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC ||
                           status.f_type == HUGETLBFS_MAGIC);
}

static PyMethodDef functions[] = {
    {"try_lock", try_lock, METH_VARARGS,
     "try_lock(fd, byte, exclusive)\n--\n\n"
     "Lock one byte for the open file description of `fd`, without waiting; False if another holds it.\n"
     "An exclusive lock needs a descriptor open for writing, a shared one a descriptor open for reading."},
    {"is_locked", is_locked, METH_VARARGS,
     "is_locked(fd, byte)\n--\n\nWhether others have any lock of one byte, as far as this open file description is concerned."},
    {"open_leased", open_leased, METH_VARARGS,
     "open_leased(path, byte)\n--\n\n"
     "Open a file for reading, with a shared lock of one byte, and give its descriptor; None where there is no such file,\n"
     "another has an exclusive lock, or the path led elsewhere once it was locked."},
    {"unlock", unlock, METH_VARARGS, "unlock(fd, byte)\n--\n\nDrop the lock of one byte."},
    {"is_memory_backed", is_memory_backed, METH_O,
     "is_memory_backed(fd)\n--\n\nWhether the file system of `fd` keeps its files in memory."},
    {NULL, NULL, 0, NULL},
};

int rf_files_init(PyObject *module, rf_state *state)
{
    (void)state;
    return PyModule_AddFunctions(module, functions);
}
