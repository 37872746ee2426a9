"""How many planted copies are dropped, and how much else, by kind; the table in duplicates.md."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.hygiene.screened import hidden, judged, prose, screened, write
from tests.hygiene.test_minhash import edited

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

PAIRS = 50

COPIES = ("edits", "formatting", "version")
OTHERS = ("rewritten", "window", "template", "boilerplate", "quotation")


def pair(generator: random.Random, kind: str, shared: str) -> tuple[str, str]:
    """A text of 200 words and another; *shared* is a text that all documents of a kind have."""
    text = prose(generator, 200)
    words = text.split()
    others = {
        "formatting": hidden(text, "\u00ad").replace(" ", ",\n", 50),
        "edits": edited(generator, text, 3),
        "version": f"{text} {prose(generator, 15)}",
        "rewritten": edited(generator, text, 40),
        "window": " ".join([*words[100:], *prose(generator, 100).split()]),
        "template": f"{shared} {prose(generator, 60)}",
        "boilerplate": f"{prose(generator, 200)} {shared}",
        "quotation": f"{prose(generator, 150)} {' '.join(words[:50])} {prose(generator, 150)}",
    }
    if kind in ("template", "boilerplate"):
        text = f"{shared} {prose(generator, 60)}" if kind == "template" else f"{text} {shared}"
    return text, others[kind]


def test_copies_are_dropped_and_nothing_else(tmp_path: Path) -> None:
    """One document of each pair of copies, and none that has much of its own."""
    generator = random.Random(6)
    labels, texts = [], []
    for kind in (*COPIES, *OTHERS):
        shared = prose(generator, 140)
        for _ in range(PAIRS):
            texts += pair(generator, kind, shared)
            labels.append(kind)
    write(tmp_path / "source" / "a.parquet", texts)
    run = screened(tmp_path / "run", tmp_path / "source", near_duplicates={})
    dropped = [row["dropped"] == "near_duplicate" for row in judged(run).values()]
    counts = dict.fromkeys(labels, 0)
    for number, kind in enumerate(labels):
        counts[kind] += sum(dropped[2 * number : 2 * number + 2])
    assert PAIRS - 2 <= counts.pop("edits") <= PAIRS
    assert counts == {**dict.fromkeys(COPIES[1:], PAIRS), **dict.fromkeys(OTHERS, 0)}
