"""Published layouts: a small file of each is read with the settings of docs/recipes.md."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from tests import finished
from tests.source.test_convert import write

RECIPES = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", RECIPES, re.DOTALL | re.MULTILINE))
ROWS = 12
TEXTS = [
    f"A text with number {row}, which is longer than others. " * (row + 2) for row in range(ROWS)
]
SCORES = [((row * 5) % ROWS) / ROWS for row in range(ROWS)]

Row = dict[str, Any]


def parquet(path: str, row_of: Callable[[int], Row]) -> None:
    """A Parquet file of twelve documents."""
    Path(path).parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist([*map(row_of, range(ROWS))]), path)


def lines(path: str, row_of: Callable[[int], Row]) -> None:
    """Twelve lines of JSON."""
    write(Path(path), [*map(row_of, range(ROWS))])


def fineweb(row: int) -> Row:
    """A row of FineWeb."""
    facts = {
        "dump": "CC-MAIN-2024-10",
        "url": f"https://s{row}.org",
        "date": "2024-02-20T00:00:00Z",
    }
    counts = {"language": "en", "language_score": 0.9, "token_count": 9 * (row + 2)}
    return {"text": TEXTS[row], "id": f"<urn:uuid:{row}>", **facts, **counts}


def make_dolma() -> None:
    """Documents, and attributes in parallel files."""

    def attributes(row: int) -> Row:
        return {"id": f"d{row}", "attributes": {"quality__fasttext__score": [[0, 9, SCORES[row]]]}}

    def document(row: int) -> Row:
        about = {"source": "cc", "added": "2024-01-01T00:00:00Z", "metadata": {"url": "http://a.b"}}
        return {"id": f"d{row}", "text": TEXTS[row], **about}

    lines("dolma/documents/0.jsonl.gz", document)
    lines("dolma/attributes/0.jsonl.gz", attributes)


def make_annotated() -> None:
    """Documents, and scores by the digest of their text."""
    parquet("pool/0.parquet", lambda row: {"id": f"p{row}", "text": TEXTS[row]})
    digests = [hashlib.md5(text.encode()).hexdigest() for text in TEXTS]
    parquet("annotations.parquet", lambda row: {"text_md5": digests[row], "score": SCORES[row]})


def redpajama(row: int) -> Row:
    """A document whose signals are JSON within a text."""
    signals = json.dumps({"ccnet_perplexity": [[0, 9, -SCORES[row]]]})
    return {"raw_content": TEXTS[row], "doc_id": f"2023/{row}", "quality_signals": signals}


DCLM = "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob"
LAYOUTS: dict[str, tuple[Callable[[], None], bool]] = {
    "FineWeb": (lambda: parquet("fineweb/0.parquet", fineweb), False),
    "FineWeb-Edu": (
        lambda: parquet(
            "fineweb-edu/0.parquet",
            lambda row: fineweb(row) | {"score": SCORES[row], "int_score": int(SCORES[row])},
        ),
        True,
    ),
    "DCLM-baseline": (
        lambda: lines(
            "dclm/0.jsonl.zst",
            lambda row: {
                "text": TEXTS[row],
                "url": "http://a.b",
                "metadata": {"WARC-Record-ID": f"<{row}>", "Content-Length": str(row)},
                DCLM: SCORES[row],
            },
        ),
        True,
    ),
    "Dolma": (make_dolma, True),
    "RedPajama-V2": (lambda: lines("redpajama/0.json.gz", redpajama), True),
    "datatrove": (
        lambda: parquet(
            "datatrove/0.parquet",
            lambda row: {"text": TEXTS[row], "id": f"t/{row}", "metadata": {"url": "http://a.b"}},
        ),
        False,
    ),
    "NeMo Curator": (
        lambda: lines(
            "curated/0.jsonl",
            lambda row: {"text": TEXTS[row], "id": f"c-{row}", "quality_prob": SCORES[row]},
        ),
        True,
    ),
    "Annotations by others": (make_annotated, True),
}
"""How the files of a layout are made, and whether its settings name the scores."""


@pytest.mark.parametrize("layout", [name for name in SECTIONS if "```yaml" in SECTIONS[name]])
def test_the_settings_of_a_layout(layout, tmp_path, monkeypatch):
    """All documents are read, and quality is in the order of the scores."""
    monkeypatch.chdir(tmp_path)
    make, is_scored = LAYOUTS[layout]
    make()
    for sql in re.findall(r"```sql\n(.*?)```", SECTIONS[layout], re.DOTALL):
        duckdb.execute(sql)
    [text] = re.findall(r"```yaml\n(.*?)```", SECTIONS[layout], re.DOTALL)
    data = yaml.safe_load(text) | {"embedding": {"method": "lexical", "dimension": 32}}
    chosen: Settings = parse_settings(data)
    run = finished.finish(tmp_path / "run", chosen, "quality")
    rows = pq.read_table(run.path("quality", 0)).to_pylist()
    assert len({row["id"] for row in rows}) == ROWS
    if is_scored:
        expected = sorted(range(ROWS), key=SCORES.__getitem__)
        assert sorted(range(ROWS), key=lambda row: rows[row]["quality"]) == expected
