"""The loops that a careful user writes with numba, by rows, on one thread or on several."""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, prange

FEW = 50_000  # below this many products several threads only cost time


def pair(function):  # type: ignore[no-untyped-def]
    """The loop compiled for one thread and for several."""
    return njit(function, fastmath=True, cache=True), njit(function, fastmath=True, cache=True, parallel=True)


def choose(both, work: int):  # type: ignore[no-untyped-def]
    """A call that uses as many threads as torch does, where there is enough to do."""
    import torch

    serial, parallel = both

    def call(*arguments):  # type: ignore[no-untyped-def]
        threads = torch.get_num_threads()
        if threads == 1 or work < FEW:
            return serial(*arguments)
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        return parallel(*arguments)

    return call


@pair
def spmv(indptr, indices, data, x, y):  # type: ignore[no-untyped-def]
    for i in prange(len(indptr) - 1):
        total = np.float32(0)
        for p in range(indptr[i], indptr[i + 1]):
            total += data[p] * x[indices[p]]
        y[i] = total
    return y


@pair
def spmm(indptr, indices, data, B, C):  # type: ignore[no-untyped-def]
    for i in prange(len(indptr) - 1):
        row = C[i]
        row[:] = 0
        for p in range(indptr[i], indptr[i + 1]):
            value, other = data[p], B[indices[p]]
            for k in range(B.shape[1]):
                row[k] += value * other[k]
    return C


@pair
def sddmm(indptr, indices, data, X, Y, out):  # type: ignore[no-untyped-def]
    for i in prange(len(indptr) - 1):
        x = X[i]
        for p in range(indptr[i], indptr[i + 1]):
            y = Y[indices[p]]
            total = np.float32(0)
            for k in range(X.shape[1]):
                total += x[k] * y[k]
            out[p] = data[p] * total
    return out


@pair
def softmax(indptr, data, out):  # type: ignore[no-untyped-def]
    for i in prange(len(indptr) - 1):
        first, last = indptr[i], indptr[i + 1]
        if first < last:
            most = data[first]
            for p in range(first, last):
                most = max(most, data[p])
            total = np.float32(0)
            for p in range(first, last):
                out[p] = np.exp(data[p] - most)
                total += out[p]
            for p in range(first, last):
                out[p] /= total
    return out


@njit(cache=True)
def _merge_row(columns, values, first, last, other_columns, other_values, q, end, at, out_columns, out, both):  # type: ignore[no-untyped-def]
    """Append the union (a sum) or the intersection (a product) of two rows; where the next entry goes."""
    p = first
    while p < last and q < end:
        if columns[p] == other_columns[q]:
            out_columns[at] = columns[p]
            out[at] = values[p] * other_values[q] if both else values[p] + other_values[q]
            at, p, q = at + 1, p + 1, q + 1
        elif columns[p] < other_columns[q]:
            if not both:
                out_columns[at], out[at] = columns[p], values[p]
                at += 1
            p += 1
        else:
            if not both:
                out_columns[at], out[at] = other_columns[q], other_values[q]
                at += 1
            q += 1
    if not both:
        while p < last:
            out_columns[at], out[at] = columns[p], values[p]
            at, p = at + 1, p + 1
        while q < end:
            out_columns[at], out[at] = other_columns[q], other_values[q]
            at, q = at + 1, q + 1
    return at


@njit(cache=True)
def merge(A_indptr, A_indices, A_data, B_indptr, B_indices, B_data, both):  # type: ignore[no-untyped-def]
    """The sum of two CSR matrices, or their product entry by entry."""
    most = min(len(A_data), len(B_data)) if both else len(A_data) + len(B_data)
    indptr = np.zeros(len(A_indptr), np.int32)
    indices, data = np.empty(most, np.int32), np.empty(most, np.float32)
    at = 0
    for i in range(len(A_indptr) - 1):
        at = _merge_row(
            A_indices, A_data, A_indptr[i], A_indptr[i + 1],
            B_indices, B_data, B_indptr[i], B_indptr[i + 1],
            at, indices, data, both,
        )  # fmt: skip
        indptr[i + 1] = at
    return indptr, indices[:at].copy(), data[:at].copy()


@njit(cache=True)
def spmspm(A_indptr, A_indices, A_data, B_indptr, B_indices, B_data, columns):  # type: ignore[no-untyped-def]
    """Gustavson's algorithm: a dense row of sums, and its places sorted at the end."""
    m = len(A_indptr) - 1
    sums, last = np.zeros(columns, np.float32), np.full(columns, -1, np.int64)
    places = np.empty(columns, np.int32)
    indptr = np.zeros(m + 1, np.int32)
    indices, data = np.empty(1024, np.int32), np.empty(1024, np.float32)
    at = 0
    for i in range(m):
        count = 0
        for p in range(A_indptr[i], A_indptr[i + 1]):
            j, value = A_indices[p], A_data[p]
            for q in range(B_indptr[j], B_indptr[j + 1]):
                k = B_indices[q]
                if last[k] != i:
                    last[k] = i
                    sums[k] = 0
                    places[count] = k
                    count += 1
                sums[k] += value * B_data[q]
        if at + count > len(indices):
            size = 2 * (at + count)
            indices, old = np.empty(size, np.int32), indices
            indices[:at] = old[:at]
            data, old_data = np.empty(size, np.float32), data
            data[:at] = old_data[:at]
        found = np.sort(places[:count])
        for number in range(count):
            indices[at], data[at] = found[number], sums[found[number]]
            at += 1
        indptr[i + 1] = at
    return indptr, indices[:at].copy(), data[:at].copy()


@pair
def mttkrp3(slices, j, k, data, B, C, out):  # type: ignore[no-untyped-def]
    for i in prange(len(slices) - 1):
        row = out[i]
        row[:] = 0
        for p in range(slices[i], slices[i + 1]):
            value, b, c = data[p], B[j[p]], C[k[p]]
            for r in range(B.shape[1]):
                row[r] += value * b[r] * c[r]
    return out


@pair
def mttkrp4(slices, j, k, l, data, B, C, D, out):  # type: ignore[no-untyped-def]
    for i in prange(len(slices) - 1):
        row = out[i]
        row[:] = 0
        for p in range(slices[i], slices[i + 1]):
            value, b, c, d = data[p], B[j[p]], C[k[p]], D[l[p]]
            for r in range(B.shape[1]):
                row[r] += value * b[r] * c[r] * d[r]
    return out
