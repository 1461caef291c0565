"""Builtins that read tensors, allocate the result, run a kernel and return the result.

A call from Python costs most where it asks tensors for addresses one by one and has torch allocate; here
tensors are read and made through torch's DLPack exchange table, a struct of C functions, so that a small
product takes a few microseconds in all. ``fill`` is for results of known size, ``rows`` for those appended
row by row, ``slots`` for those written in place, up to a bound. They take plain torch tensors only. Without
the table (an older torch) there are none and callers do without.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.backends.cpu import allocate, invoke, jit, toolchain
from scorch._src.loops.types import INT8, INT16, INT32, INT64, Type
from scorch.errors import CompilerNotFoundError
from scorch.settings import enabled

_TYPES = """\
typedef struct object object;
typedef struct { void *data; int device, device_id, ndim; unsigned char code, bits; unsigned short lanes;
                 long long *shape, *strides; unsigned long long offset; } tensor_t;
typedef struct managed { unsigned major, minor; void *context; void (*deleter)(struct managed *);
                         unsigned long long flags; tensor_t tensor; } managed_t;
typedef struct { unsigned major, minor; void *older;
                 int (*allocate)(tensor_t *, managed_t **, void *,
                                 void (*)(void *, const char *, const char *));
                 int (*take)(void *, managed_t **);
                 int (*give)(managed_t *, void **);
                 int (*look)(void *, tensor_t *);
                 int (*stream)(int, int, void **); } table_t;
"""

_SOURCE = """\
extern object *PyExc_RuntimeError, *PyExc_MemoryError;
void PyErr_SetString(object *, const char *);
object *PyErr_Occurred(void);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
long long PyLong_AsLongLong(object *);
char *PyBytes_AsString(object *);
long PyBytes_Size(object *);
void Py_IncRef(object *);
object *PyTuple_New(long);
object *PyTuple_GetItem(object *, long);
int PyTuple_SetItem(object *, long, object *);
object *PyLong_FromLongLong(long long);
void *calloc(unsigned long, unsigned long);

#define SLOTS 112 /* MOST_SLOTS and the few that rows adds */
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

/* Whether a tensor is on the CPU, of the dtype and shape in facts: code bits ndim shape... order..., and
   lies without gaps in that order of dimensions */
static int fits(const tensor_t *seen, const long long *facts) {
    long long step = 1;
    if (seen->device != 1 || seen->code != facts[0]) return 0;
    if (seen->bits != facts[1] || seen->ndim != facts[2]) return 0;
    for (int place = seen->ndim - 1; place >= 0; place--) {
        long long d = facts[3 + seen->ndim + place];
        if (seen->shape[d] != facts[3 + d]) return 0;
        if (seen->strides && seen->shape[d] != 1 && seen->strides[d] != step) return 0;
        step *= seen->shape[d];
    }
    return 1;
}

static int has_elements(const tensor_t *seen) {
    for (int d = 0; d < seen->ndim; d++)
        if (!seen->shape[d]) return 0;
    return 1;
}

/* The addresses of tensors from given[4] on; 1: one does not fit its facts, -1: an error is set. */
static int gather(object *const *given, long count, long long *slots, long *used, long long *lengths) {
    char *first = PyBytes_AsString(given[1]);
    long long *facts = given[3] == none ? 0 : (long long *)PyBytes_AsString(given[3]);
    if (!first || (given[3] != none && !facts)) return -1;
    *used = PyBytes_Size(given[1]) / 8;
    if (*used + count + 16 > SLOTS) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel with too many arguments");
        return -1;
    }
    memcpy(slots, first, *used * 8);
    for (long i = 4; i < count; i++) {
        tensor_t seen;
        if (table->look(given[i], &seen)) {
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
                            "an operand has no memory: its storage was resized or freed; make it anew");
            return -1;
        }
        if (facts) { /* a fact of length 0: not to be checked */
            long long length = *facts++;
            if (length && !fits(&seen, facts)) return 1;
            facts += length;
        }
        if (lengths) lengths[i - 4] = seen.ndim ? seen.shape[0] : 1;
        slots[(*used)++] = (long long)((char *)seen.data + seen.offset);
    }
    return 0;
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

static object *nothing(void) {
    Py_IncRef(none);
    return none;
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

/* fill(kernel, first slots, result: ours code bits bytes ndim shape..., facts or None, tensors...)
   returns None if a tensor does not fit its facts; bytes of the result, if any, begin as zero */
object *scorch_fill(object *self, object *const *given, long count) {
    long long slots[SLOTS], *result;
    long used, status;
    int zeroed;
    void *thread, *out = 0;
    kernel_t kernel = (kernel_t)PyLong_AsLongLong(given[0]);
    managed_t *made;
    result = (long long *)PyBytes_AsString(given[2]);
    if (PyErr_Occurred() || (status = gather(given, count, slots, &used, 0)) < 0) return 0;
    if (status) return nothing();
    made = make((int)result[0], result[1], result[2], (int)result[4], result + 5, &zeroed);
    if (!made) return given[3] == none ? 0 : shell();
    slots[used] = address_of(made);
    thread = PyEval_SaveThread();
    if (result[3] && !zeroed) memset((void *)slots[used], 0, (unsigned long)result[3]);
    status = (long)kernel(slots);
    PyEval_RestoreThread(thread);
    if (status) {
        made->deleter(made);
        return out_of_memory();
    }
    if (table->give(made, &out)) return 0;
    return (object *)out;
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

/* rows((compute, finish), first slots, result: ours, rows, bits of indices, code and bits of values,
        facts or None, tensors...)
   returns (pos, crd, values); the slots after the tensors are those of compiler.collect.Rows */
object *scorch_rows(object *self, object *const *given, long count) {
    long long slots[SLOTS], *result, rows, nnz, *pos;
    long used, status;
    int zeroed, ours;
    void *thread;
    managed_t *made[3] = {0, 0, 0};
    kernel_t compute = (kernel_t)PyLong_AsLongLong(PyTuple_GetItem(given[0], 0));
    kernel_t finish = (kernel_t)PyLong_AsLongLong(PyTuple_GetItem(given[0], 1));
    result = (long long *)PyBytes_AsString(given[2]);
    if (PyErr_Occurred() || (status = gather(given, count, slots, &used, 0)) < 0) return 0;
    if (status) return nothing();
    ours = (int)*result++, rows = result[0];
    if (!(pos = (long long *)calloc((unsigned long)rows + 1, 8))) return out_of_memory();
    slots[used] = (long long)pos;
    slots[used + 6] = 0;
    thread = PyEval_SaveThread();
    status = (long)compute(slots);
    PyEval_RestoreThread(thread);
    if (status) {
        free(pos);
        return out_of_memory();
    }
    nnz = slots[used + 1];
    int wide = result[1] == 64 || nnz > 0x7fffffff, bits = wide ? 64 : 32;
    long long length = rows + 1;
    made[0] = make(ours, 0, bits, 1, &length, &zeroed);
    made[1] = made[0] ? make(ours, 0, result[1], 1, &nnz, &zeroed) : 0;
    made[2] = made[1] ? make(ours, result[2], result[3], 1, &nnz, &zeroed) : 0;
    slots[used + 6] = !made[2]; /* discard */
    if (made[2]) slots[used + 7] = address_of(made[1]), slots[used + 8] = address_of(made[2]);
    thread = PyEval_SaveThread();
    finish(slots);
    if (made[2] && wide) memcpy((void *)address_of(made[0]), pos, (unsigned long)length * 8);
    if (made[2] && !wide) {
        int *narrow = (int *)address_of(made[0]);
        for (long long r = 0; r < length; r++) narrow[r] = (int)pos[r];
    }
    free(pos);
    PyEval_RestoreThread(thread);
    if (!made[2] && given[3] != none && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
        for (int part = 0; part < 2; part++)
            if (made[part]) made[part]->deleter(made[part]);
        return nothing();
    }
    return given_out(made, 3, -1, !!made[2]);
}

/* slots(compute, first slots, result: ours, rows, bits of indices, code and bits of values, how many
         arrays of coordinates, how many tensors bound the result and which, facts or None, tensors...)
   returns (pos, crd..., values, nnz); the slots after the tensors are those of compiler.collect_in_place */
object *scorch_slots(object *self, object *const *given, long count) {
    long long slots[SLOTS], lengths[SLOTS], *result, rows, bound = 0, nnz;
    long used, status;
    int zeroed, ours, parts, part;
    void *thread;
    managed_t *made[DIMS + 2] = {0};
    kernel_t compute = (kernel_t)PyLong_AsLongLong(given[0]);
    result = (long long *)PyBytes_AsString(given[2]);
    if (PyErr_Occurred() || (status = gather(given, count, slots, &used, lengths)) < 0) return 0;
    if (status) return nothing();
    ours = (int)result[0], rows = result[1] + 1;
    parts = (int)result[5] + 2;
    for (long long term = 0; term < result[6]; term++) bound += lengths[result[7 + term]];
    for (part = 0; part < parts; part++) {
        int is_index = part < parts - 1;
        made[part] = make(ours, is_index ? 0 : result[3], is_index ? result[2] : result[4], 1,
                          part ? &bound : &rows, &zeroed);
        if (!made[part]) {
            given_out(made, parts, -1, 0);
            return given[3] == none ? 0 : shell();
        }
        slots[used + part] = address_of(made[part]);
    }
    thread = PyEval_SaveThread();
    status = (long)compute(slots);
    PyEval_RestoreThread(thread);
    nnz = slots[used + parts];
    for (part = 1; part < parts && !status && nnz < bound; part++) {
        if (ours) made[part] = shrunk(made[part], nnz);
        else { /* torch's memory cannot be cut */
            managed_t *whole = made[part], *cut;
            cut = make(0, whole->tensor.code, whole->tensor.bits, 1, &nnz, &zeroed);
            if (!cut) {
                given_out(made, parts, -1, 0);
                return 0;
            }
            if (nnz) memcpy((void *)address_of(cut), (void *)address_of(whole), nnz * whole->tensor.bits / 8);
            made[part] = cut;
            whole->deleter(whole);
        }
    }
    if (!status) return given_out(made, parts, nnz, 1);
    given_out(made, parts, -1, 0);
    return out_of_memory();
}
"""

SOURCES = (_TYPES + allocate.SOURCE + _SOURCE,)
MOST_SLOTS = 96
MOST_DIMS = 16
BITS: dict[int, Type] = {1: INT8, 2: INT16, 4: INT32, 8: INT64}  # for what is only moved, by its bytes
_CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}


@dataclass(frozen=True)
class Builtins:
    """``fill(kernel, first, result, facts, *tensors)``, ``rows((compute, finish), first, ...)``, ``slots``.

    ``first`` holds the first argument slots (``pack``), ``result`` what to allocate (``result_facts``,
    ``row_facts``, ``slot_facts``); the addresses of ``tensors`` and of the result follow. With ``facts``
    (``tensor_facts`` of each) a call returns None, and does nothing, where a tensor is not what it should be.
    """

    fill: Callable[..., torch.Tensor]
    rows: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    slots: Callable[..., tuple[Any, ...]]
    pool: Callable[[int], int]


def builtins() -> Builtins | None:
    """The builtins, or None where there are no means for them."""
    try:
        return _builtins()
    except CompilerNotFoundError:
        if toolchain.has_compiler():  # raises where somebody has named one that does not work
            raise
        return None


@functools.cache
def _builtins() -> Builtins | None:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None or invoke.make_caller().kind != "trampoline":
        return None
    try:
        library = jit.load(*SOURCES, "the functions that call kernels on tensors")
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = pointer(capsule, b"dlpack_exchange_api")
        version = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint32))[0]
        if version != 1:
            return None
        invoke.builtin(b"set_table", library.address("scorch_set_table"))(table, None, allocate.most_pooled())
        names = ("fill", "rows", "slots", "pool")
        made = Builtins(*(invoke.builtin(n.encode(), library.address(f"scorch_{n}")) for n in names))
    except CompilerNotFoundError:
        raise
    except Exception:  # an unusual torch or Python: the plain way works there
        return None
    os.register_at_fork(
        before=functools.partial(made.pool, 1),
        after_in_parent=functools.partial(made.pool, 2),
        after_in_child=functools.partial(made.pool, 3),
    )
    return made


def release_memory() -> int:
    """Give the memory of freed results, which is kept for the next ones, back to the system; its bytes."""
    found = builtins()
    return 0 if found is None else found.pool(0)


def pooled_memory() -> int:
    """How many bytes of freed results are kept for the next ones."""
    found = builtins()
    return 0 if found is None else found.pool(4)


def pack(numbers: Sequence[int]) -> bytes:
    """Numbers as argument slots."""
    return struct.pack(f"{len(numbers)}q", *numbers)


def result_facts(element: Type, shape: Sequence[int], zero: bool = True) -> bytes:
    """What ``fill`` needs to know of the result; with ``zero`` it begins as zero."""
    size = element.bytes if zero else 0
    for extent in shape:
        size *= extent
    return pack([_ours(), _CODES[element.kind], 8 * element.bytes, size, len(shape), *shape])


def row_facts(rows: int, index: Type, element: Type) -> bytes:
    """What ``rows`` needs to know of the result."""
    return pack([_ours(), rows, 8 * index.bytes, _CODES[element.kind], 8 * element.bytes])


def slot_facts(rows: int, index: Type, element: Type, crds: int, bounds: Sequence[int]) -> bytes:
    """What ``slots`` needs to know of the result.

    ``crds``: how many arrays of coordinates it has; ``bounds``: the tensors as long as it may get together.
    """
    return row_facts(rows, index, element) + pack([crds, len(bounds), *bounds])


def _ours() -> int:
    """Whether results lie in memory of our own."""
    return int(enabled("pool"))


def tensor_facts(element: Type | None = None, shape: Sequence[int] = (), order: Sequence[int] = ()) -> bytes:
    """What ``fill`` checks of a dense tensor that lies in ``order``; without ``element``, nothing."""
    if element is None:
        return pack([0])
    code = 4 if element.name == "bfloat16" else _CODES[element.kind]
    facts = [code, 8 * element.bytes, len(shape), *shape, *order]
    return pack([len(facts), *facts])
