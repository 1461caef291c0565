"""The cache for everything that is computed while programs run: a dictionary of bounded length."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

_PLANS: dict[str, BoundedCache[Any, Any]] = {}  # caches of calls, plans and kernels, by name

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """A dictionary that drops its oldest entries once it holds more than ``most``.

    One with a ``name`` is counted by ``plan_statistics`` and emptied by ``clear_plans``.

    Callers must be able to recompute a dropped entry, and hold on to what ``get`` returned instead of reading
    twice. Reading is plain ``dict.get``. Writing takes no lock, since every single operation of a dictionary
    is atomic: a thread that is about to drop an entry ignores that another thread dropped it first.

    >>> cache = BoundedCache(2)
    >>> cache["a"], cache["b"], cache["c"] = 1, 2, 3
    >>> cache
    {'b': 2, 'c': 3}
    """

    def __init__(self, most: int, name: str = "") -> None:
        super().__init__()
        self.most = most
        if name:
            _PLANS[name] = self

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.most:
            self._drop()

    def setdefault(self, key: Key, default: Value) -> Value:
        """Return the value of ``key``; store ``default`` if there is none. All threads get the same value."""
        stored = super().setdefault(key, default)
        if len(self) > self.most:
            self._drop()
        return stored

    def _drop(self) -> None:
        while len(self) > self.most:
            try:
                super().__delitem__(next(iter(self)))
            except (KeyError, RuntimeError, StopIteration):  # another thread was quicker
                continue


class CacheStatistics(NamedTuple):
    """How many entries a cache holds, and how many it may hold at most."""

    entries: int
    most: int


def plan_statistics() -> dict[str, CacheStatistics]:
    """Return how many calls, plans and kernels this process has cached, by cache.

    Returns:
        The sizes and hits of each cache, by its name.

    Example:

        >>> import scorch
        >>> "calls" in scorch.plan_statistics()
        True
    """
    return {name: CacheStatistics(len(cache), cache.most) for name, cache in _PLANS.items()}


def clear_plans() -> None:
    """Forget all calls, plans and kernels of this process; the next calls plan anew, and load from disk.

    Example:

        >>> import scorch
        >>> scorch.clear_plans()
    """
    for cache in _PLANS.values():
        cache.clear()
