"""SciPy's sparse linear algebra, where it is installed."""

from __future__ import annotations

from typing import Any


def scipy_linalg() -> Any:
    """Return the module ``scipy.sparse.linalg``, or None."""
    try:
        import scipy.sparse.linalg
    except ImportError:
        return None
    return scipy.sparse.linalg
