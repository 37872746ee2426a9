"""Planted copies and benchmark texts are dropped or flagged, by kind (duplicates.md)."""

import json
import random
from collections import Counter

import pytest

from tests.hygiene.screened import hidden, judged, prose, screened, write
from tests.hygiene.test_minhash import VOCABULARY, edited

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


def test_copies_are_dropped_and_nothing_else(tmp_path):
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
    assert counts == {**dict.fromkeys(COPIES, PAIRS), **dict.fromkeys(OTHERS, 0)}


ITEMS = 40

LEAKS = ("leak", "hidden leak", "question alone", "short leak", "edited leak")


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
        "short leak": f"{' '.join(words[:7]).title()}? {answer.split()[0]}!",
        "short question": f"{' '.join(words[:7])}? Answer: {answer.split()[0]}",
        "famous sentence": header,
        "across columns": " ".join([*words[-7:], *answer.split()[:7]]),
        "nothing": "",
    }[kind]
    return f"{prose(generator, 100)} {part} {prose(generator, 100)}"


OTHERS_ASKED = ("paraphrase", "quotation", "famous sentence", "across columns", "short question")
KINDS = (*LEAKS, *OTHERS_ASKED, "nothing")


def test_leaks_are_dropped_and_quotations_flagged(tmp_path):
    """A benchmark of 60 words per item, the same in 8 words, and a sentence of 40 documents."""
    generator = random.Random(9)
    header = prose(generator, 30)
    items = [(prose(generator, 45), prose(generator, 15)) for _ in range(ITEMS)]
    rows = [{"question": q, "answer": a} for q, a in [*items, (header, "who said so")]]
    rows += [{"question": " ".join(q.split()[:7]), "answer": a.split()[0]} for q, a in items]
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
    assert +dropped == dict.fromkeys(LEAKS[:4], ITEMS)
    assert +flagged == {"quotation": ITEMS}
