/* One call from tensors to launches: looks at the tensors, has torch allocate the result, launches on torch's
   current stream; or to launches whose results were allocated before. It is C for the host, compiled like kernels
   for the CPU, behind launch_types.c. */

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
/* A plan: functions of the driver, the device and how many there are of what follows: grids, which are launched one
   after the other (GRID numbers each); the slots before those of tensors, those behind the result, those behind the
   sums that a grid leaves for the next one; numbers of tensors that begin at multiples of 16 bytes; and facts of the
   tensors from the last to the first (as fits takes them, behind their length). */
enum { LAUNCH, DEVICE_OF, KIND, DEVICE, GRIDS, FIRST, BEFORE, BEHIND, ALIGNED, NUMBERS };
enum { FUNCTION, BLOCKS, THREADS, GRID };

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

/* launch(plan, allocate, allocate_sums, tensors...) returns the result; without sums, allocate_sums is None. False: a
   dense operand is another than the plan says. None: something else is, or a launch failed; callers take the long
   way, which also raises errors. */
object *scorch_launch(object *self, object *const *given, long count) {
    const long long *plan = (const long long *)PyBytes_AsString(given[0]), *grids, *first, *before, *behind, *aligned;
    const long long *facts;
    long long slots[SLOTS];
    tensor_t seen;
    shape_t shape = {{1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0};
    void *arguments[] = {slots};
    object *result, *sums = 0;
    long used = 0;
    int current, is_done;
    if (!plan || plan[FIRST] + count + plan[BEFORE] + plan[BEHIND] >= SLOTS) return nothing();
    if (((device_of_t)plan[DEVICE_OF])(&current) || current != plan[DEVICE]) return nothing();
    grids = plan + NUMBERS, first = grids + GRID * plan[GRIDS], before = first + plan[FIRST];
    behind = before + plan[BEFORE], aligned = behind + plan[BEHIND], facts = aligned + plan[ALIGNED];
    memcpy(slots, first, plan[FIRST] * 8);
    used = plan[FIRST];
    for (long i = count - 1; i >= 3; i--) { /* dense operands, which differ most often, are last */
        const long long length = *facts++;
        slots[used + i - 3] = address_of(given[i], &seen, plan);
        if (!slots[used + i - 3]) return nothing();
        if (length && !fits(&seen, facts)) return PyBool_FromLong(0);
        facts += length;
    }
    used += count - 3;
    for (long i = 0; i < plan[ALIGNED]; i++)
        if (slots[plan[FIRST] + aligned[i]] % 16) return nothing();
    if (table->stream(plan[KIND], plan[DEVICE], &shape.stream)) return nothing();
    result = PyObject_CallNoArgs(given[1]);
    if (!result) return 0;
    is_done = (slots[used++] = address_of(result, &seen, plan)) != 0;
    memcpy(slots + used, before, plan[BEFORE] * 8);
    used += plan[BEFORE];
    if (given[2] != none) {
        sums = PyObject_CallNoArgs(given[2]);
        if (!sums) {
            Py_DecRef(result);
            return 0;
        }
        is_done = is_done && (slots[used++] = address_of(sums, &seen, plan)) != 0;
    }
    memcpy(slots + used, behind, plan[BEHIND] * 8);
    for (long i = 0; i < plan[GRIDS] && is_done; i++) {
        const long long *grid = grids + GRID * i;
        shape.blocks[0] = (unsigned)grid[BLOCKS], shape.threads[0] = (unsigned)grid[THREADS];
        is_done = !((launch_t)plan[LAUNCH])(&shape, (void *)grid[FUNCTION], arguments, 0);
    }
    if (sums) Py_DecRef(sums); /* torch hands its memory out again behind what was launched */
    if (is_done) return result;
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
