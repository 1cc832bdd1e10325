/* rollferry._native: module definition and state. */
#define ROLLFERRY_IMPORT_ARRAY
#include "native.h"

static struct PyModuleDef definition;

rf_state *rf_get_state(PyObject *module)
{
    rf_state *state = PyModule_GetState(module);
    if (state == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "rollferry._native has no state");
    }
    return state;
}

static int import_numpy(void)
{
    import_array1(-1);
    return 0;
}

static int execute(PyObject *module)
{
    rf_state *state = rf_get_state(module);
    if (state == NULL || import_numpy() < 0) {
        return -1;
    }
    if (rf_cpython_init(module, state) < 0 || rf_spans_init(module, state) < 0 || rf_lease_init(module, state) < 0 ||
        rf_memo_init(module, state) < 0 ||
        rf_rows_init(module, state) < 0 || rf_views_init(module, state) < 0 || rf_numbers_init(module, state) < 0 ||
        rf_text_init(module, state) < 0 || rf_records_init(module, state) < 0 ||
        rf_tensors_init(module, state) < 0 || rf_files_init(module, state) < 0) {
        return -1;
    }
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    rf_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->spans);
        Py_VISIT(state->lease);
        Py_VISIT(state->memo);
        Py_VISIT(state->number_column);
    }
    return 0;
}

static int clear(PyObject *module)
{
    rf_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_CLEAR(state->spans);
        Py_CLEAR(state->lease);
        Py_CLEAR(state->memo);
        Py_CLEAR(state->number_column);
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rollferry._native",
    .m_doc = "The native core of rollferry: spans, leases, rows, numbers and text.",
    .m_size = sizeof(rf_state),
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
