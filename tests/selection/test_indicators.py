"""Objectives that balance groups or cover a target, through real runs of both scopes."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.config.compute import Compute
from datamask.embedding.lexical import Lexical
from datamask.embedding.vectors import normalise
from datamask.errors import DatamaskError
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.runs.stages import learning_stages
from datamask.selection.terms import score_names
from tests.finished import corpus, rows_of, settings, up_to


def learn(root: Path, source: Path, **selection: object) -> Run:
    """A run up to its masks, on quality alone but for its further terms."""
    chosen = {"quality_weight": 1.0, "ratio": 0.25, **selection}
    run = plan_run(root, settings(source, selection=chosen))
    for stage in up_to(run, learning_stages(run.settings)[-1]):
        run_stage(run, stage, Compute())
    return run


def facts(run: Run, *, selected: bool) -> list[dict[str, object]]:
    """Facts of the candidates, or of those that are selected."""
    rows: list[dict[str, object]] = []
    for shard in range(run.num_shards):
        wanted = {m["id"] for m in rows_of(run, shard) if m["selected"] or not selected}
        scores = pq.read_table(run.path("scores", shard)).to_pylist()
        rows += [row for row in scores if row["id"] in wanted]
    return rows


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_shares_and_lengths_come_near_their_targets(source, tmp_path, scope):
    """Two thirds are English; asked for a fifth, and for the candidates' own lengths."""
    balance = {"column": "language", "shares": {"en": 0.2}}
    terms = [
        {"name": "group_balance", "weight": 5.0, "options": balance},
        {"name": "length", "weight": 5.0},
    ]
    run = learn(tmp_path / "run", source, scope=scope, more_terms=terms)
    chosen = facts(run, selected=True)
    share = np.mean([row["language"] == "en" for row in chosen])
    assert abs(share - 0.2) < 0.1
    edges = np.quantile(
        [row["characters"] for row in facts(run, selected=False)], np.arange(1, 10) / 10
    )
    bins = np.bincount(
        np.searchsorted(edges, [row["characters"] for row in chosen], side="right"), minlength=10
    )
    assert bins.max() <= 0.1 * len(chosen) + 3
    if scope == "corpus":
        found = run.receipt("round_total", run.last_round).metrics["terms"]["language_balance"]
        assert found < 0.02


def test_every_process_reads_groups_in_the_same_order(tmp_path):
    """Whatever the order in the settings, the sums in a file have that of run.json, sorted."""
    balance = {"column": "language", "shares": {"en": 0.2, "de": 0.7}}
    terms = [{"name": "group_balance", "weight": 5.0, "options": balance}]
    chosen = settings(corpus(tmp_path / "source"), selection={"more_terms": terms})
    run = plan_run(tmp_path / "run", chosen)
    expected = ["edu", "language=de", "language=en"]
    assert score_names(run) == score_names(open_run(run.root)) == expected


def test_vectors_of_a_target_pull_the_selection_towards_it(source, tmp_path):
    """Vectors that `datamask embed` made; other bytes in the file make the masks stale."""
    texts, vectors = tmp_path / "target.jsonl", tmp_path / "target.npy"
    texts.write_text(
        '{"text": "river stone market"}\n{"text": " "}\n{"text": "window river garden river"}\n'
    )
    encoder = ["--set", "embedding.method=lexical", "--set", "embedding.dimension=32"]
    done = CliRunner().invoke(cli, ["embed", str(texts), str(vectors), *encoder])
    assert done.exit_code == 0, done.output
    expected = Lexical().embed(["river stone market", "window river garden river"], 32)
    np.testing.assert_allclose(np.load(vectors), normalise(expected, name="text"), atol=1e-6)
    terms = [{"name": "target", "weight": 5.0, "path": str(vectors)}]
    plain = learn(tmp_path / "plain", source)
    towards = learn(tmp_path / "towards", source, more_terms=terms)

    def distance(run: Run) -> float:
        metrics = [run.receipt("selection", shard).metrics for shard in range(run.num_shards)]
        ids = {row["id"] for row in facts(run, selected=True)}
        rows = [row["text"] for row in pq.read_table(source).to_pylist() if row["id"] in ids]
        assert len(rows) == sum(one["num_selected"] for one in metrics)
        mean = normalise(Lexical().embed(rows, 32), name="text").mean(0)
        return float(((mean - np.load(vectors).mean(0)) ** 2).sum())

    assert distance(towards) < distance(plain)
    texts.write_text('{"text": "silver copper signal"}\n')
    assert CliRunner().invoke(cli, ["embed", str(texts), str(vectors), *encoder]).exit_code == 0
    texts.write_text('{"text": " "}\n')
    blank = CliRunner().invoke(cli, ["embed", str(texts), str(vectors), *encoder]).exception
    assert isinstance(blank, DatamaskError) and "all texts are blank" in str(blank)
    again = plan_run(tmp_path / "towards", towards.settings)
    assert again.remaining("selection") == [0, 1, 2] and not again.remaining("embeddings")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([{"name": "target", "path": "none.npy", "weight": 1}], "none.npy"),
        ([{"name": "group_balance", "options": {"column": "dump"}, "weight": 1}], "at least one"),
        ([{"name": "quality", "weight": 1}], "unknown objective"),
    ],
)
def test_wrong_terms_are_refused_before_any_work(source, tmp_path, terms, message):
    """One line each, and no run is made."""
    with pytest.raises(DatamaskError, match=message):
        plan_run(tmp_path / "run", settings(source, selection={"more_terms": terms}))
    assert not (tmp_path / "run" / "run.json").exists()
