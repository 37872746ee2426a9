"""Stage `outcome`: the objective of the corpus for its selection and for top quality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from datamask.config.compute import Compute
from datamask.learning.data import ShardData
from datamask.learning.learner import compared
from datamask.learning.scales import references
from datamask.objectives.protocol import MomentObjective
from datamask.runs import schemas
from datamask.runs.run import Run
from datamask.selection import sampling, sums
from datamask.selection.documents import on_device, read_column, read_quality, with_vectors


def sum_selected(run: Run, shard: int, compute: Compute) -> None:
    """Write `outcome/NNNNN.parquet`: moments of the documents kept, and a sample of the shard.

    In scope `corpus`, it also has the moments of its part of the corpus's top quality. Thresholds
    of the corpus decide what is kept, so the sums over shards are the moments of the corpus's
    selection, and of equally many documents with the highest quality. The sample marks kept
    documents.
    """
    selection, documents = run.settings.selection, read_quality(run, shard)
    kept = read_column(run, "selection", documents, "selected").to_numpy()
    masks = {"selected": kept}
    if selection.scope == "corpus":
        least, last = run.receipt("threshold").metrics["top_quality"] or (np.inf, "")
        ties = (documents.quality == least) & pc.less_equal(documents.ids, last).to_numpy()
        masks["top_quality"] = (documents.quality > least) | ties

    sampled = sampling.sampled_rows(run, documents)
    is_needed = np.any([*masks.values()], axis=0)
    is_needed[sampled] = True
    needed_rows = np.flatnonzero(is_needed)
    documents = with_vectors(run, documents, needed_rows)

    def add_up(data: ShardData) -> list[dict[str, Any]]:
        needed = (mask[needed_rows] for mask in masks.values())
        return [sums.moment_row(sums.weighed_moments(run, data, mask)) for mask in needed]

    summed = on_device(documents, compute, add_up)
    sample = sampling.sample_columns(documents, np.searchsorted(needed_rows, sampled))
    rows = [{"selection": name, **row} for name, row in zip(masks, summed, strict=True)]
    rows[0] |= sample | {"sample_selected": kept[sampled]}
    sums.write_sums(run, "outcome", shard, schemas.OUTCOME, rows, {})


def corpus_metrics(run: Run) -> dict[str, Any]:
    """Compute the objective of the corpus for its selection, random documents and top quality.

    Returns the metrics of a shard's mask: `terms`, `objective`, `scales`. Values are functions of
    the moments of all shards; scales are as in learning. Terms of weight 0 that are not functions
    of moments are left out.
    """
    selected, top_quality = sums.read_moments(run, "outcome", range(run.num_shards))
    corpus = sums.CorpusState.read(run, 0).corpus
    totals = corpus.totals
    if run.settings.selection.num_rounds:  # those are estimated
        _, totals = sums.read_moments(run, "round", run.round_units(1))
    terms = [term for term in corpus.terms if isinstance(term.objective, MomentObjective)]
    sample = sampling.known_sample(run, Compute())
    count = float(selected.count)
    known = references(terms, totals, sample, count, run.settings.seed)
    ours, best = (
        sums.term_values(terms, moments) if count else dict.fromkeys(known, 0.0)
        for moments in (selected, top_quality)
    )
    return compared(terms, ours, known, best, sums.level_of_quality(run))
