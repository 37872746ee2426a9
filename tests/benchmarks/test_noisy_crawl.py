"""Corpora of clean texts, noise and near-copies."""

from itertools import chain

import pyarrow.parquet as pq

from benchmarks import noisy_crawl
from benchmarks.debian_texts import document


def test_no_clean_text_of_other_corpora_is_used(tmp_path):
    """There are twice as many clean texts as needed, and only as much noise."""
    clean, bad = (
        [
            document(" ".join(f"{kind}{number}word{word}" for word in range(20)), kind, "package")
            for kind, count in needed.items()
            for number in range(times * count)
        ]
        for times, needed in (
            (2, {"descriptions": 500, "documentation": 1000, "manuals": 560, "docstrings": 380}),
            (1, dict.fromkeys(noisy_crawl.NOISE, 60)),
        )
    )
    (tmp_path / "source").mkdir()
    noisy_crawl._write(tmp_path / "source" / "clean.parquet", clean)
    ids, used = {text.id for text in clean}, []
    for name, without in (("first", []), ("again", []), ("other", [tmp_path / "first"])):
        folder = tmp_path / name
        folder.mkdir()
        noisy_crawl._write(folder / "noise.parquet", bad)
        noisy_crawl.write(tmp_path / "source", folder, tmp_path, 800, 1, without)
        tables = [pq.read_table(path) for path in sorted(folder.glob("*-*.parquet"))]
        assert len(tables) == 3 * len(("A", "B", "B0", "C", "A2"))
        used.append(ids & {*chain.from_iterable(table["id"].to_pylist() for table in tables)})
    first, again, other = used
    assert len(pq.read_table(tmp_path / "first" / "tokens.parquet")) == 800
    assert first == again
    assert len(first) == len(other) and not first & other
