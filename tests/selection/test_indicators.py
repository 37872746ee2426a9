"""Objectives that balance groups or cover a target, through real runs of both scopes."""

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from datamask.cli.main import cli
from datamask.embedding.lexical import Lexical
from datamask.embedding.vectors import normalise
from datamask.errors import DatamaskError
from datamask.planning.plan import plan_run
from datamask.runs.opening import open_run
from datamask.runs.run import Run
from datamask.selection.terms import score_names
from tests.finished import corpus, selected_ids, settings, table_of
from tests.selection.runs import kept, learn

ALONE = {"quality_weight": 1.0}
"""Quality alone, but for further terms."""


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_shares_and_lengths_come_near_their_targets(source, tmp_path, scope):
    """Two thirds are English; asked for a fifth, and for the candidates' own lengths."""
    balance = {"column": "language", "shares": {"en": 0.2}}
    terms = [
        {"name": "group_balance", "weight": 5.0, "options": balance},
        {"name": "length", "weight": 5.0},
    ]
    chosen = {**ALONE, "scope": scope, "more_terms": terms}
    run = learn(tmp_path / "run", source, selection=chosen)
    selected = kept(run)
    share = np.mean([row["language"] == "en" for row in selected])
    assert abs(share - 0.2) < 0.1
    left = pc.is_null(table_of(run, "quality")["dropped"])
    edges = np.quantile(table_of(run, "scores")["characters"].filter(left), np.arange(1, 10) / 10)
    lengths = [row["characters"] for row in selected]
    bins = np.bincount(np.searchsorted(edges, lengths, side="right"), minlength=10)
    assert bins.max() <= 0.1 * len(selected) + 3
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
    plain = learn(tmp_path / "plain", source, selection=ALONE)
    towards = learn(tmp_path / "towards", source, selection={**ALONE, "more_terms": terms})

    def distance(run: Run) -> float:
        ids = selected_ids(run)
        rows = [row["text"] for row in pq.read_table(source).to_pylist() if row["id"] in ids]
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


def test_a_term_without_its_file_is_refused_before_any_work(source, tmp_path):
    """It is named, and no run is made."""
    terms = [{"name": "target", "path": "none.npy", "weight": 1}]
    with pytest.raises(DatamaskError, match=r"none\.npy"):
        plan_run(tmp_path / "run", settings(source, selection={"more_terms": terms}))
    assert not (tmp_path / "run" / "run.json").exists()
