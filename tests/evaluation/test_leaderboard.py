"""`datamask leaderboard`: arms of several evaluations of one source in one table."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.errors import RunError
from datamask.evaluation.leaderboard import leaderboard
from datamask.runs.opening import open_run
from tests import finished
from tests.cli.commands import here
from tests.evaluation import small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "roughly")]

LISTED = 80
"""Documents of the list that can be selected; five held-out ones are on the list too."""


@pytest.fixture(scope="module")
def evaluated(
    source: Path, selected_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two runs of one source: the arms ours and random; random and a list of ids."""
    folder = tmp_path_factory.mktemp("leaderboard")
    roots = folder / "first", folder / "second"
    texts = {name: row["text"] for name, row in small.source_table(source).items()}
    held_out = small.drawn(0, 0.2, sorted(texts))
    scored = {texts[name] for name in held_out}
    listed = [name for name in sorted(texts) if texts[name] not in scored and texts[name].strip()]
    listed = listed[:LISTED] + sorted(held_out)[:5]
    pq.write_table(pa.table({"document": listed}), folder / "list.parquet")
    mine = {"name": "mine", "kind": "ids", "path": str(folder / "list.parquet")}
    arms: tuple[list[Any], ...] = (
        ["ours", "random"],
        ["random", mine | {"column": "document"}],
    )
    for root, of_run in zip(roots, arms, strict=True):
        shutil.copytree(selected_run, root)
        finished.finish(root, small.settings(source, arms=of_run), "evaluation")
    return roots


def bits_per_byte(root: Path, arm: str) -> list[float]:
    """Of every model of an arm, from the files."""
    by_model = small.bits_per_byte(root)
    return [value for name, value in sorted(by_model.items()) if name.startswith(f"{arm}-seed")]


def test_arms_of_all_runs_are_compared(evaluated, tmp_path):
    """An arm of two runs counts once; all pairs, with Holm's correction over them; the best first.

    Bits per byte are those of the models' files, differences are of these. A list of others may
    name held-out documents, which are left out and counted.
    """
    table, page = tmp_path / "board.parquet", tmp_path / "board.html"
    assert here("leaderboard", *evaluated, "-o", page, "--table", table) == 0
    rows = pq.read_table(table).to_pylist()
    arms, pairs = [[row for row in rows if (row["other"] is None) == is_arm] for is_arm in (1, 0)]
    known = {
        ("first", "ours"): bits_per_byte(evaluated[0], "ours"),
        ("first", "random"): bits_per_byte(evaluated[0], "random"),
        ("second", "mine"): bits_per_byte(evaluated[1], "mine"),
    }
    assert {(row["run"], row["arm"]): row["seeds"] for row in arms} == dict.fromkeys(known, 2)
    for row in arms:
        assert row["bits_per_byte"] == pytest.approx(np.mean(known[row["run"], row["arm"]]))
        assert row["better"] + row["worse"] + row["undecided"] == 2
        assert f"<td>{row['arm']}</td><td>{row['run']}</td>" in page.read_text()
    assert [row["bits_per_byte"] for row in arms] == sorted(row["bits_per_byte"] for row in arms)
    means = {arm: np.mean(values) for (_, arm), values in known.items()}
    assert len(pairs) == 3
    for pair in pairs:
        assert pair["bits_per_byte"] == pytest.approx(means[pair["arm"]] - means[pair["other"]])
        assert pair["low"] < pair["bits_per_byte"] < pair["high"]
    [mine] = [row for row in arms if row["arm"] == "mine"]
    assert (mine["available"], mine["copies"] >= 5) == (LISTED, True)


def test_the_table_is_csv_too_and_one_run_is_enough(evaluated, tmp_path):
    """CSV has the pairs of the run's own evaluation."""
    table = tmp_path / "board.csv"
    assert here("leaderboard", evaluated[1], "-o", tmp_path / "page.html", "--table", table) == 0
    ours = duckdb.sql(f"SELECT arm, other, p_value FROM '{table}' ORDER BY arm, other").fetchall()
    written = evaluated[1] / "evaluation.parquet"
    theirs = f"SELECT arm, other, p_value FROM '{written}' ORDER BY arm, other"
    assert len(ours) == 3
    assert ours == duckdb.sql(theirs).fetchall()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": 2500}, "evaluation.tokens"),
        ({"epochs": 2}, "evaluation.epochs"),
        ({"learning_rates": [0.003]}, "evaluation.learning_rates"),
    ],
)
def test_models_of_other_budgets_are_not_compared(evaluated, source, change, named):
    """Tokens, epochs, learning rates: one line that names the setting."""
    first = open_run(evaluated[0])
    other = replace(first, settings=small.settings(source, **change))
    with pytest.raises(RunError, match=named):
        leaderboard([first, other])


def test_runs_of_other_sources_or_without_models_are_refused(
    evaluated, root, tmp_path_factory, capfd
):
    """Another source; a run that was not evaluated; a table of an unknown kind."""
    folder = tmp_path_factory.mktemp("other")
    other = small.settings(small.corpus(folder / "pool"))
    pq.write_table(pq.read_table(folder / "pool" / "2.parquet").slice(1), folder / "pool/2.parquet")
    finished.finish(folder / "run", other, "scores")
    for arguments, named in (
        ((evaluated[0], folder / "run"), "source"),
        ((evaluated[0], root), "datamask evaluate"),
        ((evaluated[0], "--table", folder / "table.xlsx"), "table.xlsx"),
    ):
        assert here("leaderboard", *arguments, "-o", folder / "page.html") == 2
        assert named in capfd.readouterr().err
    assert not (folder / "page.html").exists()
