"""Characters that are not seen hide no text from any reader, in real runs."""

import random

import pytest

from tests.hygiene.screened import hidden, judged, prose, screened, write
from tests.hygiene.test_words import UNSEEN

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def test_unseen_characters_hide_no_text(tmp_path):
    """Copies in the corpus, of an earlier dataset and of a benchmark, with each character."""
    generator = random.Random(4)
    texts = [f"{prose(generator)} straße ΟΔΟΣ" for _ in UNSEEN]
    others = [f"{prose(generator)} straße οδος" for _ in UNSEEN]
    known = [f"{prose(generator)} straße οδος" for _ in UNSEEN]
    copies = [
        hidden(text, c) for text, c in zip([*texts, *others, *known], UNSEEN * 3, strict=True)
    ]
    write(tmp_path / "source" / "a.parquet", [*texts, *copies])
    write(tmp_path / "earlier" / "b.parquet", others)
    write(tmp_path / "benchmark" / "c.parquet", known)
    benchmark = {"name": "known", "path": str(tmp_path / "benchmark"), "columns": ["text"]}
    run = screened(
        tmp_path / "run",
        tmp_path / "source",
        near_duplicates={"similarity": 0.95, "against": [str(tmp_path / "earlier")]},
        contamination={"sets": [benchmark]},
    )
    reasons = [row["dropped"] for row in judged(run).values()]
    number = len(UNSEEN)
    pairs = zip(reasons[:number], reasons[number : 2 * number], strict=True)
    assert all({*pair} == {None, "near_duplicate"} for pair in pairs)
    assert reasons[2 * number :] == ["near_duplicate"] * number + ["contaminated"] * number
