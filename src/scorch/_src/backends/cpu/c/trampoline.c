typedef long long (*kernel_t)(long long *);
typedef struct object object;
extern object *PyExc_TypeError, *PyExc_ValueError;
void PyErr_SetString(object *, const char *);
object *PyErr_NoMemory(void);
object *PyErr_Occurred(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
long long PyLong_AsLongLong(object *);
object *PyLong_FromLongLong(long long);
long PyList_Size(object *);
object *PyList_GetItem(object *, long);
int PyList_SetItem(object *, long, object *);
void PyErr_Clear(void);
void *malloc(unsigned long);
void free(void *);

#define FEW 64

static int unpack(object *item, long long *value) {
    *value = PyLong_AsLongLong(item);
    return *value != -1 || !PyErr_Occurred();
}

static kernel_t unpack_kernel(object *const *given, long count) {
    long long address;
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "the first argument must be the address of a kernel");
        return 0;
    }
    if (!unpack(given[0], &address)) return 0;
    if (!address) PyErr_SetString(PyExc_ValueError, "the address of a kernel is 0");
    return (kernel_t)address;
}

static long long run(kernel_t kernel, long long *args) {
    void *thread = PyEval_SaveThread();
    long long status = kernel(args);
    PyEval_RestoreThread(thread);
    return status;
}

object *scorch_call(object *self, object *const *given, long count) {
    long long few[FEW], *args = few;
    object *result = 0;
    kernel_t kernel = unpack_kernel(given, count);
    if (!kernel) return 0;
    if (count - 1 > FEW && !(args = malloc((count - 1) * sizeof *args))) return PyErr_NoMemory();
    for (long i = 1; i < count; i++)
        if (!unpack(given[i], &args[i - 1])) goto done;
    result = PyLong_FromLongLong(run(kernel, args));
done:
    if (args != few) free(args);
    return result;
}

object *scorch_call_back(object *self, object *const *given, long count) {
    long long few[2 * FEW], *args = few, *before, status;
    object *result = 0;
    long size;
    kernel_t kernel = unpack_kernel(given, count);
    if (!kernel) return 0;
    if (count != 2 || (size = PyList_Size(given[1])) < 0) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "call_back takes the address of a kernel and a list");
        return 0;
    }
    if (size > FEW && !(args = malloc(2 * size * sizeof *args))) return PyErr_NoMemory();
    before = args + size;
    for (long i = 0; i < size; i++) {
        object *item = PyList_GetItem(given[1], i);
        if (!item || !unpack(item, &args[i])) goto done;
        before[i] = args[i];
    }
    status = run(kernel, args);
    for (long i = 0; i < size; i++) {
        object *item;
        if (args[i] == before[i]) continue;
        item = PyLong_FromLongLong(args[i]);
        if (!item || PyList_SetItem(given[1], i, item) < 0) goto done;
    }
    result = PyLong_FromLongLong(status);
done:
    if (args != few) free(args);
    return result;
}
