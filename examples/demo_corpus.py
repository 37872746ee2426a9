"""The demo's corpus: docstrings of the standard library and of a dozen installed packages.

They are thousands of documents of English technical prose with natural near-duplicates, available
without a network. Files are parsed with `ast`; nothing is imported. The same packages give the
same bytes. A package that is not installed is left out.

Some docstrings of numeric packages are no documents of the corpus: `FOLDER-examples.jsonl` has
examples of what the demo's model should learn, and `FOLDER-numeric.jsonl` texts to evaluate it on.

    python examples/demo_corpus.py FOLDER [--limit N]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import inspect
import itertools
import json
import logging
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, get_type_hints

import pyarrow as pa

from datamask.cli.progress import shown_progress
from datamask.runs.files import write_parquet
from datamask.runs.in_progress import advance, working

LEAST_WORDS = 20
LIMIT = 24_000
ROWS_PER_GROUP = 500
WANTED = ("numpy", "scipy", "sklearn")
PACKAGES = (
    *WANTED,
    *("beartype", "huggingface_hub", "networkx", "prefect", "pydantic", "redis", "sqlalchemy"),
    "sympy",
)
"""They come with the extra `prefect` and have many docstrings for their size."""
APART = {"examples.jsonl": 300, "numeric.jsonl": 300}
"""Files of docstrings of `WANTED` that are not in the demo's corpus, and how many each has."""
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SKIPPED = ("datamask", "tasks", "flows", "tests", "test", "site-packages", "__pycache__")


class Document(NamedTuple):
    """A docstring in FineWeb's columns; `url` is the dotted name.

    `dump` is the package; `python` stands for the standard library.
    """

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
    apart: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Write the corpus as Parquet files, and return the number of documents.

    Args:
        folder: created if missing.
        num_files: documents are divided in order.
        limit: most documents; a hash of the names chooses them.
        roots: folders of packages; by default the standard library, and `PACKAGES` of others.
        workers: processes that parse.
        apart: how many docstrings of `WANTED` are left out of the corpus for each file of JSON
            lines beside the folder, by its name (`FOLDER-NAME`).
    """
    found: dict[str, Document] = {}
    folders = [(root, "") for root in roots] if roots else _installed()
    files = [(root, path) for root, name in folders for path in _modules(root, name)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(working("corpus"))
        parsed: Iterable[list[Document]] = map(_documents, files)
        if workers > 1:
            # Syntax trees have no circles, and the collector would traverse them again and again.
            pool = stack.enter_context(ProcessPoolExecutor(workers, initializer=gc.disable))
            parsed = pool.map(_documents, files, chunksize=64)
        for number, documents in enumerate(parsed):
            advance(number, len(files), "files")
            for document in documents:
                found.setdefault(document.id, document)
    in_order = [found[key] for key in sorted(found)]
    wanted = dict.fromkeys(one.text for one in in_order if one.dump in WANTED)
    texts = iter([*wanted][: len(wanted) // 2])
    drawn = {name: list(itertools.islice(texts, number)) for name, number in apart.items()}
    known = {text for some in drawn.values() for text in some}
    documents = [one for one in in_order if one.text not in known][:limit]
    documents.sort(key=lambda document: document.url)
    for number in range(num_files):
        start = len(documents) * number // num_files
        stop = len(documents) * (number + 1) // num_files
        table = pa.Table.from_pylist([one._asdict() for one in documents[start:stop]], SCHEMA)
        groups = table.to_batches(ROWS_PER_GROUP)
        write_parquet(folder / f"docstrings-{number:02d}.parquet", SCHEMA, groups)
    for name, some in drawn.items():
        lines = (json.dumps({"text": text}) + "\n" for text in some)
        folder.with_name(f"{folder.name}-{name}").write_text("".join(lines), encoding="utf-8")
    return len(documents)


def _installed() -> list[tuple[Path, str]]:
    """Folders of packages, and the package to read in each; "" means all of them."""
    others = {Path(sysconfig.get_paths()[name]): None for name in ("purelib", "platlib")}
    return [(STANDARD_LIBRARY, ""), *((root, name) for root in others for name in PACKAGES)]


def _modules(root: Path, package: str) -> Iterator[Path]:
    for path in sorted((root / package).rglob("*.py")):
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
    if not parts:
        return []
    package = "python" if root == STANDARD_LIBRARY else parts[0]
    return list(_within(tree, ".".join(parts), package, place.as_posix()))


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
        limit, folder = arguments.limit, arguments.folder
        count = write_corpus(folder, limit=limit, workers=workers, apart=APART)
    print(f"{count:,d} documents in {arguments.folder}")


if __name__ == "__main__":
    main()
