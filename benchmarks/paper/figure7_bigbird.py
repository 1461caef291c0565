"""Figure 7: inference of BigBird on texts, AG News and IMDB, with 512 to 4,096 tokens.

    python -m benchmarks.paper.figure7_bigbird --data DIR [--threads N] [--json FILE] [--plot FILE] [--quick]

The paper's Table 3: embeddings and hidden states of 128, intermediate 256, 2 layers, 4 heads, blocks of 16, 2
global tokens, 2 random and 2 sliding blocks. Trained once at the shortest length (5 epochs of AdamW with a
learning rate of 0.001, batches of 64); the weights are copied to all contestants, which classify batches of
the test set. Texts shorter than the length are repeated, so that no token is padding. ``--weights DIR`` keeps
what was learned, so that the next run need not learn it again.

Contestants: sparse attention as one routine and as three calls (sampled product, softmax, product); dense
torch with the mask, written out and as ``F.scaled_dot_product_attention``, and FlexAttention if it runs here:
these give the same numbers. ``torch, all pairs`` attends without a mask: other numbers, less work for it.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import scorch
from benchmarks.paper.download import fetch_text
from benchmarks.paper.running import Report, Row, agreeing, contest, finished, parser, progress, started

warnings.filterwarnings("ignore", message="Sparse")

SETS = {  # name, files to learn from and to classify
    "AG News": ("ag_news_test", "ag_news_test", 4),
    "IMDB": ("imdb_train_2500", "imdb_test_2500", 2),
}
LENGTHS = (512, 1024, 2048, 4096)
WIDTH, INNER, LAYERS, HEADS = 128, 256, 2, 4
WORDS = 20_000  # of the vocabulary; 0 stands for all others

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Texts:
    """Texts as numbers of words, and their classes."""

    train: list[torch.Tensor]
    train_y: torch.Tensor
    test: list[torch.Tensor]
    test_y: torch.Tensor
    classes: int
    source: str


# the model -------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """A block of a transformer, whose attention is told from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        Q, K, V = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = attention(Q, K, V).transpose(1, 2).flatten(2)
        x = self.first(x + self.dropout(self.out(seen)))
        found: torch.Tensor = self.second(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return found


class BigBird(torch.nn.Module):
    """Classes of texts from the hidden state of their first token."""

    def __init__(self, classes: int, longest: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(longest, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, classes)

    def forward(self, tokens: torch.Tensor, attention: Attention) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, attention)
        found: torch.Tensor = self.head(x[:, 0])
        return found


# attention -------------------------------------------------------------------------------------------


def bigbird(length: int) -> scorch.SparseTensor:
    """The mask of Table 3, the same in every run."""
    return scorch._src.nn.masks.bigbird(length, generator=torch.Generator().manual_seed(0))


def attentions(mask: scorch.SparseTensor) -> dict[str, Attention]:
    """All ways to attend, the first with the numbers that others are held to."""
    dense = mask.to_dense()
    sampling = mask.float()

    def step_by_step(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        scale = Q.shape[-1] ** -0.5
        heads = []
        for q, k, v in zip(Q.flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1), strict=True):
            scores = torch.sparse.sampled_addmm(sampling, q, k.t(), beta=0.0, alpha=scale)
            heads.append(torch.sparse.softmax(scores, 1) @ v)
        return torch.stack(heads).unflatten(0, Q.shape[:2])

    def written_out(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        scores = (Q @ K.transpose(-1, -2)) * Q.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(~dense, float("-inf")), -1) @ V

    return {
        "Scorch, one routine": lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, attn_mask=mask),
        "Scorch, three calls": step_by_step,
        "torch, SDPA and mask": lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, attn_mask=dense),
        "torch, written out": written_out,
    }


def flex(mask: scorch.SparseTensor) -> Attention:
    """torch's FlexAttention, compiled, with the same mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    dense = mask.to_dense()
    size = dense.shape[0]
    blocks = create_block_mask(lambda b, h, q, k: dense[q, k], None, None, size, size, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda Q, K, V: compiled(Q, K, V, block_mask=blocks)


# texts -----------------------------------------------------------------------------------------------


def load(name: str, options: argparse.Namespace) -> Texts:
    *files, classes = SETS[name]
    paths = [None if options.data is None else options.data / "text" / f"{file}.tsv.gz" for file in files]
    if options.download:
        for file in dict.fromkeys(files):
            fetch_text(file, options.data)
    most = 128 if options.quick else 2500
    if any(path is None or not path.is_file() for path in paths):
        return made_up(classes, most)
    first, second = (read(path) for path in paths if path is not None)
    if files[0] == files[1]:
        first, second = second[len(second) // 2 :], second[: len(second) // 2]
    first, second = shuffled(first)[:most], shuffled(second)[:most]
    return numbered(first, second, classes, ", ".join(dict.fromkeys(f"{file}.tsv.gz" for file in files)))


def read(path: Path) -> list[tuple[int, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [(int(label), text) for label, _, text in (line.partition("\t") for line in file)]


def shuffled(rows: list[Any]) -> list[Any]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return [rows[place] for place in order.tolist()]


def numbered(train: list[Any], test: list[Any], classes: int, source: str) -> Texts:
    """Words by how often they are in the training set."""
    split = [
        [(label, re.findall(r"[a-z']+", text.lower())) for label, text in part] for part in (train, test)
    ]
    counts = Counter(word for _, words in split[0] for word in words)
    numbers = {word: number + 1 for number, (word, _) in enumerate(counts.most_common(WORDS - 1))}
    texts, labels = [], []
    for part in split:
        texts.append([torch.tensor([numbers.get(word, 0) for word in words] or [0]) for _, words in part])
        labels.append(torch.tensor([label for label, _ in part]))
    return Texts(texts[0], labels[0], texts[1], labels[1], classes, source)


def made_up(classes: int, count: int) -> Texts:
    """Texts in which words of their class are more frequent."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (2 * count,), generator=draw)
    texts = []
    for label in y.tolist():
        own = torch.randint(50, (200,), generator=draw) + 1 + 50 * label
        others = torch.randint(1, WORDS, (200,), generator=draw)
        texts.append(torch.where(torch.rand(200, generator=draw) < 0.1, own, others))
    return Texts(texts[:count], y[:count], texts[count:], y[count:], classes, "made up")


def batch_of(texts: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Texts of one length: cut, or repeated."""
    return torch.stack([text.repeat(-(-length // text.numel()))[:length] for text in texts])


# measuring -------------------------------------------------------------------------------------------


def trained(texts: Texts, lengths: Sequence[int], epochs: int, name: str) -> BigBird:
    model = BigBird(texts.classes, max(lengths))
    attention = attentions(bigbird(min(lengths)))["Scorch, one routine"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    batches = [rows for _ in range(epochs) for rows in torch.randperm(len(texts.train)).split(64)]
    for rows in progress(batches, f"{name}: training"):
        tokens = batch_of([texts.train[row] for row in rows.tolist()], min(lengths))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens, attention), texts.train_y[rows]).backward()
        optimizer.step()
    return model.eval()


def learned(texts: Texts, lengths: Sequence[int], options: argparse.Namespace, name: str) -> BigBird:
    """The model with weights kept from a run before, or trained now."""
    kept = None if options.weights is None else options.weights / f"{name.replace(' ', '_')}.pt"
    if kept is None or not kept.is_file():
        model = trained(texts, lengths, 1 if options.quick else 5, name)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), kept)
        return model
    model = BigBird(texts.classes, max(lengths))
    try:
        model.load_state_dict(torch.load(kept, weights_only=True))
    except RuntimeError as error:
        raise SystemExit(f"{kept} was trained for other --lengths: remove it ({error})") from None
    return model.eval()


def accuracy(model: BigBird, texts: Texts, attention: Attention, length: int, most: int) -> float:
    """The share of texts of the test set whose class is found."""
    right = 0
    for rows in progress(torch.arange(min(most, len(texts.test))).split(32), "classifying"):
        scores = model(batch_of([texts.test[row] for row in rows.tolist()], length), attention)
        right += int((scores.argmax(1) == texts.test_y[rows]).sum())
    return right / min(most, len(texts.test))


def measure(name: str, options: argparse.Namespace, report: Report) -> None:
    texts = load(name, options)
    report.sources[name] = texts.source
    lengths = [64, 128] if options.quick else options.lengths
    model = learned(texts, lengths, options, name)
    runs, warm_ups = (1, 0) if options.quick else (options.runs, 5)
    for length in lengths:
        size = max(1, min(options.batch, 4096 * options.batch // length // 8))
        tokens = batch_of(texts.test[:size], length)
        with torch.no_grad():
            ways = attentions(bigbird(length))
            facts = {"density": bigbird(length).density}
            if length == min(lengths):
                most = 128 if options.quick else 1000
                same = [accuracy(model, texts, way, length, most) for way in list(ways.values())[::2]]
                facts["accuracy"], facts["accuracy of torch"] = same
            if options.flex:
                ways["FlexAttention"] = flex(bigbird(length))
            calls = {way: functools.partial(model, tokens, attend) for way, attend in ways.items()}
            able, left_out = agreeing(calls)
            able["torch, all pairs"] = functools.partial(model, tokens, F.scaled_dot_product_attention)
            times = contest(able, runs, warm_ups, f"{name}, {length} tokens: timing")
        report.rows.append(Row(name, f"{size} x {length} tokens", times, facts=facts, left_out=left_out))


def main(arguments: Sequence[str] | None = None) -> int:
    options_of = parser(__doc__.splitlines()[0])
    options_of.set_defaults(runs=10)
    options_of.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    options_of.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    options_of.add_argument("--batch", type=int, default=8, help="texts at once, at the shortest length")
    options_of.add_argument("--weights", type=Path, metavar="DIR", help="keep trained weights there")
    options_of.add_argument(
        "--flex", action="store_true", help="with FlexAttention, which takes long to compile"
    )
    options = options_of.parse_args(arguments)
    report = started(options, "Figure 7: BigBird")
    for name in options.sets:
        measure(name, options, report)
    return finished(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
