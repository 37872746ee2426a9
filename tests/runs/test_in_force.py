"""The pruned share and lambda that follow from examples, against runs that are told them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from datamask.analysis.compare import compare
from datamask.cli.main import cli
from datamask.config.loading import parse_settings
from datamask.config.recipe import following
from datamask.evaluation.units import arm_units
from datamask.publishing.card import _settings, recipe
from datamask.report import quality_findings
from datamask.report.group_findings import remedy
from datamask.runs.run import Run
from tests.cli.commands import here
from tests.finished import finish, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

WORDS = {"recipe": "whisk butter flour sugar oven eggs", "log": "error warning debug thread"}


@pytest.mark.parametrize(
    ("auc", "pruned", "weight"),
    [
        (1.0, 0.7, 1.0),
        (0.875, 0.7, 0.56),
        (0.8, 0.6, 0.36),
        (0.71, 0.42, 0.18),
        (0.5, 0.0, 0.0),
        (0.4, 0.0, 0.0),
    ],
)
def test_what_follows_is_as_the_evidence_says(auc, pruned, weight):
    """The worst min(0.7, t) are pruned, and lambda is t squared, for t = 2 AUC - 1."""
    assert following(auc) == (pruned, weight)


def texts(kinds: list[str], first: int) -> list[str]:
    """A text of thirty words of its kind, each with a number of its own."""
    generator = np.random.default_rng(first)
    return [
        " ".join([*generator.choice(WORDS[kind].split(), 30), f"n{first + row}"])
        for row, kind in enumerate(kinds)
    ]


def made(folder: Path, name: str, last: str = "arms", **groups: Any) -> Run:
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
    return finish(folder / name, parse_settings(data), last)


def contents(run: Run) -> list[Any]:
    """Pruned documents, logits, and the documents of the arm that selects otherwise."""
    arm = pq.read_table(run.root / "evaluation/arms/other.parquet").to_pydict()
    return [
        *(table_of(run, "quality")["dropped"].to_pylist(), table_of(run, "selection").to_pydict()),
        arm,
    ]


def test_a_run_that_is_told_the_same_selects_the_same(tmp_path, capsys):
    """Pruning, logits and an arm with another metric have what follows; all pages say so."""
    run = made(tmp_path, "followed")
    told = 2 * run.receipt("example_models").metrics["taste"]["auc"] - 1
    assert 0.6 < told < 0.8, "a quarter of the random documents are recipes too"
    weight, pruned = round(told**2, 2), {"prune_fraction": round(min(0.7, told), 2)}
    explicit = made(tmp_path, "told", quality=pruned, selection={"quality_weight": weight})
    fixed = made(tmp_path, "fixed", quality=pruned)
    assert contents(run) == contents(explicit)
    assert [one == other for one, other in zip(contents(run), contents(fixed), strict=True)] == [
        *(True, False, False)
    ]
    for one in (run, explicit, fixed):
        finish(one.root, one.settings, "composition")
    assert f"λ = {weight:g};" in recipe(run)
    asked = {row.name: row for row in quality_findings.scores(run)}
    assert asked["wanted share"].grade == "unknown"
    assert f"= {1 - told:.0%} of the source" in asked["wanted share"].text
    groups = run.receipt("example_models").metrics["taste"]["groups"]
    assert ("examples" in asked) == (groups["examples"] < 0.6 * groups["random"])
    assert parse_settings(yaml.safe_load(_settings(run))).weight_follows
    differing = [[key for key, _ in compare([run, other]).settings] for other in (explicit, fixed)]
    assert differing == [[], ["selection.quality_weight"]]
    assert here("plan", run.root, "--dry-run", "--format", "json") == 0
    assert parse_settings(json.loads(capsys.readouterr().out)["settings"]) == run.settings


def test_an_arm_that_sets_lambda_does_not_depend_on_that_of_the_run(tmp_path):
    """If a sweep's best lambda becomes the run's, its trained models stay; other arms change."""
    arms = [{"name": "half", "change": {"quality_weight": 0.5}}]
    arms.append({"name": "other", "change": {"metric": "pairwise"}})
    run = made(tmp_path, "run", "quality", evaluation={"arms": arms})
    sets = run.settings.selection.model_copy(update={"quality_weight": 0.3})
    changed = replace(run, settings=run.settings.model_copy(update={"selection": sets}))
    both = zip(arm_units(run), arm_units(changed), strict=True)
    assert [one.settings == other.settings for one, other in both] == [True, False]


def test_what_follows_is_in_force(tmp_path, monkeypatch):
    """Of the documents left by other reasons, floor(t · number) are pruned; 1 needs no metric."""
    monkeypatch.setattr("datamask.config.recipe.following", lambda _: (0.13, 1.0))
    run = made(tmp_path, "run", "report", evaluation={"arms": []})
    page = (run.root / "report.html").read_text()
    assert "quality_weight: 1.0" in page and "prune_fraction: 0.13" in page
    assert run.receipt("mask_model").metrics["unavailable"] == ""
    dropped = table_of(run, "quality")["dropped"].to_pylist()
    left = sum(reason in (None, "pruned") for reason in dropped)
    assert dropped.count("pruned") == left * 13 // 100
    status = CliRunner().invoke(cli, ["status", str(run.root)])
    assert "quality.prune_fraction=0.13, selection.quality_weight=1\n" in status.output
    monkeypatch.setattr("datamask.config.recipe.following", lambda _: (0.0, 0.0))
    command = remedy(run, "taste", "topic")
    assert "limits" in command, "scores are not normalised within topics"


@pytest.mark.parametrize(
    ("score", "groups", "follows"),
    [
        ({}, {}, (True, True)),
        ({}, {"selection": {"metric": "disf"}}, (True, False)),
        ({}, {"selection": {"method": "semdedup"}}, (True, False)),
        ({}, {"selection": {"quality_weight": 0.3}}, (True, False)),
        ({"normalise_within": "domain"}, {}, (False, False)),
        ({"weight": -1.0}, {}, (False, False)),
        ({"path": "", "labels": "labels.csv", "column": "grade"}, {}, (False, False)),
    ],
)
def test_what_follows_where(score, groups, follows):
    """The pruned share with one score from examples that prefers them; lambda by evidence alone."""
    quality = {"scores": [{"name": "taste", "kind": "examples", "path": "examples.jsonl", **score}]}
    settings = parse_settings({"source": {"path": "texts"}, "quality": quality, **groups})
    assert (settings.pruning_follows, settings.weight_follows) == follows
