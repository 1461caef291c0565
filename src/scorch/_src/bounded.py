"""The one kind of cache that is filled while programs run: a dictionary of bounded length."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

_PLANS: dict[str, BoundedCache[Any, Any]] = {}  # those that keep calls, plans and kernels, by name

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """A dictionary that drops its oldest entries once it holds more than ``most``.

    One with a ``name`` is counted by ``plan_statistics`` and emptied by ``clear_plans``.

    What is dropped must be found again by whoever looks it up in vain: callers keep what ``get`` returned and
    never ask twice. Reading is plain ``dict.get``. Writing takes no lock, since every single operation of a
    dictionary is atomic: a thread that finds an entry gone that it was about to drop leaves that be.

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
        """The value of ``key``, which is ``default`` if there was none; all threads get the same one."""
        found = super().setdefault(key, default)
        if len(self) > self.most:
            self._drop()
        return found

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
    """Count the calls, plans and kernels that this process keeps, by cache.

    >>> import scorch
    >>> sorted(scorch.plan_statistics())[:2]
    ['calls', 'contractions']
    """
    return {name: CacheStatistics(len(cache), cache.most) for name, cache in _PLANS.items()}


def clear_plans() -> None:
    """Forget all calls, plans and kernels of this process; the next calls plan anew, and load from disk."""
    for cache in _PLANS.values():
        cache.clear()
