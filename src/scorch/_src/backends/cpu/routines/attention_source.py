"""The C text of sparse attention: blocks of 16 queries against all keys that any of them sees.

The keys of a block come in chunks, read wherever they lie, and the softmax is computed as they come: a
maximum and a sum for each query, from which the backward pass makes the probabilities again. Scores are in
base 2. Blocks whose queries see different keys run query by query, with lanes along the features.

Threads have shares of their own of all heads and blocks. Where a share begins in the middle of a head, the
gradients of its keys and values go to memory of the thread's own, which the caller adds.
"""

from __future__ import annotations

import functools

from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.routines.attention_tiles import products

# in the order of the call; those that end in _AT hold a number for each head
ARGUMENTS = """
PARALLEL, THREADS, QUERIES, KEYS, DEPTH, WIDTH, BLOCKS, BOUNDS, MATRIX,
BEGIN, COLUMNS, MASKS, WIDE_INDEX, POS, CRD, NUMBERS, SEED, HEAD_SEED, DROPPED, SKIP, SKIP_AT,
Q, Q_AT, Q_STEP, K, K_AT, K_STEP, V, V_AT, V_STEP, OUT, STATE, SCRATCH, SCRATCH_SIZE, G, DQ, DK, DV, OWN
"""


@functools.cache
def source(element: str) -> str:
    """The routines for numbers of the C type ``element``."""
    types = read_source("attention_types.c").replace("ARGUMENTS", ARGUMENTS)
    return types + products(element) + read_source("attention.c")
