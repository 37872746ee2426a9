"""Read Lance datasets, local folders `x.lance`, by the package pylance.

A dataset keeps its earlier versions. The version that is the newest when the dataset is first
looked at is noted, and read from then on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from datamask.errors import InputError, one_line
from datamask.source.one_schema import fitted, pieces
from datamask.source.opening import is_remote, naming
from datamask.source.reading import plain_schema

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1024


def split_datasets(base: str, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the local datasets below the folder *base*, sorted, and the files in none of them."""
    datasets = dict[str, bool]()
    rest = []
    for name in names:
        within = re.match(r"(?i).*?\.lance(?=/|$)", name.removeprefix(base))
        folder = base + within[0] if within and not is_remote(name) else ""
        if folder not in datasets:
            datasets[folder] = os.path.isdir(f"{folder}/_versions") if folder else False
        if not datasets[folder]:
            rest.append(name)
    return sorted(folder for folder in datasets if datasets[folder]), rest


def identify(path: str, version: str = "") -> tuple[list[str], pa.Schema]:
    """Return a version (by default the newest) with a digest of its fragments, and its columns.

    Raises:
        InputError: pylance is absent, or the dataset has no such version or is damaged.
    """
    dataset = _opened(path, version)
    if version and int(version) != (newest := dataset.latest_version):
        logger.warning("%s: version %s is read, as at first, not %d", path, version, newest)
    files = [fragment.metadata.to_json() for fragment in dataset.get_fragments()]
    facts = json.dumps([str(dataset.schema), files], sort_keys=True)
    digest = hashlib.sha256(facts.encode()).hexdigest()
    return [str(dataset.version), digest], plain_schema(dataset.schema)


def read_dataset(path: str, version: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version in their order, in *schema*; errors are as by `identify`."""
    with naming(path):
        batches = _opened(path, version).to_batches(
            batch_size=ROWS_AT_ONCE, strict_batch_size=True, batch_readahead=1, scan_in_order=True
        )
        yield from fitted(pieces(batches), schema, path)


def _opened(path: str, version: str) -> Any:
    try:
        import lance
    except ModuleNotFoundError:
        remedy = 'run `pip install "datamask-pipeline[lance]"`'
        raise InputError(f"Lance needs the package pylance; {remedy}", path=path) from None
    with naming(path):
        try:
            return lance.dataset(path, version=int(version) if version else None)
        except ValueError as error:
            reason, of = one_line(error)[:300], f"version {version} " if version else ""
            problem = f"{of}cannot be read ({reason}); restore it, or use another folder"
            raise InputError(problem, path=path) from None
