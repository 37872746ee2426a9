"""The demo's corpus: docstrings of the standard library and of the installed packages.

They are thousands of documents of English technical prose with natural near-duplicates, available
without a network. Files are parsed with `ast`; nothing is imported. The same packages give the
same bytes.

    python examples/demo_corpus.py FOLDER [--limit N]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import inspect
import logging
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pyarrow as pa

from datamask.cli.progress import shown_progress
from datamask.runs.files import write_parquet
from datamask.runs.in_progress import advance, working

LEAST_WORDS = 20
LIMIT = 24_000
ROWS_PER_GROUP = 500
SKIPPED = ("datamask", "tasks", "flows", "tests", "test", "site-packages", "__pycache__")


class Document(NamedTuple):
    """A docstring in FineWeb's columns; `dump` is the package, `url` the dotted name."""

    text: str
    id: str
    dump: str
    url: str
    date: str
    file_path: str
    language: str
    language_score: float
    token_count: int


_TYPES = {str: pa.string(), float: pa.float64(), int: pa.int64()}
SCHEMA = pa.schema([(name, _TYPES[kind]) for name, kind in get_type_hints(Document).items()])


def write_corpus(
    folder: Path,
    *,
    num_files: int = 8,
    limit: int = LIMIT,
    roots: tuple[Path, ...] | None = None,
    workers: int = 1,
) -> int:
    """Write the corpus as Parquet files, and return the number of documents.

    Args:
        folder: created if missing.
        num_files: documents are divided in order.
        limit: most documents; a hash of the names chooses them.
        roots: folders of packages; by default the standard library and site-packages.
        workers: processes that parse.
    """
    found: dict[str, Document] = {}
    files = [(root, path) for root in roots or _installed() for path in _modules(root)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(working("corpus"))
        parsed: Iterable[list[Document]] = map(_documents, files)
        if workers > 1:
            pool = stack.enter_context(ProcessPoolExecutor(workers))
            parsed = pool.map(_documents, files, chunksize=64)
        for number, documents in enumerate(parsed):
            advance(number, len(files), "files")
            for document in documents:
                found.setdefault(document.id, document)
    chosen = sorted(found)[:limit]
    documents = sorted((found[key] for key in chosen), key=lambda document: document.url)
    for number in range(num_files):
        start = len(documents) * number // num_files
        stop = len(documents) * (number + 1) // num_files
        table = pa.Table.from_pylist([one._asdict() for one in documents[start:stop]], SCHEMA)
        groups = table.to_batches(ROWS_PER_GROUP)
        write_parquet(folder / f"docstrings-{number:02d}.parquet", SCHEMA, groups)
    return len(documents)


def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "purelib", "platlib")
    return tuple(dict.fromkeys(Path(paths[name]) for name in names))


def _modules(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not any(part in SKIPPED or part.endswith("-info") for part in place.parts):
            yield place


def _documents(file: tuple[Path, Path]) -> list[Document]:
    """The docstrings of a module, given with the folder of packages that holds it."""
    root, place = file
    parts = list(place.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse((root / place).read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []  # templates and test data that only look like Python
    return list(_within(tree, ".".join(parts), parts[0], place.as_posix())) if parts else []


def _within(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
    name: str,
    package: str,
    file: str,
) -> Iterator[Document]:
    text = ast.get_docstring(node, clean=False)
    if text is not None:
        text = inspect.cleandoc(text).encode("utf-8", "ignore").decode()
        words = len(text.split())
        if words >= LEAST_WORDS:
            key = hashlib.sha256(name.encode()).hexdigest()[:24]
            yield Document(text, key, package, name, "", file, "en", 1.0, words)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child, f"{name}.{child.name}", package, file)


def main() -> None:
    """Write the corpus and print its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=LIMIT, help="most documents")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with shown_progress():
        workers = os.cpu_count() or 1
        count = write_corpus(arguments.folder, limit=arguments.limit, workers=workers)
    print(f"{count} documents in {arguments.folder}")


if __name__ == "__main__":
    main()
