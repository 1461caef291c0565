"""The one kind of cache that is filled while programs run: a dictionary of bounded length."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value]):
    """A dictionary that drops its oldest entries once it holds more than ``most``.

    What is dropped must be found again by whoever looks it up in vain: callers keep what ``get`` returned and
    never ask twice. Reading is plain ``dict.get``. Writing takes no lock, since every single operation of a
    dictionary is atomic: a thread that finds an entry gone that it was about to drop leaves that be.

    >>> cache = BoundedCache(2)
    >>> cache["a"], cache["b"], cache["c"] = 1, 2, 3
    >>> cache
    {'b': 2, 'c': 3}
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

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
