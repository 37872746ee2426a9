"""Write documents in FineWeb's layout: its columns, dumps and names of files, with other texts.

The texts are made by `benchmarks.many_texts` from docstrings. `make fineweb` puts them on a Hub on
loopback under FineWeb's name, and runs `deployments/fineweb.yaml` from there to a published subset.

    python -m benchmarks.fineweb_stand_in runs/fineweb-stand-in --rows 200000
"""

from __future__ import annotations

import argparse
import shutil
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.many_texts import write_texts

DUMPS = ("CC-MAIN-2013-20", "CC-MAIN-2019-35", "CC-MAIN-2024-10")
LANGUAGES, SHARES = ("en", "de", "fr"), (0.97, 0.02, 0.01)
ROWS_PER_FILE = 25_000


def in_layout(texts: pa.Table, generator: np.random.Generator) -> pa.Table:
    """Turn texts with `dump`, their package, into rows with FineWeb's columns."""
    rows, dumps = len(texts), generator.choice(DUMPS, len(texts))
    numbers = generator.bytes(16 * rows)
    ids = [uuid.UUID(bytes=numbers[16 * row : 16 * row + 16], version=4).urn for row in range(rows)]
    sites = [f"https://www.{name}.org/page/{n}" for n, name in enumerate(texts["dump"].to_pylist())]
    files = [f"s3://commoncrawl/crawl-data/{dump}/segments/0/warc/0.warc.gz" for dump in dumps]
    columns = {
        "text": texts["text"],
        "id": [f"<{name}>" for name in ids],
        "dump": dumps,
        "url": sites,
        "date": [f"{dump[8:12]}-02-20T00:00:00Z" for dump in dumps],
        "file_path": files,
        "language": generator.choice(LANGUAGES, rows, p=SHARES),
        "language_score": generator.uniform(0.65, 1, rows),
        "token_count": [len(text.split()) * 4 // 3 for text in texts["text"].to_pylist()],
    }
    return pa.table(columns)


def write_stand_in(folder: Path, rows: int) -> None:
    """Write `sample/10BT/*.parquet` with *rows* documents, and `examples.jsonl` of wanted texts."""
    write_texts(folder / "made", rows)
    texts, generator = pq.read_table(folder / "made/texts"), np.random.default_rng(1)
    (folder / "sample/10BT").mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, ROWS_PER_FILE)):
        table = in_layout(texts.slice(start, ROWS_PER_FILE), generator)
        name = folder / f"sample/10BT/{number:03d}_00000.parquet"
        pq.write_table(table, name, row_group_size=1000)  # as published
    shutil.copy(folder / "made/docstrings-examples.jsonl", folder / "examples.jsonl")


def main() -> None:
    """Write the documents."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    write_stand_in(given.folder, given.rows)


if __name__ == "__main__":
    main()
