"""The last document that is kept of a corpus, against sorting the corpus in Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.selection.threshold import find_cut

# Few values, so that there are ties; zeros of both signs.
LOGITS = st.sampled_from([-3.0e38, -(2.0**21), -1.0, -0.0, 0.0, 1e-45, 1.0, 1.0009765625, 3.0e38])
DOCUMENT = st.fixed_dictionaries(
    {
        "shard": st.integers(0, 3),
        "logit": LOGITS,
        "quality": st.sampled_from([-1.5, -0.0, 0.0, 0.1]),
        "tokens": st.integers(0, 9),
        "is_left": st.sampled_from([True, True, True, False]),
    }
)


class Files:
    """The files of four shards that the threshold reads; a stand-in for a run."""

    num_shards, quality_stage = 4, "quality"

    def __init__(self, folder: str, documents: list[dict[str, Any]], selection: Selection) -> None:
        self.root, self.settings = Path(folder), SimpleNamespace(selection=selection)
        left = [one for one in documents if one["is_left"]]
        kept, tokens = len(left), sum(one["tokens"] for one in left)
        self.metrics = dict.fromkeys(("kept", "kept_before", "tokens", "tokens_before"), 0)
        self.metrics |= {"kept_total": kept, "tokens_total": tokens}
        for shard in range(self.num_shards):
            rows = [one for one in documents if one["shard"] == shard]
            survivors = [one for one in rows if one["is_left"]]
            dropped = [None if one["is_left"] else "pruned" for one in rows]
            number = pa.array(range(len(rows)), pa.int64())
            columns = {
                "id": pa.array([one["id"] for one in rows], pa.string()),
                "quality": pa.array([one["quality"] for one in rows], pa.float64()),
                "dropped": pa.array(dropped, pa.string()),
                "row": number,
            }
            counts = pa.array([one["tokens"] for one in rows], pa.int64())
            logits = pa.array([one["logit"] for one in survivors], pa.float32())
            pq.write_table(pa.table(columns), self.path("quality", shard))
            languages = pa.array([one.get("language") for one in rows], pa.string())
            facts = pa.table({"id": columns["id"], "tokens": counts, "language": languages})
            pq.write_table(facts, self.path("scores", shard))
            pq.write_table(pa.table({"logit": logits}), self.path("learning", shard))

    def path(self, stage: str, shard: int) -> Path:
        """Where a file of a stage is."""
        return self.root / f"{stage}-{shard}.parquet"

    def quality_path(self, shard: int) -> Path:
        """Where the quality of a shard is."""
        return self.path("quality", shard)

    def receipt(self, stage: str, shard: int) -> Any:
        """How many documents and tokens survived pruning."""
        rows = pq.read_metadata(self.path(stage, shard)).num_rows
        return SimpleNamespace(metrics=self.metrics, rows=rows)


@settings(max_examples=12, deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=40), st.data())
def test_the_best_documents_are_kept_until_the_budget_is_met(
    documents: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Documents to the document, tokens within one, ties by quality and id."""
    documents[0]["is_left"] = True
    for number, document in enumerate(documents):
        logit = float(np.float32(document["logit"]))
        document |= {"id": f"d'{number * 7 % 41:03d}", "logit": logit}
    unit = data.draw(st.sampled_from(["documents", "tokens"]))
    rows = [document for document in documents if document["is_left"]]
    for row in rows:
        row["units"] = row["tokens"] if unit == "tokens" else 1
    there = sum(row["units"] for row in rows)
    assume(there)
    total = data.draw(st.integers(1, there))
    rows.sort(key=lambda row: (-row["logit"], -row["quality"], row["id"]))
    number, units = 0, 0
    while number < len(rows) and units < total:
        units += rows[number]["units"]
        number += 1
    kept, others = rows[:number], rows[number:]
    best = sorted(rows, key=lambda row: (-row["quality"], row["id"]))[number - 1]
    selection = Selection(scope="corpus", **{unit: total})
    with TemporaryDirectory() as folder:
        run: Any = Files(folder, documents, selection)
        workers = data.draw(st.integers(1, 3))
        (row,), metrics = find_cut(run, Compute(workers=workers), total)
    last = kept[-1]
    assert (row["logit"], row["quality"], row["id"]) == (last["logit"], last["quality"], last["id"])
    counts = Counter(document["shard"] for document in kept)
    assert metrics["selected"] == [counts[shard] for shard in range(4)]
    assert metrics["units"] == row["units"] == units
    assert metrics["top_quality"] == (best["quality"], best["id"])
    following = others[0]["logit"] if others else last["logit"] - 2
    assert metrics["threshold"] == (last["logit"] + following) / 2
