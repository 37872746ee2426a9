"""The kinds of score as a table: what planning asks of each, and where stage `scores` gets values.

A new kind has a class of settings in `config.scores`, a module here with its work, and a row below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datamask.config import scores as of
from datamask.errors import DatamaskError
from datamask.quality.classifier import pin_classifier, read_classified
from datamask.quality.example_texts import pin_examples
from datamask.quality.examples import example_scorer
from datamask.quality.fasttext_model import fasttext_scorer, pin_fasttext
from datamask.quality.file_scores import pin_files, read_joined, row_problems
from datamask.quality.heuristic import heuristic_scorer
from datamask.quality.own import own_scorer, pin_own
from datamask.runs.run import Run
from datamask.source.windows import Scorer


@dataclass(frozen=True, slots=True)
class Kind:
    """The functions of a kind of score. A kind that is a column of the source has none.

    Args:
        scorer: returns the function that scores texts in stage `scores`, given run and score.
        read: reads the values that an earlier stage made, of documents with the given ids of a
            shard: float64, and the fraction of each text that was read or None.
        pin: identifies the files or the model of a score, given the run as it was planned before
            or None; empty if there is none.
        row_problems: yields the errors that only the rows of its files can show, given a connection
            with the table `ids` of the source, and functions of file and row: path and id.
    """

    scorer: Callable[[Run, Any], Scorer] | None = None
    read: Callable[[Run, int, str, pa.ChunkedArray], tuple[pa.Array, pa.Array | None]] | None = None
    pin: Callable[[Any, Run | None], str] = lambda score, before: ""
    row_problems: (
        Callable[[Any, Sequence[str], Callable[[int, int], str], Any, str], Iterator[DatamaskError]]
        | None
    ) = None


# fmt: off
KINDS: dict[type[of.AnyScore], Kind] = {
    of.HeuristicScore: Kind(heuristic_scorer),
    of.ColumnScore: Kind(),
    of.FileScore: Kind(read=read_joined, pin=pin_files, row_problems=row_problems),
    of.ExamplesScore: Kind(example_scorer, pin=pin_examples),
    of.ClassifierScore: Kind(read=read_classified, pin=pin_classifier),
    of.FastTextScore: Kind(fasttext_scorer, pin=pin_fasttext),
    of.OwnScore: Kind(own_scorer, pin=pin_own),
}
# fmt: on
