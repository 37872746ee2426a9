"""The published script of DATAMASK (arXiv 2512.24265): its flags, objective and estimator.

One shard of Parquet files with `chunk_id`, `quality_score` and `feature_arr` becomes a file with
`chunk_id`, `logit` and `selected`. The objective is the paper's sum, with nothing divided by a
deviation: lamb · mean quality + (1 - lamb) · D, where D is the mean cosine of each document with
its nearest selected one (Facility), or minus DiSF, or minus the mean cosine of two selected
documents (Pair_simi). So quality, if its values are large, outweighs D. The seed is 0.

    python examples/train_mask.py --input shard.parquet --output mask.parquet --algorithm DiSF
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.embedding.vectors import normalise, to_matrix
from datamask.errors import DatamaskError, lines
from datamask.learning.learner import learn_mask
from datamask.source.opening import list_files

METRICS = {"DiSF": "disf", "Facility": "facility_location", "Pair_simi": "pairwise"}


def train_mask(given: argparse.Namespace) -> pa.Table:
    """The mask of a shard. Raises DatamaskError, or ArrowInvalid where a column is missing."""
    options = {"quality_weight": given.lamb, "metric": METRICS[given.algorithm]}
    options |= {"estimator": "policy_gradient", "steps": given.n_epochs, "tolerance": 0}
    options |= {"batch_fraction": given.partial, "rollouts": given.n_rollout, "swap_refinement": 0}
    options |= {"initial_lr": given.max_lr, "final_lr": given.min_lr, "ratio": given.select_ratio}
    options |= {"init": {"same": "uniform"}.get(given.init, given.init), "scale_terms": False}
    selection: Selection = parse_settings(options, Selection)
    names = ["chunk_id", "quality_score", "feature_arr"]
    table = pa.concat_tables(pq.read_table(name, columns=names) for name in list_files(given.input))
    width = pc.list_value_length(table["feature_arr"])[0].as_py()
    features = normalise(to_matrix(table["feature_arr"], width, path=given.input))
    quality = table["quality_score"].to_numpy().astype(np.float64)
    number, compute = round(given.select_ratio * len(table)), Compute(device=given.device)
    learned = learn_mask(features, quality, selection, number, seed=0, compute=compute)
    made = {"logit": pa.array(learned.logits), "selected": pa.array(learned.selected)}
    return pa.table({"chunk_id": table["chunk_id"], **made})


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the flags, which are those of the published script; the exit status."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--input", required=True, help="Parquet file, folder, glob or URL")
    add("--output", required=True, help="Parquet file to write")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    add("--n_epochs", type=int, default=10_000, help="steps of the learner")
    add("--algorithm", choices=list(METRICS), default="DiSF", help="diversity metric")
    add("--partial", type=float, default=0.05, help="share of the documents in a step's batch")
    add("--max_lr", type=float, default=10.0, help="learning rate at the start")
    add("--min_lr", type=float, default=1.0, help="learning rate at the end")
    add("--n_rollout", type=int, default=128, help="masks drawn in a step")
    add("--select_ratio", type=float, default=0.1, help="share of the documents to keep")
    add("--init", choices=["same", "quality"], default="quality", help="initial logits")
    add("--lamb", type=float, default=0.5, help="lambda: 1 is quality only, 0 diversity only")
    given = parser.parse_args(arguments)
    try:
        pq.write_table(train_mask(given), given.output)
    except (DatamaskError, OSError, ValueError) as error:
        print("\n".join(lines(error) if isinstance(error, DatamaskError) else [f"{error}"]))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
