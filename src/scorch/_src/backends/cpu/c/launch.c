extern object *PyExc_RuntimeError, *PyExc_MemoryError;
void PyErr_SetString(object *, const char *);
object *PyErr_Occurred(void);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
long long PyLong_AsLongLong(object *);
double PyFloat_AsDouble(object *);
char *PyBytes_AsString(object *);
long PyBytes_Size(object *);
void Py_IncRef(object *);
object *PyTuple_New(long);
object *PyTuple_GetItem(object *, long);
int PyTuple_SetItem(object *, long, object *);
object *PyLong_FromLongLong(long long);
object *PyBool_FromLong(long);
void *calloc(unsigned long, unsigned long);

#define MOST_CHECKED 65536 /* numbers, above which torch's threads are faster */
#define MOST_SEARCHED (2 * MIN_PER_THREAD) /* numbers, from which on threads share the search */
#define SLOTS 112 /* MAX_SLOTS and the few that rows adds */
typedef long long (*kernel_t)(long long *);
static table_t *table;
static object *none;

static void refuse(void *context, const char *kind, const char *message) {
    (void)context, (void)kind;
    PyErr_SetString(PyExc_MemoryError, message);
}

object *scorch_set_table(object *self, object *const *given, long count) {
    table = (table_t *)PyLong_AsLongLong(given[0]);
    none = given[1];
    Py_IncRef(none);
    Py_IncRef(none);
    most_pooled = (unsigned long)PyLong_AsLongLong(given[2]);
    pool_lock = PyThread_allocate_lock();
    return none;
}

/* pool(0): give all back, returns how many bytes those were; 1, 2: before a fork, after it in the parent;
   3: after it in the child, where the lock has no owner; 4: how many bytes there are */
object *scorch_pool(object *self, object *const *given, long count) {
    long long what = PyLong_AsLongLong(given[0]), bytes = 0;
    if (what == 0) bytes = (long long)empty_pool();
    if (what == 1) PyThread_acquire_lock(pool_lock, 1);
    if (what == 2) PyThread_release_lock(pool_lock);
    if (what == 3) pool_lock = PyThread_allocate_lock();
    if (what == 4) bytes = (long long)pooled;
    return PyLong_FromLongLong(bytes);
}

static int has_elements(const tensor_t *seen) {
    for (int d = 0; d < seen->ndim; d++)
        if (!seen->shape[d]) return 0;
    return 1;
}

/* What a builtin calls: facts of its tensors, which are checked where there are some, and what to allocate. A kernel
   that takes no longer than others wait for the interpreter's lock keeps it: that is what is_short says. */
typedef struct {
    kernel_t compute, finish;
    object *header, *result, *facts, *const *tensors;
    long count;
    int is_short;
} call_t;

static long run_kernel(const call_t *call, long long *slots) {
    void *thread = call->is_short ? 0 : PyEval_SaveThread();
    long status = (long)call->compute(slots);
    if (thread) PyEval_RestoreThread(thread);
    return status;
}

/* The addresses of tensors; 1: one does not fit its facts, -1: an error is set. */
static int gather(const call_t *call, long long *slots, long *used, long long *lengths) {
    char *first = PyBytes_AsString(call->header);
    long long *facts = call->facts == none ? 0 : (long long *)PyBytes_AsString(call->facts);
    if (!first || (call->facts != none && !facts)) return -1;
    *used = PyBytes_Size(call->header) / 8;
    if (*used + call->count + 20 > SLOTS) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel with too many arguments");
        return -1;
    }
    memcpy(slots, first, *used * 8);
    for (long i = 0; i < call->count; i++) {
        tensor_t seen;
        if (table->look(call->tensors[i], &seen)) {
            if (facts) { /* another layout, say: let the long way see to it */
                PyErr_Clear();
                return 1;
            }
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "an operand cannot be read");
            return -1;
        }
        if (!seen.data && has_elements(&seen)) { /* its memory was taken away */
            if (facts) return 1;
            PyErr_SetString(PyExc_RuntimeError,
                            "an operand has no memory: its storage was resized or freed; create it again");
            return -1;
        }
        if (facts) { /* a fact of length 0: not to be checked */
            long long length = *facts++;
            if (length && (seen.device != 1 || !fits(&seen, facts))) return 1;
            facts += length;
        }
        if (lengths) lengths[i] = seen.ndim ? seen.shape[0] : 1;
        slots[(*used)++] = (long long)((char *)seen.data + seen.offset);
    }
    return 0;
}

/* The call that builtins take as kernel or (compute, finish), first slots, result, facts or None, tensors... */
static call_t call_of(object *const *given, long count, int is_pair) {
    call_t call = {0, 0, given[1], given[2], given[3], given + 4, count - 4, 0};
    call.compute = (kernel_t)PyLong_AsLongLong(is_pair ? PyTuple_GetItem(given[0], 0) : given[0]);
    if (is_pair) call.finish = (kernel_t)PyLong_AsLongLong(PyTuple_GetItem(given[0], 1));
    return call;
}

static object *nothing(void) {
    Py_IncRef(none);
    return none;
}

/* The number of elements of a dense tensor; -1 if it has gaps */
static long long dense_length(const tensor_t *seen) {
    long long step = 1;
    for (int d = seen->ndim - 1; d >= 0; d--) {
        if (seen->strides && seen->shape[d] != 1 && seen->strides[d] != step) return -1;
        step *= seen->shape[d];
    }
    return step;
}

/* Whether all numbers of a tensor are finite; -1 for one that is large, or no dense float or double */
static int is_finite(object *tensor) {
    tensor_t seen;
    if (table->look(tensor, &seen)) {
        PyErr_Clear();
        return -1;
    }
    long long length = dense_length(&seen);
    const char *data = (const char *)seen.data + seen.offset;
    if (seen.device != 1 || seen.code != 2 || (seen.bits != 32 && seen.bits != 64)) return -1;
    if (length < 0 || length >= MOST_SEARCHED || (!seen.data && length)) return -1;
    return seen.bits == 32 ? !has_other_f32((const f32 *)data, length) : !has_other_f64((const f64 *)data, length);
}

/* finite(tensors...): whether all numbers are; None for tensors that are large, or no dense float or double */
object *scorch_finite(object *self, object *const *given, long count) {
    int found = 1;
    for (long i = 0; i < count && found == 1; i++) found = is_finite(given[i]);
    return found < 0 ? nothing() : PyBool_FromLong(found);
}

/* A new tensor, ours or torch's; *zeroed says whether its memory is known to be zero. */
static managed_t *make(int ours, long long code, long long bits, int ndim, const long long *extents,
                       int *zeroed) {
    long long shape[DIMS];
    tensor_t wanted = {0};
    managed_t *made = 0;
    if (ours) {
        made = own(code, bits, ndim, extents, zeroed);
        if (!made) PyErr_SetString(PyExc_MemoryError, "no memory for the result");
        return made;
    }
    *zeroed = 0;
    wanted.device = 1, wanted.lanes = 1, wanted.ndim = ndim, wanted.shape = shape;
    wanted.code = (unsigned char)code, wanted.bits = (unsigned char)bits;
    for (int d = 0; d < ndim; d++) shape[d] = extents[d];
    if (table->allocate(&wanted, &made, 0, refuse)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_MemoryError, "no memory for the result");
        return 0;
    }
    if (!made->tensor.data && has_elements(&wanted)) { /* a mode that makes shells of tensors is on */
        made->deleter(made);
        PyErr_SetString(PyExc_RuntimeError, "results have no memory here");
        return 0;
    }
    return made;
}

static long long address_of(const managed_t *made) {
    return (long long)((char *)made->tensor.data + made->tensor.offset);
}

/* A function of a short list of floats or doubles, of *bits, 0: relu, 1: neg, 2: abs, 3: times factor; None for others */
static object *mapped(long long code, double factor, object *values, int *bits) {
    long long length;
    tensor_t seen;
    void *out = 0;
    int zeroed;
    managed_t *made;
    if (table->look(values, &seen)) {
        PyErr_Clear();
        return nothing();
    }
    if (seen.device != 1 || seen.code != 2 || (seen.bits != 32 && seen.bits != 64)) return nothing();
    if (seen.ndim != 1 || (length = dense_length(&seen)) < 0 || length > MOST_CHECKED) return nothing();
    if (!seen.data) return nothing();
    if (!(made = make(1, 2, *bits = seen.bits, 1, &length, &zeroed))) return 0;
    const char *data = (const char *)seen.data + seen.offset;
    if (code == 3 && seen.bits == 32) scale_float((float)factor, (const float *)data, (float *)address_of(made), length);
    else if (code == 3) scale_double(factor, (const double *)data, (double *)address_of(made), length);
    else if (seen.bits == 32) map_float(code, (const float *)data, (float *)address_of(made), length);
    else map_double(code, (const double *)data, (double *)address_of(made), length);
    return table->give(made, &out) ? 0 : (object *)out;
}

/* The sum (0), difference (1) or product (2) of two short lists of floats or doubles; None for other values */
static object *combined(long long code, object *const *values) {
    tensor_t seen[2];
    long long length = 0;
    void *out = 0;
    int zeroed;
    for (int i = 0; i < 2; i++) {
        if (table->look(values[i], &seen[i])) {
            PyErr_Clear();
            return nothing();
        }
        length = dense_length(&seen[i]);
        if (seen[i].device != 1 || seen[i].code != 2 || (seen[i].bits != 32 && seen[i].bits != 64)) return nothing();
        if (seen[i].ndim != 1 || length < 0 || length > MOST_CHECKED || !seen[i].data) return nothing();
    }
    if (seen[0].bits != seen[1].bits || seen[0].shape[0] != seen[1].shape[0]) return nothing();
    managed_t *made = make(1, 2, seen[0].bits, 1, &length, &zeroed);
    if (!made) return 0;
    const char *a = (const char *)seen[0].data + seen[0].offset, *b = (const char *)seen[1].data + seen[1].offset;
    if (seen[0].bits == 32) combine_float(code, (const float *)a, (const float *)b, (float *)address_of(made), length);
    else combine_double(code, (const double *)a, (const double *)b, (double *)address_of(made), length);
    return table->give(made, &out) ? 0 : (object *)out;
}

object *scorch_map(object *self, object *const *given, long count) { /* map(code, values) */
    int bits;
    return mapped(PyLong_AsLongLong(given[0]), 0, given[1], &bits);
}

object *scorch_scale(object *self, object *const *given, long count) { /* scale(values, factor) */
    int bits;
    const double factor = PyFloat_AsDouble(given[1]);
    return PyErr_Occurred() ? 0 : mapped(3, factor, given[0], &bits);
}

/* add(result, row): adds row to every row of result, and says whether it did: both are dense floats or doubles, and
   result is small */
object *scorch_add(object *self, object *const *given, long count) {
    tensor_t sum, row;
    long long length, width;
    if (table->look(given[0], &sum) || table->look(given[1], &row)) {
        PyErr_Clear();
        return PyBool_FromLong(0);
    }
    length = dense_length(&sum), width = dense_length(&row);
    if (sum.device != 1 || sum.code != 2 || (sum.bits != 32 && sum.bits != 64)) return PyBool_FromLong(0);
    if (row.device != 1 || row.code != 2 || row.bits != sum.bits || row.ndim != 1) return PyBool_FromLong(0);
    if (length < 1 || length > MOST_CHECKED || !sum.data || !row.data) return PyBool_FromLong(0);
    if (!sum.ndim || width != sum.shape[sum.ndim - 1]) return PyBool_FromLong(0);
    char *at = (char *)sum.data + sum.offset;
    const char *added = (const char *)row.data + row.offset;
    for (long long begin = 0; begin < length; begin += width)
        if (sum.bits == 32) add_float((float *)at + begin, (const float *)added, width);
        else add_double((double *)at + begin, (const double *)added, width);
    return PyBool_FromLong(1);
}

/* Out of memory is an error; a result without memory is for the long way to refuse. */
static object *shell(void) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) return 0;
    PyErr_Clear();
    return nothing();
}

static object *out_of_memory(void) {
    PyErr_SetString(PyExc_MemoryError, "memory ran out in a kernel");
    return 0;
}

/* The result of a kernel as a tensor: of as many values as the array called ``like``, if that is not negative;
   None if a tensor does not fit its facts */
static object *filled(const call_t *call, long like) {
    long long slots[SLOTS], lengths[SLOTS], *result = (long long *)PyBytes_AsString(call->result), bytes, count;
    long used, status;
    int zeroed;
    void *out = 0;
    managed_t *made;
    if (PyErr_Occurred() || (status = gather(call, slots, &used, like < 0 ? 0 : lengths)) < 0) return 0;
    if (status) return nothing();
    bytes = result[3];
    if (like >= 0) count = lengths[like], bytes *= count;
    made = make((int)result[0], result[1], result[2], (int)result[4], like < 0 ? result + 5 : &count, &zeroed);
    if (!made) return call->facts == none ? 0 : shell();
    slots[used] = address_of(made);
    if (bytes && !zeroed && bytes < (long long)SHARED) memset((char *)slots[used], 0, (unsigned long)bytes);
    else if (bytes && !zeroed) {
        void *thread = PyEval_SaveThread();
        clear((char *)slots[used], (unsigned long)bytes, slots);
        PyEval_RestoreThread(thread);
    }
    if (run_kernel(call, slots)) {
        made->deleter(made);
        return out_of_memory();
    }
    return table->give(made, &out) ? 0 : (object *)out;
}

/* fill(kernel, first slots, result: ours code bits bytes ndim shape..., facts or None, tensors...)
   returns None if a tensor does not fit its facts; bytes of the result, if any, begin as zero */
object *scorch_fill(object *self, object *const *given, long count) {
    const call_t call = call_of(given, count, 0);
    return filled(&call, -1);
}

/* The tensors as Python has them, with nnz unless it is negative, or all freed. */
static object *given_out(managed_t **made, int parts, long long nnz, int wanted) {
    object *found = wanted ? PyTuple_New(parts + (nnz >= 0)) : 0;
    void *out;
    for (int part = 0; part < parts; part++) {
        out = 0;
        if (!found) {
            if (made[part]) made[part]->deleter(made[part]);
        } else if (table->give(made[part], &out) || PyTuple_SetItem(found, part, (object *)out)) {
            return 0;
        }
    }
    if (found && nnz >= 0) PyTuple_SetItem(found, parts, PyLong_FromLongLong(nnz));
    return found;
}

#define LEAST_KEPT 16384 /* entries that are not copied to a new array if a kernel has all of them in one */

/* rows((compute, finish), first slots, result: ours, rows, bits of indices, code and bits of values,
        facts or None, tensors...)
   returns (pos, crd, values); the slots after the tensors are those of compiler.collect.Rows */
static object *rows_of(const call_t *call) {
    long long slots[SLOTS], *result = (long long *)PyBytes_AsString(call->result), rows, nnz, *pos;
    long used, status;
    int zeroed, ours;
    void *thread;
    managed_t *made[3] = {0, 0, 0};
    if (PyErr_Occurred() || (status = gather(call, slots, &used, 0)) < 0) return 0;
    if (status) return nothing();
    ours = (int)*result++, rows = result[0];
    if (!(pos = (long long *)calloc((unsigned long)rows + 1, 8))) return out_of_memory();
    slots[used] = (long long)pos;
    slots[used + 6] = 0;
    if (run_kernel(call, slots)) {
        free(pos);
        return out_of_memory();
    }
    nnz = slots[used + 1];
    int wide = result[1] == 64 || nnz > 0x7fffffff, bits = wide ? 64 : 32;
    long long length = rows + 1;
    made[0] = make(ours, 0, bits, 1, &length, &zeroed);
    long long *arrays[] = {0, (long long *)slots[used + 3], (long long *)slots[used + 4]};
    int is_kept = ours && slots[used + 2] == 1 && nnz >= LEAST_KEPT;
    for (int part = 1; part < 3 && made[part - 1]; part++) {
        long long code = part == 1 ? 0 : result[2], bits = part == 1 ? result[1] : result[3];
        if (!is_kept) made[part] = make(ours, code, bits, 1, &nnz, &zeroed);
        else if ((made[part] = own_array((void *)*arrays[part], code, bits, nnz))) *arrays[part] = 0;
        else PyErr_SetString(PyExc_MemoryError, "no memory for the result");
    }
    slots[used + 6] = is_kept || !made[2]; /* discard */
    if (made[2]) slots[used + 7] = address_of(made[1]), slots[used + 8] = address_of(made[2]);
    thread = PyEval_SaveThread();
    call->finish(slots);
    if (made[2] && wide) memcpy((void *)address_of(made[0]), pos, (unsigned long)length * 8);
    if (made[2] && !wide) narrow((int *)address_of(made[0]), pos, length);
    free(pos);
    PyEval_RestoreThread(thread);
    if (!made[2] && call->facts != none && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
        for (int part = 0; part < 2; part++)
            if (made[part]) made[part]->deleter(made[part]);
        return nothing();
    }
    return given_out(made, 3, -1, !!made[2]);
}

object *scorch_rows(object *self, object *const *given, long count) {
    const call_t call = call_of(given, count, 1);
    return rows_of(&call);
}

/* Arrays of nnz elements, filled by finish from those that threads have written with gaps, which are freed; 0: there is
   no memory for them, and an error is set. The slots from ``last`` on are nnz, chunks, their table, discard, arrays. */
static int made_exact(managed_t **made, int parts, int ours, kernel_t finish, long long *slots, long last) {
    managed_t *exact[DIMS + 2] = {0};
    int zeroed, part, is_made = 1;
    for (part = 1; part < parts && is_made; part++) {
        long long code = made[part]->tensor.code, bits = made[part]->tensor.bits;
        exact[part] = ours ? own_pooled(code, bits, slots[last]) : make(0, code, bits, 1, slots + last, &zeroed);
        is_made = !!exact[part];
        if (is_made) slots[last + 3 + part] = address_of(exact[part]);
    }
    slots[last + 3] = !is_made; /* discard */
    void *thread = PyEval_SaveThread();
    finish(slots);
    PyEval_RestoreThread(thread);
    for (part = 1; part < parts; part++) {
        managed_t *spare = is_made ? made[part] : exact[part];
        if (spare) spare->deleter(spare);
        if (is_made) made[part] = exact[part];
    }
    if (!is_made && !PyErr_Occurred()) PyErr_SetString(PyExc_MemoryError, "no memory for the result");
    return is_made;
}

/* slots((compute, finish or 0), first slots, result: ours, rows, bits of indices, code and bits of values, how many
         arrays of coordinates, how many tensors bound the result and which, facts or None, tensors...)
   returns (pos, crd..., values, nnz); the slots after the tensors are those of compiler.collect_in_place */
static object *slots_of(const call_t *call) {
    long long slots[SLOTS], lengths[SLOTS], *result = (long long *)PyBytes_AsString(call->result), rows, bound = 0, nnz;
    long used, status;
    int zeroed, ours, parts, part;
    managed_t *made[DIMS + 2] = {0};
    if (PyErr_Occurred() || (status = gather(call, slots, &used, lengths)) < 0) return 0;
    if (status) return nothing();
    ours = (int)result[0], rows = result[1] + 1;
    parts = (int)result[5] + 2;
    for (long long term = 0; term < result[6]; term++) bound += lengths[result[7 + term]];
    int is_made = ours && own_together(made, parts, result, rows, bound);
    for (part = 0; part < parts; part++) {
        int is_index = part < parts - 1;
        if (!is_made)
            made[part] = make(ours, is_index ? 0 : result[3], is_index ? result[2] : result[4], 1,
                              part ? &bound : &rows, &zeroed);
        if (!made[part]) {
            given_out(made, parts, -1, 0);
            return call->facts == none ? 0 : shell();
        }
        slots[used + part] = address_of(made[part]);
    }
    status = run_kernel(call, slots);
    nnz = slots[used + parts];
    int has_gaps = !status && call->finish && slots[used + parts + 1] > 1, is_cut = !status && !has_gaps && nnz < bound;
    void *thread = is_cut && ours && bound > MOST_CHECKED ? PyEval_SaveThread() : 0;
    for (part = 1; part < parts && ours && is_cut; part++) made[part] = cut(made[part], nnz);
    if (thread) PyEval_RestoreThread(thread);
    if (status) {
        given_out(made, parts, -1, 0);
        return out_of_memory();
    }
    if (has_gaps) return given_out(made, parts, nnz, made_exact(made, parts, ours, call->finish, slots, used + parts));
    for (part = 1; part < parts && !ours && is_cut; part++) { /* torch's memory cannot be cut */
        managed_t *whole = made[part], *copy;
        copy = make(0, whole->tensor.code, whole->tensor.bits, 1, &nnz, &zeroed);
        if (!copy) {
            given_out(made, parts, -1, 0);
            return 0;
        }
        if (nnz) memcpy((void *)address_of(copy), (void *)address_of(whole), nnz * whole->tensor.bits / 8);
        made[part] = copy;
        whole->deleter(whole);
    }
    return given_out(made, parts, nnz, 1);
}

object *scorch_slots(object *self, object *const *given, long count) {
    const call_t call = call_of(given, count, 1);
    return slots_of(&call);
}
