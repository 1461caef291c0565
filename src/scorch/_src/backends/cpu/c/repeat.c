/* Cached calls repeated without Python in between: what they take, what they look up and what they return are objects of
   the layers above, which ``launch.Objects`` lists in this order. Where anything is unusual these functions return
   None, and what happens then is left to the long way, which finds words for errors of kernels, too. An error of Python
   code is passed on: it may be that of a signal, such as Ctrl-C, which nobody would raise again. */

enum { SPARSE, STORAGE, PATTERN, DENSE, PARAMETER, FORMAT, BUILTIN, MAKE_WRAPPER, WRAP, DEFAULT_DTYPE, FLOAT32, FLOAT64,
       IS_GRAD_ENABLED, ANY_REQUIRES_GRAD, IS_AUTOCAST, IS_NEG, FORWARD, LEVEL, NO_LEVEL, IN_BLOCK, APPLIED, USUAL, IS_USUAL, QUIET,
       EMPTY, MOST_ON_PATTERN, storage_, origin_, strides_, key_, tensors_, pattern_, values_, form_, shape_, pos_, crd_,
       counts_, requires_grad_, OBJECTS };
#define FEW 8 /* operands, and parts of what a call is known by */

object *PyObject_GetAttr(object *, object *);
int PyObject_SetAttr(object *, object *, object *);
int PyObject_GenericSetAttr(object *, object *, object *);
object *PyObject_Type(object *);
object *PyObject_CallNoArgs(object *);
object *PyObject_CallOneArg(object *, object *);
object *PyObject_Call(object *, object *, object *);
int PyObject_IsTrue(object *);
object *PyDict_GetItemWithError(object *, object *);
object *PyType_GenericNew(object *, object *, object *);
object *PySequence_GetItem(object *, long);
long PyTuple_Size(object *);
long PySequence_Size(object *);
object *PyCFunction_GetSelf(object *);
object *(*PyCFunction_GetFunction(object *))(object *, object *const *, long);
object *PyList_GetItem(object *, long);
void Py_DecRef(object *);

extern object *PyExc_TypeError;
static object *known[OBJECTS], *no_arguments;

object *scorch_set_objects(object *self, object *const *given, long count) { /* set_objects(objects...) */
    if (count != OBJECTS) {
        PyErr_SetString(PyExc_RuntimeError, "a wrong number of objects");
        return 0;
    }
    for (long i = 0; i < count; i++) Py_IncRef(known[i] = given[i]);
    no_arguments = PyTuple_New(0);
    return nothing();
}

static object *unusual(void) { /* None, or 0 where an error is set */
    return PyErr_Occurred() ? 0 : nothing();
}

/* What C code returns: None in place of its errors */
static object *without_error(object *found) {
    if (found) return found;
    PyErr_Clear();
    return nothing();
}

static int is_of(object *value, int type) {
    object *found = PyObject_Type(value);
    Py_DecRef(found);
    return found == known[type];
}

/* Whether a call returns, or an attribute is, this very object */
static int is_same(object *found, object *wanted) {
    if (!found) return 0;
    Py_DecRef(found);
    return found == wanted;
}

static int is_true(object *found) { /* -1: an error is set */
    int answer = found ? PyObject_IsTrue(found) : -1;
    if (found) Py_DecRef(found);
    return answer;
}

static object *tuple_of(object *const *items, long count) {
    object *made = PyTuple_New(count);
    for (long i = 0; made && i < count; i++) {
        Py_IncRef(items[i]);
        PyTuple_SetItem(made, i, items[i]);
    }
    return made;
}

/* Whether nothing tracks, records or listens to calls, and the settings are usual; ``operands`` is a tuple. Elementwise
   functions are the same under autocast. */
static int is_quiet(object *operands, int is_elementwise) {
    long count = PyTuple_Size(known[EMPTY]);
    for (long i = 0; i < count; i++)
        if (PyObject_IsTrue(PyTuple_GetItem(known[EMPTY], i))) return 0;
    count = PyTuple_Size(known[QUIET]);
    for (long i = 0; i < count; i++) {
        object *found = PyObject_CallNoArgs(PyTuple_GetItem(known[QUIET], i));
        if (found == none) Py_DecRef(found);
        else if (is_true(found)) return 0;
    }
    if (!is_elementwise && is_true(PyObject_CallNoArgs(known[IS_AUTOCAST]))) return 0;
    if (!is_same(PyObject_GetAttr(known[FORWARD], known[LEVEL]), known[NO_LEVEL])) return 0;
    object *settings = PyObject_CallNoArgs(known[IN_BLOCK]);
    if (!settings) return 0;
    Py_DecRef(settings);
    if (settings == none) settings = PyList_GetItem(known[APPLIED], 0);
    if (settings != known[USUAL] && is_true(PyObject_CallOneArg(known[IS_USUAL], settings)) != 1) return 0;
    int is_tracking = is_true(PyObject_CallNoArgs(known[IS_GRAD_ENABLED]));
    return !is_tracking || (is_tracking > 0 && !is_true(PyObject_Call(known[ANY_REQUIRES_GRAD], operands, 0)));
}

/* A new object with attributes, none of which its type computes; it takes over the references in ``values`` */
static object *made_of(int type, const int *names, object **values, int count) {
    object *made = PyType_GenericNew(known[type], no_arguments, 0);
    for (int i = 0; i < count; i++) {
        if (made && (!values[i] || PyObject_SetAttr(made, known[names[i]], values[i]))) {
            Py_DecRef(made);
            made = 0;
        }
        if (values[i]) Py_DecRef(values[i]);
    }
    return made;
}

static object *storage_of(object *pattern, object *values) { /* takes over both */
    static const int names[] = {pattern_, values_};
    object *parts[] = {pattern, values};
    return made_of(STORAGE, names, parts, 2);
}

/* Whether floats of so many bits have torch's default dtype */
static int is_default(int bits) {
    object *dtype = PyObject_CallNoArgs(known[DEFAULT_DTYPE]);
    if (!dtype) return 0;
    Py_DecRef(dtype);
    return bits == 32 ? dtype == known[FLOAT32] : bits == 64 && dtype == known[FLOAT64];
}

/* How many bits floats on the host have; 0 for other values */
static int float_bits(object *values) {
    tensor_t seen;
    if (table->look(values, &seen)) return 0;
    return seen.device == 1 && seen.code == 2 ? seen.bits : 0;
}

/* The sparse tensor of a storage, as ``tensor_of`` returns it; takes the storage over. Its values are floats on the
   host with so many bits, if that is not 0. */
static object *wrapped(object *storage, int bits) {
    object *values = bits ? 0 : PyObject_GetAttr(storage, known[values_]), *tensor = 0;
    object *pattern = PyObject_GetAttr(storage, known[pattern_]);
    if (values) bits = float_bits(values);
    if (pattern && is_default(bits)) {
        object *arguments = PyTuple_New(2), *shape = PyObject_GetAttr(pattern, known[shape_]);
        Py_IncRef(known[SPARSE]);
        PyTuple_SetItem(arguments, 0, known[SPARSE]);
        PyTuple_SetItem(arguments, 1, shape);
        tensor = shape ? PyObject_Call(known[MAKE_WRAPPER], arguments, 0) : 0;
        Py_DecRef(arguments);
        /* Past the tensor's __setattr__, which checks what users assign and would take half of the call */
        if (tensor && PyObject_GenericSetAttr(tensor, known[storage_], storage)) {
            Py_DecRef(tensor);
            tensor = 0;
        }
    }
    if (!tensor) {
        PyErr_Clear();
        tensor = PyObject_CallOneArg(known[WRAP], storage);
    }
    if (values) Py_DecRef(values);
    if (pattern) Py_DecRef(pattern);
    Py_DecRef(storage);
    return tensor;
}

/* The storage of a sparse tensor that is neither a view nor has strides of its own; 0: it is, or an error is set */
static object *plain_storage(object *tensor) {
    object *storage = PyObject_GetAttr(tensor, known[storage_]);
    if (!storage) return 0;
    if (is_of(storage, STORAGE) && is_same(PyObject_GetAttr(storage, known[origin_]), none) &&
        is_same(PyObject_GetAttr(storage, known[strides_]), none))
        return storage;
    Py_DecRef(storage);
    return 0;
}

/* run(sources): a cached call on storages and dense tensors. ``self`` has numbers, the first slots or what returns them,
   the result and the facts as for ``fill``, ``rows`` or ``slots``, and how to wrap a new pattern: a function of the
   arrays, or (format, shape, above, counts) for one array of coordinates. The numbers are the kind of the result, both
   functions, which source has its pattern, how the values of two sources on one pattern are combined (see ``combined``;
   or -1), whether the kernel is short, and of each source its place and whether it is a storage. */
enum { AS_DENSE, ON_PATTERN, IN_SLOTS, BY_ROWS, APPENDED };
enum { KIND, COMPUTE, FINISH, WITH_PATTERN, COMBINES, IS_SHORT, SOURCES };

static object *appended(object *wrap, object *arrays) { /* takes over the arrays: pos, crd, values, nnz */
    static const int names[] = {form_, shape_, pos_, crd_, counts_};
    object *parts[5], *above = PyTuple_GetItem(wrap, 2), *counts = PyTuple_GetItem(wrap, 3);
    const long levels = PyTuple_Size(above), sizes[] = {levels, levels, PyTuple_Size(counts)};
    object *const before[] = {above, above, counts};
    for (int i = 0; i < 2; i++) Py_IncRef(parts[i] = PyTuple_GetItem(wrap, i));
    for (int i = 0; i < 3; i++) { /* what lies above, and the level itself */
        object *items[DIMS + 1];
        for (long level = 0; level < sizes[i]; level++) items[level] = PyTuple_GetItem(before[i], level);
        items[sizes[i]] = PyTuple_GetItem(arrays, i < 2 ? i : 3);
        parts[2 + i] = tuple_of(items, sizes[i] + 1);
    }
    object *values = PyTuple_GetItem(arrays, 2), *pattern = made_of(PATTERN, names, parts, 5);
    Py_IncRef(values);
    Py_DecRef(arrays);
    if (!pattern) Py_DecRef(values);
    return pattern ? storage_of(pattern, values) : 0;
}

static object *run_on(const long long *plan, const call_t *call, object *wrap, object *pattern, long like) {
    object *found;
    if (plan[KIND] == AS_DENSE) return without_error(filled(call, -1));
    if (plan[KIND] == ON_PATTERN) {
        if ((found = without_error(filled(call, like))) == none) return found;
        Py_IncRef(pattern);
        return storage_of(pattern, found);
    }
    if ((found = without_error(plan[KIND] == BY_ROWS ? rows_of(call) : slots_of(call))) == none) return found;
    if (plan[KIND] == APPENDED) return appended(wrap, found);
    object *storage = PyObject_CallOneArg(wrap, found);
    Py_DecRef(found);
    return storage;
}

/* The storage of two sources that have one pattern, combined value by value; 0: that is not so, or an error is set */
static object *combined_on_pattern(long long code, object *const *sources) {
    object *patterns[2], *values[2] = {0, 0}, *found = 0;
    for (int i = 0; i < 2; i++) patterns[i] = PyObject_GetAttr(sources[i], known[pattern_]);
    if (patterns[0] && patterns[0] == patterns[1]) {
        for (int i = 0; i < 2; i++) values[i] = PyObject_GetAttr(sources[i], known[values_]);
        const int are_plain = values[0] && values[1] && is_of(values[0], DENSE) && is_of(values[1], DENSE);
        found = are_plain ? without_error(combined(code, values)) : 0;
        if (found == none) {
            Py_DecRef(found);
            found = 0;
        } else if (found) {
            Py_IncRef(patterns[0]);
            found = storage_of(patterns[0], found);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (patterns[i]) Py_DecRef(patterns[i]);
        if (values[i]) Py_DecRef(values[i]);
    }
    return found;
}

/* The first slots of a kernel that threads share: those that ``headers`` has for as many as torch allows, where usual
   settings hold, nobody else wants the cores and the choice stands; else those that ``find`` returns. A new reference
   of (find, headers, restricted loops, (where the machine is said to be busy, how many threads torch allows) or none) */
static object *chosen_header(object *choice) {
    object *settings = PyObject_CallNoArgs(known[IN_BLOCK]), *threads, *packed;
    const long long *at = (const long long *)PyBytes_AsString(PyTuple_GetItem(choice, 3));
    if (!settings || !at) return 0;
    Py_DecRef(settings);
    if (settings == none) settings = PyList_GetItem(known[APPLIED], 0);
    if (PyBytes_Size(PyTuple_GetItem(choice, 3)) && settings == known[USUAL] && !*(volatile long long *)at[0] &&
        !PyObject_IsTrue(PyTuple_GetItem(choice, 2))) {
        if (!(threads = PyLong_FromLongLong(((int (*)(void))at[1])()))) return 0;
        packed = PyDict_GetItemWithError(PyTuple_GetItem(choice, 1), threads);
        Py_DecRef(threads);
        if (packed && !PyObject_IsTrue(PyTuple_GetItem(packed, 2))) {
            Py_IncRef(packed = PyTuple_GetItem(packed, 0));
            return packed;
        }
        if (!packed && PyErr_Occurred()) return 0;
    }
    return PyObject_CallNoArgs(PyTuple_GetItem(choice, 0));
}

/* What ``run`` with this ``self`` returns of sources, which the caller holds; 0: there is more to do */
static object *run_plan(object *self, object *const *sources) {
    const long long *plan = (const long long *)PyBytes_AsString(PyTuple_GetItem(self, 0));
    const long operands = PyBytes_Size(PyTuple_GetItem(self, 0)) / 16 - SOURCES / 2;
    object *held[SLOTS], *arrays[SLOTS], *header = PyTuple_GetItem(self, 1), *pattern = 0, *found = 0;
    long holds = 0, used = 0, like = -1;
    if (plan[COMBINES] >= 0 && ((found = combined_on_pattern(plan[COMBINES], sources)) || PyErr_Occurred())) return found;
    for (long i = 0; i < operands; i++) { /* what is held lives until the kernel has run */
        object *source = sources[plan[SOURCES + 2 * i]], *tensors;
        if (!plan[SOURCES + 2 * i + 1]) {
            arrays[used++] = source;
            continue;
        }
        if (!(tensors = PyObject_GetAttr(source, known[tensors_]))) goto done;
        held[holds++] = tensors;
        const long more = PyTuple_Size(tensors);
        if (used + more + 2 * operands > SLOTS - 4) goto done;
        for (long each = 0; each < more; each++) arrays[used++] = PyTuple_GetItem(tensors, each);
        if (i == plan[WITH_PATTERN]) {
            like = used - 1;
            if (!(pattern = PyObject_GetAttr(source, known[pattern_]))) goto done;
            held[holds++] = pattern;
        }
    }
    if (header == none) {
        if (!(header = chosen_header(PyTuple_GetItem(self, 5)))) goto done;
        held[holds++] = header;
    }
    const call_t call = {(kernel_t)plan[COMPUTE], (kernel_t)plan[FINISH], header, PyTuple_GetItem(self, 2),
                         PyTuple_GetItem(self, 3), arrays, used, (int)plan[IS_SHORT]};
    found = run_on(plan, &call, PyTuple_GetItem(self, 4), pattern, like);
done:
    while (holds) Py_DecRef(held[--holds]);
    return found;
}

object *scorch_run(object *self, object *const *given, long count) {
    object *sources[SLOTS], *found = 0;
    const long most = PySequence_Size(given[0]);
    long used = 0;
    if (most > SLOTS) return nothing();
    while (used < most && (sources[used] = PySequence_GetItem(given[0], used))) used++;
    if (used == most) found = run_plan(self, sources);
    while (used > 0) Py_DecRef(sources[--used]);
    return found ? found : unusual();
}

/* The result of a run of sources, without a call where the run is one of ours */
static object *result_of(object *run, object *const *sources, long count) {
    object *found, *tuple;
    if (is_of(run, BUILTIN) && PyCFunction_GetFunction(run) == scorch_run) {
        if (!(found = run_plan(PyCFunction_GetSelf(run), sources))) found = unusual();
        return found;
    }
    tuple = tuple_of(sources, count);
    if (!tuple) return 0;
    found = PyObject_CallOneArg(run, tuple);
    Py_DecRef(tuple);
    return found;
}

/* Whether a product is sparse, as no zero meets infinity or NaN; and whether a kernel is the way for two on a pattern */
static int is_right(object *const *sources, object *const *operands, int is_product) {
    int answer = 0;
    if (is_of(operands[1], SPARSE)) {
        object *patterns[2] = {0, 0}, *values[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            patterns[i] = PyObject_GetAttr(sources[i], known[pattern_]);
            values[i] = PyObject_GetAttr(sources[i], known[values_]);
        }
        tensor_t seen;
        if (patterns[0] && patterns[1] && values[0] && values[1]) {
            if (patterns[0] != patterns[1])
                answer = !is_product || (is_finite(values[0]) == 1 && is_finite(values[1]) == 1);
            else if (table->look(values[0], &seen))
                PyErr_Clear();
            else
                answer = seen.ndim == 1 && seen.shape[0] < PyLong_AsLongLong(known[MOST_ON_PATTERN]);
        }
        for (int i = 0; i < 2; i++) {
            if (patterns[i]) Py_DecRef(patterns[i]);
            if (values[i]) Py_DecRef(values[i]);
        }
        return answer;
    }
    return is_finite(operands[1]) == 1;
}

/* The result of the first of several runs that takes the sources; 0 or None: none does */
static object *first_of(object *runs, object *const *sources, long most) {
    const long count = runs ? PyTuple_Size(runs) : 0;
    object *found = 0;
    for (long i = 0; i < count && (!found || found == none); i++) {
        if (found) Py_DecRef(found);
        found = result_of(PyTuple_GetItem(runs, i), sources, most);
        if (!found) return 0;
    }
    return found;
}

/* repeat(recent, others, head, rule, operands...): the last such call of sparse and dense tensors, as ``call_cache`` has
   it. By rule 1 it is a sum, by 2 a product and by 3 a difference of two tensors, the first of them sparse. Few values on
   one pattern need no such call: they are combined one by one. */
object *scorch_repeat(object *self, object *const *given, long count) {
    object *const *operands = given + 4, *sources[FEW], *items[2 * FEW], *found = 0;
    const long heads = PyTuple_Size(given[2]), rule = (long)PyLong_AsLongLong(given[3]), most = count - 4;
    object *tuple = 0, *key = 0, *run;
    long used = 0;
    if (most < 1 || most > FEW || heads < 2 || heads > FEW || is_of(PyTuple_GetItem(given[2], 1), FORMAT))
        return unusual();
    if (rule && (most != 2 || !is_of(operands[0], SPARSE))) return nothing();
    const int is_product = rule == 2, is_sum = rule && !is_product, are_sparse = rule && is_of(operands[1], SPARSE);
    if (is_sum && !are_sparse) return nothing(); /* what that is, depends on more */
    for (long i = 0; i < heads; i++) items[i] = PyTuple_GetItem(given[2], i);
    for (long i = 0; i < heads; i++) Py_IncRef(items[i]);
    for (; used < most; used++) {
        object *operand = operands[used], *number = none;
        if (is_of(operand, SPARSE)) {
            if (!(sources[used] = plain_storage(operand))) goto done;
            if (!(number = PyObject_GetAttr(sources[used], known[key_]))) {
                Py_DecRef(sources[used]);
                goto done;
            }
        } else {
            if (!is_of(operand, DENSE) && !is_of(operand, PARAMETER)) goto done;
            if (is_true(PyObject_CallOneArg(known[IS_NEG], operand))) goto done;
            Py_IncRef(none);
            Py_IncRef(sources[used] = operand);
        }
        items[heads + used] = number;
    }
    tuple = tuple_of(operands, most);
    if (!tuple || !is_quiet(tuple, rule != 0)) goto done;
    if (are_sparse && ((found = combined_on_pattern(rule == 3 ? 1 : rule - is_sum, sources)) || PyErr_Occurred())) goto done;
    if (rule && !is_right(sources, operands, is_product)) goto done;
    key = tuple_of(items, heads + most);
    if (!key || !(run = PyDict_GetItemWithError(given[0], key))) {
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear(); /* what cannot be hashed */
        goto done;
    }
    Py_IncRef(run); /* which another thread may drop from the cache */
    found = result_of(run, sources, most);
    Py_DecRef(run);
    if (found == none) {
        Py_DecRef(found);
        if ((run = PyDict_GetItemWithError(given[1], key))) Py_IncRef(run);
        found = first_of(run, sources, most);
        if (run) Py_DecRef(run);
    }
done:
    if (found && is_of(found, STORAGE)) found = wrapped(found, 0);
    for (long i = 0; i < heads + used; i++) Py_DecRef(items[i]);
    while (used) Py_DecRef(sources[--used]);
    if (tuple) Py_DecRef(tuple);
    if (key) Py_DecRef(key);
    return found ? found : unusual();
}

/* map_tensor(code, tensor): relu, neg or abs of a sparse tensor (see ``mapped``) that nothing tracks */
object *scorch_map_tensor(object *self, object *const *given, long count) {
    object *operands = 0, *storage = 0, *values = 0, *pattern = 0, *found = 0;
    if (count != 2 || !is_of(given[1], SPARSE) || !(storage = plain_storage(given[1]))) return unusual();
    if (!(values = PyObject_GetAttr(storage, known[values_])) || !is_of(values, DENSE)) goto done;
    operands = tuple_of(given + 1, 1);
    if (!operands || !is_quiet(operands, 1) || is_true(PyObject_GetAttr(values, known[requires_grad_]))) goto done;
    if (!(pattern = PyObject_GetAttr(storage, known[pattern_]))) goto done;
    int bits;
    if ((found = without_error(mapped(PyLong_AsLongLong(given[0]), 0, values, &bits))) == none) goto done;
    Py_IncRef(pattern);
    if ((found = storage_of(pattern, found))) found = wrapped(found, bits);
done:
    if (operands) Py_DecRef(operands);
    if (storage) Py_DecRef(storage);
    if (values) Py_DecRef(values);
    if (pattern) Py_DecRef(pattern);
    return found ? found : unusual();
}
