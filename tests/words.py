"""The words that users do not read, and where users read words.

A text is what users read of a file: a page, the comments and strings of an example, or the docstrings and the
error messages of a module.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

AMERICAN = "American spelling, as in PyTorch"
REPLACED = {  # an expression that texts must not contain, and what to write instead
    r"join(s|ed|ing)? calls|calls are joined|what is joined": "kernel fusion: fuse, fused",
    r"with other things": "interoperability",
    r"(?<!py)torch's (own )?(functions?|operators?)|(functions?|operators?) of torch": "PyTorch functions",
    r"what works": "operator coverage",
    r"is no variable": "entries outside the sparsity pattern get no gradient",
    r"zero for zero|keeps? zeros": "zero-preserving",
    r"weights (taken )?out\b|takes? (its|the) smallest weights": "prunes by magnitude",
    r"\bplaces\b": "positions, coordinates, elements, sparsity pattern",
    r"annihilat\w+": "implicit zeros times inf or nan count as zero",
    r"zeros? that (is|are) not stored": "implicit zeros",
    r"\bstored zeros?\b": "explicit zeros",
    r"\bspar(e|es|ed|ing) (time|memory|the|a)\b": "save",
    r"whole numbers?": "a positive integer, a non-negative integer",
    r"\bfrom \d+ on\b": "at least",
    r"\bof (any order|order \d)\b|\border \d (and|or) more": "of any number of dimensions, 3-D",
    r"numbers? that (is|are) not finite": "non-finite values",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"in the manner of": "like",
    r"\btells?\b|\btold\b": "reports, says",
    r"\bbeside\b": "compared with, vs., next to",
    r"\b(is|are|was|were) (far |a little )?(behind|ahead)\b": "slower, faster",
    r"\bprocessors?\b": "CPU",
    r"\b(is|are) had\b": "is available",
    r"dense cop(y|ies)": "falls back to a dense computation",
    r"\b(second|other|another) ways?\b": "fallback, alternative",
    r"gradients? of gradients?": "double backward, higher-order gradients",
    r"found on disk": "loaded from the disk cache",
    r"learned once": "measured once",
    r"\bmade (of|anew)\b": "built from, rebuilt",
    r"\bmade up\b": "synthetic",
    r"\basked for\b": "requested",
    r"found = scorch\.(explain|doctor|report)": "plan = scorch.explain(...)",
    r"\b(in|out)side of\b": "inside, outside",
    r"\b(their|its) like\b": "similar",
    r"\bdear(er|est)?\b": "expensive",
    r"\bone wants\b": "you want",
    r"\bone's own\b": "your own",
    r"\bin step with\b": "aligned with",
    r"\bto learn the (size|number)\b": "to read",
    r"\bleases?\b": "session, machine",
    r"(?<!-)\bcontestants?\b": "implementation, candidate",
    r"(neighb|col|behavi|fav)our\w*|(fib|cent)re[sd]?\b|analys(e[ds]?|ing)\b": AMERICAN,
    r"(normal|optim|factor|initial|parametr|vector|parallel|serial)is(e[ds]?|ing|ations?)\b": AMERICAN,
    r"(quant|special|general|minim|maxim|summar|synchron|discret|critic)is(e[ds]?|ing|ations?)\b": AMERICAN,
}
SHOWN = re.compile(r"^( *)```(text|c|sh|\{literalinclude\}[^\n]*)\n.*?^\1```", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(`+)[^`]+\1|^ *>>> .*", re.MULTILINE)  # in a sentence, or a line of code


def texts() -> dict[str, str]:
    """Return what users read, by file."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "RESULTS.md"]
    kinds = [
        (page_text, [page for page in pages if "gallery" not in page.parts]),
        (example_text, (ROOT / "examples").glob("*.py")),
        (module_text, (ROOT / "src" / "scorch").rglob("*.py")),
    ]
    return {
        path.relative_to(ROOT).as_posix(): NAME.sub("", text(path.read_text(encoding="utf-8")))
        for text, paths in kinds
        for path in sorted(paths)
    }


def page_text(source: str) -> str:
    """Return a page without what its programs print."""
    return SHOWN.sub("", source)


def example_text(source: str) -> str:
    """Return the comments and the strings of a script."""
    return "\n".join(re.findall(r"#.*", source) + strings(ast.parse(source)))


def module_text(source: str) -> str:
    """Return the docstrings of the public names of a module, and the messages of its errors and warnings."""
    read = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) if not name.startswith("_"):
                read.append(ast.get_docstring(node) or "")
            case ast.Raise() | ast.Call(func=ast.Attribute(attr="warn") | ast.Name(id="warn")):
                read += strings(node)
    return "\n".join(read)


def strings(tree: ast.AST) -> list[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def replaced_in(text: str) -> list[str]:
    """Return each expression in ``text`` that has been replaced, and what to write instead.

    >>> replaced_in("It joins calls.")
    ["'joins calls' -> kernel fusion: fuse, fused"]
    """
    return [
        f"{match[0]!r} -> {instead}"
        for words, instead in REPLACED.items()
        for match in re.finditer(words, text, re.IGNORECASE)
    ]
