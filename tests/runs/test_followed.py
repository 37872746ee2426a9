"""The pruned share and lambda that follow from examples, against runs that are told them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.publishing.card import recipe
from datamask.runs.followed import following
from datamask.runs.run import Run
from tests.finished import finish, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

WORDS = {"recipe": "whisk butter flour sugar oven eggs", "log": "error warning debug thread"}


@pytest.mark.parametrize(
    ("auc", "pruned", "weight"),
    [(1.0, 0.5, 1.0), (0.875, 0.5, 0.56), (0.71, 0.42, 0.18), (0.5, 0.0, 0.0), (0.4, 0.0, 0.0)],
)
def test_what_follows_is_as_the_evidence_says(auc, pruned, weight):
    """The worst min(1/2, t) are pruned, and lambda is t squared, for t = 2 AUC - 1."""
    assert following(auc) == (pruned, weight)


def texts(kinds: list[str], first: int) -> list[str]:
    """A text of thirty words of its kind, each with a number of its own."""
    generator = np.random.default_rng(first)
    return [
        " ".join([*generator.choice(WORDS[kind].split(), 30), f"n{first + row}"])
        for row, kind in enumerate(kinds)
    ]


def made(folder: Path, name: str, **groups: Any) -> Run:
    """A run over recipes and three times as many logs, whose only score knows recipes."""
    kinds = ["recipe" if row % 4 == 0 else "log" for row in range(480)]
    source, examples = folder / "source.parquet", folder / "examples.parquet"
    if not source.exists():
        ids = [f"d{row}" for row in range(480)]
        pq.write_table(pa.table({"id": ids, "text": texts(kinds, 0)}), source)
        pq.write_table(pa.table({"text": texts(["recipe"] * 120, 1000)}), examples)
    score = {"name": "taste", "kind": "examples", "path": str(examples)}
    arms = ["ours", {"name": "other", "change": {"metric": "pairwise"}}]
    data: dict[str, Any] = {
        "source": {"path": str(source)},
        "plan": {"rows_per_shard": 240},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"ratio": 0.1, "steps": 30},
        "evaluation": {"hold_out": 0.1, "model": "tiny", "tokens": 1000, "arms": arms},
    }
    for group, values in groups.items():
        data[group] = {**data.get(group, {}), **values}
    data["quality"] = {"scores": [score], **groups.get("quality", {})}
    return finish(folder / name, parse_settings(data), "arms")


def contents(run: Run) -> list[Any]:
    """What is pruned, the logits, and the documents of the arm that selects otherwise."""
    arm = pq.read_table(run.root / "evaluation/arms/other.parquet").to_pydict()
    return [
        *(table_of(run, "quality")["dropped"].to_pylist(), table_of(run, "selection").to_pydict()),
        arm,
    ]


def test_a_run_that_is_told_the_same_selects_the_same(tmp_path):
    """Pruning, logits, the card's formula and an arm with another metric have what follows."""
    run = made(tmp_path, "followed")
    told = 2 * run.receipt("example_models").metrics["taste"]["auc"] - 1
    assert 0.6 < told < 0.8, "a quarter of the random documents are recipes too"
    weight, pruned = round(told**2, 2), {"prune_fraction": 0.5}
    explicit = made(tmp_path, "told", quality=pruned, selection={"quality_weight": weight})
    fixed = made(tmp_path, "fixed", quality=pruned)
    assert contents(run) == contents(explicit)
    assert [one == other for one, other in zip(contents(run), contents(fixed), strict=True)] == [
        *(True, False, False)
    ]
    finish(run.root, run.settings, "composition")
    assert f"λ = {weight:g};" in recipe(run)


def test_a_score_that_tells_little_prunes_little(tmp_path, monkeypatch):
    """Of the documents that are left by other reasons, floor(t · number) are pruned."""
    run = made(tmp_path, "run")
    monkeypatch.setattr("datamask.runs.followed.following", lambda _: (0.13, 0.0))
    (run.root / "quality").rename(tmp_path / "before")
    finish(run.root, run.settings, "quality")
    dropped = table_of(run, "quality")["dropped"].to_pylist()
    left = sum(reason in (None, "pruned") for reason in dropped)
    assert dropped.count("pruned") == left * 13 // 100
