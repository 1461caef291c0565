"""Plans on disk are data: what is read is a plan of Scorch, or it is nothing."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from scorch._src.backends import cache, sources
from scorch._src.backends.base import Backend, Schedule
from scorch._src.backends.cpu import jit
from scorch._src.compiler.plan import Step
from scorch._src.engine import execute, notes, schedules
from scorch._src.formats import Format
from scorch._src.formats.format import LEVELS
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.statements import call_cache
from scorch.settings import settings

FORMATS = ("csr", "csc", "coo", "dcsr", "bsr(2,2)")
STATEMENTS = (
    "R[i,k] = sum(j, A[i,j] * X[j,k])",
    "R[i,j] = A[i,j] + 2.5 * B[i,j]",
    "R[i,j] = A[i,j] / (B[i,j] + 1)",
    "R[i] = max(j, A[i,j] * B[i,j])",
    "R[j,i] = where(A[i,j] > 0, A[i,j], B[i,j])",
    "R[i,k] = sum(j, A[i,j] * B[k,j])",
)


def forget() -> None:
    schedules.forget()
    for kept in (
        execute._plans,
        execute._contractions,
        execute._conversions,
        call_cache._known,
        call_cache._recent,
    ):
        kept.clear()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and nothing planned."""
    forget()
    with settings(cache_directory=tmp_path / "kernels"):
        yield tmp_path / "kernels"
    forget()
    jit.forget()


@pytest.fixture(scope="module")
def plans() -> list[Schedule]:
    """Schedules of every kind: made here, so that nothing on disk stands in for them."""
    found: list[Schedule] = []
    real = schedules.new_schedule

    def spy(problem: schedules.Problem, backend: Backend) -> Schedule:
        found.append(schedules._without_rejected(real(problem, backend)))
        return found[-1]

    dense = torch.arange(48.0).view(6, 8) % 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "new_schedule", spy)
        for form in FORMATS:
            A, B = scorch.from_torch(dense, format=form), scorch.from_torch(dense, format="csr")
            for text in STATEMENTS:
                given = (
                    {"A": A}
                    | ({"B": B} if "B[" in text else {})
                    | ({"X": dense.T.contiguous()} if "X[" in text else {})
                )
                scorch.explain(text, **given)
    assert len(found) >= len(FORMATS) * len(STATEMENTS)
    return found


def test_what_is_written_is_read(plans: list[Schedule]) -> None:
    for plan in plans:
        again = notes.read(notes.write(plan), Schedule)
        assert again == plan
        assert repr(again) == repr(plan)
        assert [o.format.family for o in again.planned.plan.operands] == [
            o.format.family for o in plan.planned.plan.operands
        ]
        assert again.planned.kernel() == plan.planned.kernel()


def drawn_expression(draw: random.Random, depth: int) -> Expr:
    kind = draw.randrange(4 if depth else 2)
    if kind == 0:
        return Access(draw.choice("ABC"), tuple(draw.sample("ijk", draw.randrange(4))))
    if kind == 1:
        return Literal(
            draw.choice([0, 1, True, False, -3, 1.0, 0.1, 1e300, float("inf"), float("-inf"), 2**70])
        )
    return Op(
        draw.choice(["add", "mul", "où"]),
        tuple(drawn_expression(draw, depth - 1) for _ in range(draw.randrange(1, 4))),
    )


def test_drawn_steps_are_read_as_they_were() -> None:
    draw = random.Random(5)
    for _ in range(200):
        steps = tuple(
            Step(Access("R", ("i",)), drawn_expression(draw, 4), "sum", ("j",))
            for _ in range(draw.randrange(3))
        )
        again = notes.read(notes.write(steps), tuple[Step, ...])
        assert again == steps and repr(again) == repr(steps)


HOSTILE: list[Any] = [
    None, True, -1, 2**80, 1.5, "", "os.system", "builtins.eval", "__class__", [], {}, [[]],
    ["os.system", "touch hostile"], ["Schedule"], ["Plan", 1, 2], ["Format", "ds"],
    ["Literal", ["Literal", 1]],
    ["Op", "add", "ab"], {"__reduce__": ["os.system"]}, ["Access", "A", "ij"],
    ["scorch._src.backends.cpu.jit", "load"],
]  # fmt: skip


def places(tree: Any) -> list[tuple[list[Any], int]]:
    """Every place in nested lists, as a list and an index."""
    found = []
    if isinstance(tree, list):
        for index, part in enumerate(tree):
            found += [(tree, index), *places(part)]
    return found


def test_changed_plans_are_plans_or_nothing(plans: list[Schedule]) -> None:
    """Values of other kinds, lists cut short and joined: what is read still fits all annotations."""
    draw = random.Random(7)
    refused = 0
    for turn in range(1500):
        tree = json.loads(notes.write(draw.choice(plans)))
        where, index = draw.choice(places(tree))
        match draw.randrange(5):
            case 0:
                del where[index]
            case 1:
                where.insert(index, draw.choice(HOSTILE))
            case 2:
                other, place = draw.choice(places(tree))
                where[index] = json.loads(json.dumps(other[place]))
            case _:
                where[index] = draw.choice(HOSTILE)
        try:
            found = notes.read(json.dumps(tree).encode(), Schedule)
        except notes.NoteError:
            refused += 1
        else:  # a number or a word in place of another: still a plan, of the very same kinds of values
            assert type(found) is Schedule, turn
            again = notes.read(notes.write(found), Schedule)
            assert again == found or repr(again) == repr(found)  # sets in any order, and what is no number
    assert refused > 1000


@pytest.mark.parametrize(
    "text",
    [b"", b"nothing", b"[", b"[" * 100_000, b"\xff\xfe", b"null", b"3", b'{"Schedule": []}', b'["Schedule"]',
     pickle.dumps(3), b'["Step"' + b"]" * 5, b"NaN", b'["Schedule", null, "", [], []]', b"9" * 5000],
)  # fmt: skip
def test_other_texts_are_no_notes(text: bytes) -> None:
    for kind in (Schedule, tuple[Step, ...]):
        with pytest.raises(notes.NoteError):
            notes.read(text, kind)


def test_text_of_endless_length_is_not_read() -> None:
    with pytest.raises(notes.NoteError, match="too long"):
        notes.read(b"[" + b" " * notes.MAX_NOTE_BYTES + b"]", tuple[Step, ...])


def test_level_of_a_user_is_not_noted() -> None:
    class Own(type(LEVELS[1])):  # type: ignore[misc]
        pass

    with pytest.raises(notes.NoteError):
        notes.write(Format([LEVELS[0], Own()]))
    with pytest.raises(notes.NoteError):
        notes.write(object())


# on disk ---------------------------------------------------------------------------------------------------


def test_drawn_damage_on_disk_changes_no_result(place: Path) -> None:
    draw = random.Random(3)
    dense = torch.arange(30.0).view(5, 6) % 4
    A, X = scorch.from_torch(dense, format="csr"), torch.rand(6, 3)
    expected = A @ X
    for _ in range(60):
        for note in place.glob("*.note"):
            content = bytearray(note.read_bytes())
            for _ in range(draw.randrange(1, 4)):
                match draw.randrange(3):
                    case 0:
                        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
                    case 1:
                        del content[draw.randrange(len(content)) :]
                        content += b"\0"
                    case 2:
                        content[draw.randrange(len(content)) :] = draw.randbytes(draw.randrange(50))
                if not content:
                    content = bytearray(b"x")
            note.write_bytes(content)
        forget()
        assert torch.equal(A @ X, expected)


def test_planted_notes_with_the_right_checksum_run_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    A, X = scorch.from_torch(torch.eye(5), format="csr"), torch.rand(5, 3)
    expected = A @ X
    evil = b"cos\nsystem\n(S'touch hostile'\ntR."
    for text in (evil, pickle.dumps(HOSTILE), *(json.dumps(value).encode() for value in HOSTILE)):
        for note in place.glob("*.note"):
            cache.write_note(note.stem, text)
        forget()
        assert torch.equal(A @ X, expected)
    assert not (place.parent / "hostile").exists()


def test_note_under_another_name_is_foreign(place: Path) -> None:
    one, other = cache.make_key("one"), cache.make_key("other")
    cache.write_note(one, b"content")
    (place / f"{one}.note").rename(place / f"{other}.note")
    assert cache.read_note(other) is None


# versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a.py", "loops/a.py", "backends/cuda/c/a.cu", "loops/nn/w/a.py"])
def test_changed_source_is_another_version_however_deep(where: str, tmp_path: Path) -> None:
    for name in (
        "a.py",
        "loops/a.py",
        "backends/cuda/c/a.cu",
        "loops/nn/w/a.py",
        "loops/__pycache__/a.py",
        "nn/a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = sources.version_of(tmp_path)
    (tmp_path / "loops/__pycache__/a.py").write_text("other")
    (tmp_path / "nn/a.py").write_text("other")
    assert sources.version_of(tmp_path) == before
    (tmp_path / where).write_text("other")
    changed = sources.version_of(tmp_path)
    (tmp_path / where).rename(tmp_path / f"{where}.bak.py")
    assert len({before, changed, sources.version_of(tmp_path)}) == 3


def test_every_source_that_plans_depend_on_is_part_of_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(scorch.__file__).parent / "_src"
    hashed: list[bytes] = []

    class Spy:
        def update(self, text: bytes) -> None:
            hashed.append(text.split()[0])

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr(sources.hashlib, "sha256", lambda *_: Spy())
    sources.version_of(root)
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    without = {"__pycache__", *sources.ABOVE}
    files = [path for path in files if without.isdisjoint(path.parts)]
    assert sorted(map(bytes.decode, hashed)) == sorted(map(Path.as_posix, files))


def test_plans_do_not_depend_on_packages_above_the_engine() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    layers = project.partition('containers = ["scorch._src"]')[2].partition('"engine"')[0]
    root = Path(scorch.__file__).parent / "_src"
    above = [name for name in re.findall(r'"(\w+)"', layers) if (root / name).is_dir()]
    assert "nn" in above and sorted(above) == sorted(sources.ABOVE)
