"""The sets that documents held out of the source are divided into."""

import pyarrow.parquet as pq
import pytest

from datamask.evaluation.units import sets_of
from tests import finished
from tests.evaluation import small

pytestmark = pytest.mark.usefixtures("roughly")


def test_a_group_named_all_is_a_set_of_its_own(source, tmp_path):
    """Beside the sample of all documents, which has that name."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in source.glob("*.parquet"):
        table = pq.read_table(path)
        names = ["all" if name == "en" else name for name in table["language"].to_pylist()]
        column = table.column_names.index("language")
        pq.write_table(table.set_column(column, "language", [names]), folder / path.name)
    chosen = small.settings(folder, hold_out=0.4, hold_out_by="language")
    run = finished.finish(tmp_path / "run", chosen, "held_out")
    rows = pq.read_table(run.path("held_out")).to_pylist()
    held_out = pq.read_table(run.path("held_out"))
    members = {
        name: int(is_member.sum()) for name, is_member in sets_of(held_out, chosen.evaluation)
    }
    of_all = sum(row["set"] == "language all" for row in rows)
    assert 0 < of_all < members["all"] == sum(row["in_all"] for row in rows)
    assert members["language all"] == of_all


def test_few_held_out_documents_are_one_set(source, tmp_path):
    """A set of other groups, with the same documents, would say everything twice."""
    chosen = small.settings(source, hold_out=0.05)
    few = finished.finish(tmp_path / "few", chosen, "held_out")
    sets = pq.read_table(few.path("held_out"))["set"].to_pylist()
    assert 0 < len(sets) < 30 and {*sets} == {"all"}


def test_documents_are_grouped_by_domain_if_there_are_two(source, tmp_path):
    """Without `hold_out_by`, and only those of the mixture; asked for none, there are no groups."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in source.glob("*.parquet"):
        table = pq.read_table(path)
        addresses = [f"https://{name}.org/page" for name in table["language"].to_pylist()]
        pq.write_table(table.append_column("url", [addresses]), folder / path.name)
    run = finished.finish(tmp_path / "run", small.settings(folder, hold_out=0.4), "held_out")
    rows = pq.read_table(run.path("held_out")).to_pylist()
    assert all(row["in_all"] and row["set"] == row["group"] for row in rows)
    assert {row["group"] for row in rows} == {"de.org", "en.org"}
    chosen = small.settings(folder, hold_out=0.4, hold_out_by="none")
    ungrouped = pq.read_table(
        finished.finish(tmp_path / "none", chosen, "held_out").path("held_out")
    )
    assert {*ungrouped["set"].to_pylist()} == {"all"}
    assert [*ungrouped["id"].to_pylist()] == [row["id"] for row in rows]
