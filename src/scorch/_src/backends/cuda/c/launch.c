/* One call from tensors to a launch: looks at the tensors, has torch allocate the result, launches on torch's
   current stream; or to several launches, whose results were allocated before. It is C for the host, compiled like kernels for the CPU, behind launch_types.c. */

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

#define LISTED 512
/* A list of launches: slots of all sets, pairs of a slot and the argument whose address is added to it, and for each
   launch the function, blocks, threads, bytes of shared memory, and where its slots begin. */
enum { ALL_LAUNCH, ALL_DEVICE_OF, ALL_KIND, ALL_DEVICE, ALL_SLOTS, ALL_ADDRESSES, ALL_LAUNCHES, ALL_NUMBERS };
enum { OF_FUNCTION, OF_BLOCKS, OF_THREADS, OF_SHARED, OF_SLOTS, OF_NUMBERS };

/* launch_all(list, address, tensors...) returns True. None: something is unusual, or a launch failed; callers launch
   one by one, which also raises errors. */
object *scorch_launch_all(object *self, object *const *given, long count) {
    const long long *list = (const long long *)PyBytes_AsString(given[0]), *pair, *each;
    long long slots[LISTED], addresses[SLOTS];
    tensor_t seen;
    shape_t shape = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
    int current;
    if (!list || list[ALL_SLOTS] > LISTED || count > SLOTS) return nothing();
    if (((device_of_t)list[ALL_DEVICE_OF])(&current) || current != list[ALL_DEVICE]) return nothing();
    addresses[0] = PyLong_AsLongLong(given[1]);
    for (long i = 2; i < count; i++) {
        if (table->look(given[i], &seen) || !seen.data) return nothing();
        if (seen.device != list[ALL_KIND] || seen.device_id != list[ALL_DEVICE]) return nothing();
        addresses[i - 1] = (long long)((char *)seen.data + seen.offset);
    }
    if (table->stream(list[ALL_KIND], list[ALL_DEVICE], &shape.stream)) return nothing();
    memcpy(slots, list + ALL_NUMBERS, list[ALL_SLOTS] * 8);
    pair = list + ALL_NUMBERS + list[ALL_SLOTS], each = pair + 2 * list[ALL_ADDRESSES];
    for (; pair < each; pair += 2) slots[pair[0]] += addresses[pair[1]];
    for (long i = 0; i < list[ALL_LAUNCHES]; i++, each += OF_NUMBERS) {
        void *arguments[] = {slots + each[OF_SLOTS]};
        shape.blocks[0] = (unsigned)each[OF_BLOCKS], shape.threads[0] = (unsigned)each[OF_THREADS];
        shape.shared = (unsigned)each[OF_SHARED];
        if (((launch_t)list[ALL_LAUNCH])(&shape, (void *)each[OF_FUNCTION], arguments, 0)) return nothing();
    }
    return PyBool_FromLong(1);
}
