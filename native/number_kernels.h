/* The per-number loops and the dtypes of numbers.c, which alone includes this. */
#ifndef ROLLFERRY_NUMBER_KERNELS_H
#define ROLLFERRY_NUMBER_KERNELS_H

#include "native.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "number_kernels.h writes little-endian buffers from native values"
#endif

/* The built-in sequences that a row of numbers may be. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t (*size)(PyObject *);
    PyObject *(*make)(Py_ssize_t);
} sequence;

static const sequence sequences[] = {
    {&PyList_Type, PyList_Size, PyList_New},
    {&PyTuple_Type, PyTuple_Size, PyTuple_New},
};
static const sequence *const flat = &sequences[0];

static const sequence *find_sequence(const void *type)
{
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        if (sequences[i].type == type) {
            return &sequences[i];
        }
    }
    return NULL;
}

/* The ints seen: those that fit int64 lie in [low, high], those above it in [above_low, above_high]. */
typedef struct {
    int64_t low, high;
    uint64_t above_low, above_high;
} int_range;

static const int_range empty_range = {INT64_MAX, INT64_MIN, UINT64_MAX, 0};

typedef enum { INT, FLOAT, BOOL, KINDS } kind;

/* What a scan found out. */
typedef struct {
    kind kind; /* KINDS until the first number */
    int_range range; /* of ints and bools */
    bool float4; /* every float survives as float32 */
    const sequence *rows; /* NULL for a flat list */
    PyObject *offsets; /* NULL for a flat list */
    Py_ssize_t count;
    char *kept; /* the numbers themselves, of 4 bytes each: int32, float32, or bool as int32; NULL where they are not kept */
} summary;

enum { KEPT_SIZE = 4 };

/* ---- one pass over a row: kinds and ranges ---- */

static bool read_above(PyObject *item, int overflow, uint64_t *value)
{
    if (overflow < 0) {
        return false;
    }
    *value = PyLong_AsUnsignedLongLong(item);
    return *value != UINT64_MAX || !PyErr_Occurred();
}

static bool scan_ints(PyObject *const *items, Py_ssize_t n, summary *out, int32_t *kept)
{
    int_range r = out->range;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = rf_prefetched(items, i, n);
        if (item == NULL || Py_TYPE(item) != &PyLong_Type) {
            return false;
        }
        int overflow = 0;
        int64_t value;
        if (!rf_read_small_int(item, &value)) {
            value = PyLong_AsLongLongAndOverflow(item, &overflow);
        }
        if (overflow) {
            uint64_t above;
            if (!read_above(item, overflow, &above)) {
                return false;
            }
            r.above_low = above < r.above_low ? above : r.above_low;
            r.above_high = above > r.above_high ? above : r.above_high;
            continue;
        }
        if (kept != NULL) {
            kept[i] = (int32_t)value; /* of no use where the range turns out to be wider */
        }
        r.low = value < r.low ? value : r.low;
        r.high = value > r.high ? value : r.high;
    }
    out->range = r;
    return true;
}

/* Bit for bit, so that NaN payloads, -0.0 and overflow to infinity all count. */
static inline bool survives_float4(double value)
{
    double back = (double)(float)value;
    return memcmp(&back, &value, sizeof value) == 0;
}

static bool scan_floats(PyObject *const *items, Py_ssize_t n, summary *out, int32_t *kept)
{
    bool float4 = out->float4;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = rf_prefetched(items, i, n);
        if (item == NULL || Py_TYPE(item) != &PyFloat_Type) {
            return false;
        }
        double value = rf_read_float(item);
        float4 = float4 && survives_float4(value);
        if (kept != NULL) {
            float narrow = (float)value;
            memcpy(&kept[i], &narrow, sizeof narrow);
        }
    }
    out->float4 = float4;
    return true;
}

static bool scan_bools(PyObject *const *items, Py_ssize_t n, summary *out, int32_t *kept)
{
    int_range r = out->range;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = rf_prefetched(items, i, n);
        if (item == NULL || Py_TYPE(item) != &PyBool_Type) {
            return false;
        }
        int64_t value = item == Py_True;
        if (kept != NULL) {
            kept[i] = (int32_t)value;
        }
        r.low = value < r.low ? value : r.low;
        r.high = value > r.high ? value : r.high;
    }
    out->range = r;
    return true;
}

static const struct {
    const char *name;
    PyTypeObject *type;
    bool (*scan)(PyObject *const *, Py_ssize_t, summary *, int32_t *);
} kinds[KINDS] = {
    [INT] = {"int", &PyLong_Type, scan_ints},
    [FLOAT] = {"float", &PyFloat_Type, scan_floats},
    [BOOL] = {"bool", &PyBool_Type, scan_bools},
};

/* ---- one number in; false where it is not what the scan saw ---- */

static inline bool read_int(PyObject *item, const int_range *r, int64_t *bits)
{
    if (item == NULL || Py_TYPE(item) != &PyLong_Type) {
        return false;
    }
    int overflow = 0;
    if (!rf_read_small_int(item, bits)) {
        *bits = PyLong_AsLongLongAndOverflow(item, &overflow);
    }
    if (!overflow) {
        return *bits >= r->low && *bits <= r->high;
    }
    uint64_t above;
    if (!read_above(item, overflow, &above) || above < r->above_low || above > r->above_high) {
        return false;
    }
    *bits = (int64_t)above; /* only ever stored as <u8, which takes the same bits */
    return true;
}

static inline bool read_float8(PyObject *item, const int_range *Py_UNUSED(r), double *value)
{
    if (item == NULL || Py_TYPE(item) != &PyFloat_Type) {
        return false;
    }
    *value = rf_read_float(item);
    return true;
}

static inline bool read_float4(PyObject *item, const int_range *r, double *value)
{
    return read_float8(item, r, value) && survives_float4(*value);
}

static inline bool read_bool(PyObject *item, const int_range *Py_UNUSED(r), int64_t *value)
{
    *value = item == Py_True;
    return item == Py_True || item == Py_False;
}

/* ---- ints that were made already ---- */

/* Token ids and the like repeat: an int that a column had before is taken again, as CPython does with ints below 257. */
typedef struct {
    PyObject **made; /* by value - low; borrowed from the lists that are being built. NULL where it isn't worth it. */
    uint64_t low, size;
} interned;

#define INTERN(make_number)                                                                                            \
    static inline PyObject *intern_##make_number(const interned *known, int64_t value)                                 \
    {                                                                                                                  \
        uint64_t index = (uint64_t)value - known->low;                                                                 \
        if (known->made == NULL || index >= known->size) { /* the bundle may change since its bounds were looked for */ \
            return make_number(value);                                                                                 \
        }                                                                                                              \
        PyObject **place = &known->made[index];                                                                        \
        if (*place == NULL) {                                                                                          \
            *place = make_number(value);                                                                               \
            return *place;                                                                                             \
        }                                                                                                              \
        return Py_NewRef(*place);                                                                                      \
    }

static PyObject *make_unsigned(int64_t bits)
{
    return PyLong_FromUnsignedLongLong((uint64_t)bits);
}

INTERN(PyLong_FromLongLong)
INTERN(make_unsigned)

static PyObject *make_bool(const interned *Py_UNUSED(known), uint8_t value)
{
    if (value > 1) {
        return PyErr_Format(PyExc_ValueError, "byte %d is not a bool", value);
    }
    return PyBool_FromLong(value);
}

static inline PyObject *make_float(const interned *Py_UNUSED(known), double value)
{
    return PyFloat_FromDouble(value);
}

/* ---- a row of numbers in and out, one tight loop for each pair of Python and C type ---- */

#define FILL(name, ctype, wide, read)                                                                                  \
    static bool fill_##name(PyObject *const *items, Py_ssize_t n, const int_range *r, char *dest)                      \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < n; i++) {                                                                           \
            wide value;                                                                                                \
            if (!read(rf_prefetched(items, i, n), r, &value)) {                                                           \
                return false;                                                                                          \
            }                                                                                                          \
            ctype narrow = (ctype)value;                                                                               \
            memcpy(dest + (size_t)i * sizeof narrow, &narrow, sizeof narrow);                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }

/* The same from numbers that the scan kept. */
#define CONVERT(name, ctype, kept_type)                                                                                \
    static void convert_##name(const char *kept, Py_ssize_t n, char *dest)                                             \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < n; i++) {                                                                           \
            kept_type value;                                                                                           \
            memcpy(&value, kept + (size_t)i * sizeof value, sizeof value);                                             \
            ctype narrow = (ctype)value;                                                                               \
            memcpy(dest + (size_t)i * sizeof narrow, &narrow, sizeof narrow);                                          \
        }                                                                                                              \
    }

#define BUILD(name, ctype, make_number)                                                                                \
    static bool build_##name(PyObject **slots, Py_ssize_t n, const char *data, const interned *known)                  \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < n; i++) {                                                                           \
            ctype value;                                                                                               \
            memcpy(&value, data + (size_t)i * sizeof value, sizeof value);                                             \
            slots[i] = make_number(known, value);                                                                      \
            if (slots[i] == NULL) {                                                                                    \
                return false;                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }

/* Lowest and highest of at least one number, in the order of its type. */
#define BOUNDS(name, ctype)                                                                                            \
    static void bounds_##name(const char *data, Py_ssize_t n, uint64_t *low, uint64_t *high)                           \
    {                                                                                                                  \
        ctype least, most;                                                                                             \
        memcpy(&least, data, sizeof least);                                                                            \
        most = least;                                                                                                  \
        for (Py_ssize_t i = 1; i < n; i++) {                                                                           \
            ctype value;                                                                                               \
            memcpy(&value, data + (size_t)i * sizeof value, sizeof value);                                             \
            least = value < least ? value : least;                                                                     \
            most = value > most ? value : most;                                                                        \
        }                                                                                                              \
        *low = (uint64_t)least;                                                                                        \
        *high = (uint64_t)most;                                                                                        \
    }

#define INTS(name, ctype, make_number)                                                                                 \
    FILL(name, ctype, int64_t, read_int)                                                                               \
    CONVERT(name, ctype, int32_t)                                                                                      \
    BUILD(name, ctype, make_number)                                                                                    \
    BOUNDS(name, ctype)

INTS(u1, uint8_t, intern_PyLong_FromLongLong)
INTS(i1, int8_t, intern_PyLong_FromLongLong)
INTS(u2, uint16_t, intern_PyLong_FromLongLong)
INTS(i2, int16_t, intern_PyLong_FromLongLong)
INTS(u4, uint32_t, intern_PyLong_FromLongLong)
INTS(i4, int32_t, intern_PyLong_FromLongLong)
INTS(u8, uint64_t, intern_make_unsigned)
INTS(i8, int64_t, intern_PyLong_FromLongLong)
FILL(f4, float, double, read_float4)
FILL(f8, double, double, read_float8)
FILL(int_f4, float, int64_t, read_int)
FILL(int_f8, double, int64_t, read_int)
FILL(b1, uint8_t, int64_t, read_bool)
CONVERT(f4, float, float)
CONVERT(f8, double, float)
CONVERT(int_f4, float, int32_t)
CONVERT(int_f8, double, int32_t)
CONVERT(b1, uint8_t, int32_t)
BUILD(f4, float, make_float)
BUILD(f8, double, make_float)
BUILD(b1, uint8_t, make_bool)

/* ---- dtypes, narrowest first, unsigned before signed: the first that holds a range is the one to choose ---- */

typedef struct {
    const char *name;
    Py_ssize_t itemsize;
    int64_t low; /* [low, high]: ints that it holds exactly */
    uint64_t high;
    /* By kind of number; NULL where the two do not go together. */
    bool (*fill[KINDS])(PyObject *const *, Py_ssize_t, const int_range *, char *);
    void (*convert[KINDS])(const char *, Py_ssize_t, char *);
    bool (*build[KINDS])(PyObject **, Py_ssize_t, const char *, const interned *);
    void (*bounds)(const char *, Py_ssize_t, uint64_t *, uint64_t *); /* NULL where it isn't for ints */
} dtype;

#define INT_DTYPE(name, size, low, high, suffix)                                                                       \
    {name, size, low, high, {[INT] = fill_##suffix}, {[INT] = convert_##suffix}, {[INT] = build_##suffix},             \
     bounds_##suffix}

static const dtype dtypes[] = {
    INT_DTYPE("|u1", 1, 0, UINT8_MAX, u1),
    INT_DTYPE("|i1", 1, INT8_MIN, INT8_MAX, i1),
    INT_DTYPE("<u2", 2, 0, UINT16_MAX, u2),
    INT_DTYPE("<i2", 2, INT16_MIN, INT16_MAX, i2),
    INT_DTYPE("<u4", 4, 0, UINT32_MAX, u4),
    INT_DTYPE("<i4", 4, INT32_MIN, INT32_MAX, i4),
    INT_DTYPE("<u8", 8, 0, UINT64_MAX, u8),
    INT_DTYPE("<i8", 8, INT64_MIN, INT64_MAX, i8),
    {"<f4", 4, -(1LL << 24), 1ULL << 24, {[INT] = fill_int_f4, [FLOAT] = fill_f4},
     {[INT] = convert_int_f4, [FLOAT] = convert_f4}, {[FLOAT] = build_f4}, NULL},
    {"<f8", 8, -(1LL << 53), 1ULL << 53, {[INT] = fill_int_f8, [FLOAT] = fill_f8},
     {[INT] = convert_int_f8, [FLOAT] = convert_f8}, {[FLOAT] = build_f8}, NULL},
    {"|b1", 1, 0, 1, {[BOOL] = fill_b1}, {[BOOL] = convert_b1}, {[BOOL] = build_b1}, NULL},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static const dtype *find_dtype(const char *name)
{
    for (int i = 0; i < DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown number dtype '%.20s'", name);
    return NULL;
}

static bool holds(const dtype *type, const summary *s)
{
    const int_range *r = &s->range;
    if (type->fill[s->kind] == NULL) {
        return false;
    }
    if (s->kind == FLOAT) {
        return s->float4 || type->itemsize == sizeof(double);
    }
    bool below = r->low >= type->low && (r->high < 0 || (uint64_t)r->high <= type->high);
    return below && r->above_high <= type->high;
}

#endif
