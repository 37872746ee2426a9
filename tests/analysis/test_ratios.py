"""Ratios of groups go out as a table, and a mixture comes back as limits that are kept."""

import csv
import io
import json
from collections import Counter

import pytest
from click.testing import CliRunner, Result

from datamask.cli.main import cli
from datamask.errors import DatamaskError
from tests.finished import finish, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


def call(*arguments: str) -> Result:
    """A command as users call it."""
    return CliRunner().invoke(cli, [*arguments])


def test_a_mixture_goes_out_and_comes_back(source, tmp_path):
    """Shares of tokens, by brute force; a changed mixture is met within its limits."""
    run = finish(tmp_path / "run", settings(source), "composition")
    printed = call("ratios", str(run.root), "--by", "domain")
    assert printed.exit_code == 0, printed.output
    [row] = csv.DictReader(io.StringIO(printed.stdout))
    kept: Counter[str] = Counter()
    for one in table_of(run, "documents").to_pylist():
        kept[one["domain"]] += one["tokens"] * one["selected"]
    expected = {name: tokens / kept.total() for name, tokens in kept.items() if tokens}
    assert row.pop("run") == "run"
    assert {name: float(share) for name, share in row.items()} == pytest.approx(expected)
    table = tmp_path / "ratios.csv"
    mixture = {"site0.org": 0.5, "site1.org": 0.3, "site2.org": 0.2, "site3.org": 0.0}
    names = [*mixture]
    lines = [",".join(["", "run_id", "name", *names]), "0,a,one,1,0,0,0"]
    table.write_text("\n".join([*lines, "1,b,two," + ",".join(map(str, mixture.values())), ""]))
    limits = call("limits", str(table), "--by", "domain", "--run", "b", "--within", "0.1")
    assert limits.exit_code == 0, limits.output
    chosen = settings(source, selection={"limits": json.loads(limits.stdout)})
    again = finish(tmp_path / "again", chosen, "documents")
    rows = table_of(again, "documents").to_pylist()
    counts = Counter(row["domain"] for row in rows if row["selected"])
    assert counts.total() == 30 and {*counts} == {"site0.org", "site1.org", "site2.org"}
    for name, count in counts.items():
        assert abs(count / 30 - mixture[name]) <= 0.1 * mixture[name] + 0.5 / 30


def test_a_proposed_mixture_is_read(tmp_path):
    """Domains and weights, as a JSON list; others are left out."""
    path = tmp_path / "optimal.json"
    path.write_text('[{"domain": "a", "weight": 0.75}, {"domain": "b", "weight": 0.25}]')
    printed = call("limits", str(path), "--by", "topic", "--within", "0")
    assert json.loads(printed.stdout) == [
        {"column": "topic", "value": "a", "floor": 0.75, "cap": 0.75},
        {"column": "topic", "value": "b", "floor": 0.25, "cap": 0.25},
        {"column": "topic", "cap": 0.0},
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "run,a,b\nx,0.5,0.2\n", "add up to 0.7"),
        ("a.csv", "run,a,b\nx,1.5,-0.5\n", r"in \[0, 1\]"),
        ("a.csv", "run,a,b\nx,much,0.2\n", "no table of ratios"),
        ("a.csv", "run,a,b\nx,1\n", "no table of ratios"),
        ("a.csv", "run,a,b\nx,1,0\ny,0,1\n", "2 rows; name one"),
        ("a.csv", "", "0 rows"),
        ("a.csv", "run,a\nx,nan\n", "add up to nan"),
        ("a.json", '{"a": 1}', "no table of ratios"),
        ("none.csv", None, "no such file"),
    ],
)
def test_what_is_no_mixture_is_refused(tmp_path, name, text, message):
    """In one line that names the file."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    error = call("limits", str(path)).exception
    assert isinstance(error, DatamaskError)
    with pytest.raises(DatamaskError, match=message):
        raise error
    assert name in str(error) and "\n" not in str(error)
