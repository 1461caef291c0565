"""Texts that users read have the words of PyTorch and of the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from words import example_text, module_text, page_text, replaced_in, texts

NOT_YET = Path(__file__).with_name("words_not_yet.txt")  # files whose texts are still to be rewritten


@pytest.fixture(scope="module")
def replaced() -> dict[str, list[str]]:
    """The replaced expressions of every file that has some."""
    return {name: words for name, text in texts().items() if (words := replaced_in(text))}


def not_yet() -> list[str]:
    return NOT_YET.read_text(encoding="utf-8").split()


def test_texts_have_no_words_that_were_replaced(replaced: dict[str, list[str]]) -> None:
    assert {name: words for name, words in replaced.items() if name not in not_yet()} == {}


def test_files_still_to_be_rewritten_need_it(replaced: dict[str, list[str]]) -> None:
    clean = [name for name in not_yet() if name not in replaced]
    assert clean == [], f"remove them from {NOT_YET.name}"


def test_files_still_to_be_rewritten_are_listed_once_and_in_order() -> None:
    assert not_yet() == sorted(set(not_yet()))


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("zeros that are not stored", "implicit zeros"),
        ("torch's functions", "PyTorch functions"),
        ("gradients of gradients", "double backward, higher-order gradients"),
        ("a tensor of order 3", "of any number of dimensions, 3-D"),
        ("normalised colours", "American spelling, as in PyTorch"),
        ("quantised fibres", "American spelling, as in PyTorch"),
        ("the best contestant", "implementation, candidate"),
    ],
)
def test_replaced_words_are_found(text: str, expression: str) -> None:
    assert expression in "\n".join(replaced_in(text))


@pytest.mark.parametrize("text", ["PyTorch's functions", "out of order", "multiprocessors", "explicit zeros"])
def test_other_words_are_left_alone(text: str) -> None:
    assert replaced_in(text) == []


def test_only_what_users_read_is_checked() -> None:
    assert page_text("Words.\n```text\ntold\n```\n") == "Words.\n\n"
    assert example_text('# Words.\ntold = "More."') == "# Words.\nMore."
    source = (
        'def f():\n    """Words."""\n    told = "told"\n    raise E("More.")\ndef _g():\n    """told"""\n'
    )
    assert module_text(source) == "Words.\nMore."
