/* One call from tensors to a launch: looks at the tensors, has torch allocate the result, launches on torch's
   current stream. It is C for the host, compiled like kernels for the CPU, behind launch_types.c. */

object *PyErr_Occurred(void);
void PyErr_Clear(void);
char *PyBytes_AsString(object *);
long long PyLong_AsLongLong(object *);
object *PyBool_FromLong(long);
object *PyObject_CallNoArgs(object *);
void Py_IncRef(object *);
void Py_DecRef(object *);
void *memcpy(void *, const void *, unsigned long);

#define SLOTS 128
/* A plan: what the driver and the kernel are, then the slots before those of tensors and those behind the result,
   numbers of tensors that begin at multiples of 16 bytes, and facts of the tensors from the last to the first (as
   fits takes them, behind their length). */
enum { LAUNCH, DEVICE_OF, FUNCTION, BLOCKS, THREADS, KIND, DEVICE, FIRST, LAST, ALIGNED, NUMBERS };

typedef struct { unsigned blocks[3], threads[3], shared; void *stream, *attributes; unsigned count; } shape_t;
typedef int (*launch_t)(const shape_t *, void *, void **, void **);
typedef int (*device_of_t)(int *);

static table_t *table;
static object *none;

object *scorch_set_exchange(object *self, object *const *given, long count) {
    table = (table_t *)PyLong_AsLongLong(given[0]);
    none = given[1];
    Py_IncRef(none);
    Py_IncRef(none);
    return none;
}

static object *nothing(void) {
    PyErr_Clear();
    Py_IncRef(none);
    return none;
}

/* The address of a tensor with elements on the device of a plan; 0 if it is none. */
static long long address_of(object *tensor, tensor_t *seen, const long long *plan) {
    if (table->look(tensor, seen)) return 0;
    if (seen->device != plan[KIND] || seen->device_id != plan[DEVICE] || !seen->data) return 0;
    return (long long)((char *)seen->data + seen->offset);
}

/* launch(plan, allocate, tensors...) returns the result. False: a dense operand is another than the plan says. None:
   something else is, or the launch failed; callers take the long way, which also raises errors. */
object *scorch_launch(object *self, object *const *given, long count) {
    const long long *plan = (const long long *)PyBytes_AsString(given[0]), *last, *aligned, *facts;
    long long slots[SLOTS];
    tensor_t seen;
    shape_t shape = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
    void *arguments[] = {slots};
    long used = 0;
    int current;
    if (!plan || plan[FIRST] + count + plan[LAST] >= SLOTS) return nothing();
    if (((device_of_t)plan[DEVICE_OF])(&current) || current != plan[DEVICE]) return nothing();
    memcpy(slots, plan + NUMBERS, plan[FIRST] * 8);
    used = plan[FIRST];
    last = plan + NUMBERS + plan[FIRST], aligned = last + plan[LAST], facts = aligned + plan[ALIGNED];
    for (long i = count - 1; i >= 2; i--) { /* dense operands, which differ most often, are last */
        const long long length = *facts++;
        slots[used + i - 2] = address_of(given[i], &seen, plan);
        if (!slots[used + i - 2]) return nothing();
        if (length && !fits(&seen, facts)) return PyBool_FromLong(0);
        facts += length;
    }
    used += count - 2;
    for (long i = 0; i < plan[ALIGNED]; i++)
        if (slots[plan[FIRST] + aligned[i]] % 16) return nothing();
    if (table->stream(plan[KIND], plan[DEVICE], &shape.stream)) return nothing();
    object *result = PyObject_CallNoArgs(given[1]);
    if (!result) return 0;
    slots[used] = address_of(result, &seen, plan);
    memcpy(slots + used + 1, last, plan[LAST] * 8);
    shape.blocks[0] = (unsigned)plan[BLOCKS], shape.threads[0] = (unsigned)plan[THREADS];
    if (slots[used] && !((launch_t)plan[LAUNCH])(&shape, (void *)plan[FUNCTION], arguments, 0)) return result;
    Py_DecRef(result);
    return nothing();
}
