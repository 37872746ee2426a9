"""Into how many partitions the corpus is divided where all of its documents are compared."""

from __future__ import annotations

from datamask.runs.run import Run
from datamask.runs.stage import Unit
from datamask.runs.stage_settings import compares_all

PARTITION_DOCUMENTS = 2**28
"""Most documents per partition. Each partition reads the columns it needs of the whole corpus, so
fewer are less to read, and more are less memory and more machines at work."""


def num_partitions(documents: int) -> int:
    """The number of partitions of a corpus."""
    return -(-documents // PARTITION_DOCUMENTS)


def partition_units(run: Run) -> list[Unit]:
    """The units of stage `comparison`; none if nothing is compared."""
    number = num_partitions(run.num_documents) if compares_all(run.settings) else 0
    return [Unit(f"comparison/{unit:05d}", number) for unit in range(number)]
