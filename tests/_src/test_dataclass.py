"""Frozen dataclasses of Scorch behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from scorch._src.dataclass import dataclass, replace


def define(decorate: Any) -> tuple[Any, Any, Any, Any]:
    @decorate(frozen=True)
    class Point:
        """A point."""

        x: int
        y: float = 2.0
        tags: list[str] = field(default_factory=list, hash=False)
        note: str = field(default="", compare=False, repr=False)

    @decorate(frozen=True)
    class Named(Point):
        name: str = "origin"

        def __post_init__(self) -> None:
            object.__setattr__(self, "name", self.name.upper())

    @decorate(frozen=True, eq=False)
    class Identity:
        x: int

    @decorate(frozen=True)
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return Point, Named, Identity, Own


OURS, THEIRS = define(dataclass), define(dataclasses.dataclass)


@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any = None


@pytest.mark.parametrize("place", [0, 1])
def test_instances_are_made_shown_and_compared_alike(place):
    ours, theirs = OURS[place], THEIRS[place]
    for args, kwargs in [((1,), {}), ((1, 3.0), {"note": "n"}), ((1,), {"tags": ["a"]})]:
        mine, other = ours(*args, **kwargs), theirs(*args, **kwargs)
        assert repr(mine) == repr(other)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert hash(mine) == hash(other)
        assert mine == ours(*args, **kwargs) and mine != other
        assert mine == dataclasses.replace(mine, note="another") and mine != dataclasses.replace(mine, x=9)
    for args, kwargs in [((), {}), ((1, 2.0, [], "", "n", 6), {}), ((1,), {"unknown": 1})]:
        with pytest.raises(TypeError):
            ours(*args, **kwargs)
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
    assert ours.__match_args__ == theirs.__match_args__


def test_lists_are_made_for_each_instance():
    Point = OURS[0]
    assert Point(1).tags is not Point(1).tags


def test_identity_and_own_methods_are_kept():
    _, _, Identity, Own = OURS
    assert Identity(1) != Identity(1) and len({Identity(1), Identity(1)}) == 2
    assert repr(Own(1)) == "own" and Own(1) == Own(2) and hash(Own(1)) == 7


def test_fields_cannot_be_assigned_or_deleted():
    point = OURS[0](1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x


def test_copies_pickles_and_patterns():
    pair = Pair(1, Pair("a", Empty()))
    assert copy.deepcopy(pair) == pair == pickle.loads(pickle.dumps(pair)) and Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert repr(pair) == "Pair(left=1, right=Pair(left='a', right=Empty()))"
    match pair:
        case Pair(1, Pair(left=name)):
            assert name == "a"
        case _:
            raise AssertionError


def test_a_value_that_is_not_equal_to_itself_is_compared_by_identity():
    nan = float("nan")
    assert Pair(nan) == Pair(nan) and Pair(nan) != Pair(float("nan"))


def test_an_instance_inside_itself_is_shown():
    inner: list[Any] = []
    pair = Pair(inner)
    inner.append(pair)
    assert repr(pair) == "Pair(left=[...], right=None)"


@pytest.mark.parametrize("place", [0, 1])
def test_replace_does_what_that_of_the_standard_library_does(place):
    kind = OURS[place]
    before = kind(1, 3.0, note="n")
    for changes in ({}, {"x": 2}, {"y": 5.0, "note": "other"}, {"tags": ["a"]}):
        ours, theirs = replace(before, **changes), dataclasses.replace(before, **changes)
        assert ours == theirs and vars(ours) == vars(theirs) and type(ours) is kind
    with pytest.raises(TypeError, match="unknown"):
        replace(before, unknown=1)


def test_replace_runs_post_init_and_forgets_cached_values():
    named = replace(OURS[1](1, name="a"), name="b")
    assert named.name == "B"
    object.__setattr__(named, "cached", 1)
    assert not hasattr(replace(named, x=2), "cached")
