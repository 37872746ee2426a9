"""Which planted benchmark texts are dropped or flagged, by kind; the table in duplicates.md."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.hygiene.screened import hidden, judged, prose, screened, write
from tests.hygiene.test_minhash import VOCABULARY, edited

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

ITEMS = 40

LEAKS = ("leak", "hidden leak", "question alone", "edited leak")


def planted(generator: random.Random, kind: str, question: str, answer: str, header: str) -> str:
    """A document of 200 words of its own, with something of a benchmark's item."""
    words = question.split()
    several = [generator.choice(VOCABULARY) if n % 4 == 3 else w for n, w in enumerate(words)]
    part = {
        "leak": f"{question} {answer}",
        "hidden leak": hidden(f"{question}. {answer}", "\u200b"),
        "question alone": question,
        "edited leak": edited(generator, f"{question} {answer}", 2),
        "paraphrase": " ".join(several),
        "quotation": " ".join(words[:15]),
        "famous sentence": header,
        "across columns": " ".join([*words[-7:], *answer.split()[:7]]),
        "nothing": "",
    }[kind]
    return f"{prose(generator, 100)} {part} {prose(generator, 100)}"


KINDS = (*LEAKS, "paraphrase", "quotation", "famous sentence", "across columns", "nothing")


def test_leaks_are_dropped_and_quotations_flagged(tmp_path: Path) -> None:
    """A benchmark of 60 words per item, and an item that is a sentence of 40 documents."""
    generator = random.Random(9)
    header = prose(generator, 30)
    items = [(prose(generator, 45), prose(generator, 15)) for _ in range(ITEMS)]
    rows = [{"question": q, "answer": a} for q, a in [*items, (header, "who said so")]]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    labels = [kind for kind in KINDS for _ in range(ITEMS)]
    texts = [planted(generator, kind, *item, header) for kind in KINDS for item in items]
    domains = [f"https://site{number % 7}.org/" for number in range(len(texts))]
    write(tmp_path / "source" / "a.parquet", texts, url=domains)
    asked = {"path": str(tmp_path / "asked.jsonl"), "columns": ["question", "answer"]}
    run = screened(tmp_path / "run", tmp_path / "source", contamination={"sets": [asked]})
    dropped, flagged = Counter[str](), Counter[str]()
    for kind, row in zip(labels, judged(run).values(), strict=True):
        dropped[kind] += row["dropped"] == "contaminated"
        flagged[kind] += row["dropped"] is None and row["contaminated_by"] == "asked"
    edits = dropped.pop("edited leak")
    assert edits >= 25 and edits + flagged.pop("edited leak") == ITEMS
    assert +dropped == dict.fromkeys(LEAKS[:3], ITEMS)
    assert +flagged == {"quotation": ITEMS}
