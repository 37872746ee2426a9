"""Count exposures of a document, against a list of all exposures that is sorted in Python."""

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from datamask.analysis.summary import query
from datamask.config.loading import parse_settings
from datamask.errors import DatamaskError, SettingsError
from datamask.planning.plan import plan_run
from datamask.report.markdown import report_markdown
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.selection.repeats import DECAY, last_exposure, repeat_column
from tests.finished import finish, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn")

# Few values, so that exposures tie: below 0 all first exposures are worth the same.
LOGITS = st.sampled_from([-7.5, -0.001, 0.0, 1e-30, 0.001, 0.06496, 0.5, 1.0, 2.25, 3000.5, 3.0e38])
KEPT = st.tuples(LOGITS, st.sampled_from([-1.5, 0.0, 0.1]), st.integers(0, 9))


def expected(rows: list, most: list[int], total: int) -> list[int]:
    """Every further exposure in one list, sorted; as many as needed are taken."""
    exposures = []
    for place, (logit, quality, name, units) in enumerate(rows):
        worth = 1.0 + max(logit, 0.0)
        decayed = 1.0
        for _ in range(2, most[place] + 1):
            decayed *= DECAY
            exposures.append((-worth * decayed, -logit, -quality, name, place, units))
    repeats, left = [1] * len(rows), total - sum(row[3] for row in rows)
    for *_, place, units in sorted(exposures):
        if left <= 0:
            break
        repeats[place] += 1
        left -= units
    return repeats


def found(rows: list, most: list[int], max_repeat: int, total: int) -> list[int]:
    """The repeats of rows (logit, quality, id, units), from the last exposure alone."""
    with duckdb.connect() as connection:
        columns = "(logit FLOAT, quality DOUBLE, id VARCHAR, units BIGINT, most INT)"
        connection.execute(f"CREATE TABLE kept {columns}")
        values = [(*row, number) for row, number in zip(rows, most, strict=True)]
        connection.executemany("INSERT INTO kept VALUES (?, ?, ?, ?, ?)", values)
        last = last_exposure(connection, max_repeat, total - sum(row[3] for row in rows))
        repeat = f"least({repeat_column(last, max_repeat)}, most)"
        repeats = dict(connection.execute(f"SELECT id, {repeat} FROM kept").fetchall())
    return [repeats[row[2]] for row in rows]


@hypothesis_settings(max_examples=15, deadline=None)
@given(st.lists(KEPT, min_size=1, max_size=25), st.integers(2, 6), st.booleans(), st.data())
def test_repeats_are_the_most_valuable_exposures(kept, max_repeat, in_tokens, data):
    """The total is met (in tokens within one document) below the cap, in the order of logits."""
    rows = [
        (float(np.float32(logit)), quality, f"d{place:02d}'", tokens if in_tokens else 1)
        for place, (logit, quality, tokens) in enumerate(kept)
    ]
    epoch = sum(row[3] for row in rows)
    caps = st.lists(st.integers(1, max_repeat), min_size=len(rows), max_size=len(rows))
    most = data.draw(st.just([max_repeat] * len(rows)) | caps)
    reach = sum(row[3] * number for row, number in zip(rows, most, strict=True))
    total = data.draw(st.integers(epoch, reach))
    repeats = found(rows, most, max_repeat, total)
    assert repeats == expected(rows, most, total)
    seen = sum(count * row[3] for count, row in zip(repeats, rows, strict=True))
    assert total <= seen < total + max(1, *(row[3] for row in rows))
    assert {*repeats} <= {*range(1, max_repeat + 1)}
    by_logit = [repeats[place] for place in sorted(range(len(rows)), key=lambda p: rows[p][0])]
    is_strict = len({row[0] for row in rows}) == len(rows) and {*most} == {max_repeat}
    assert not is_strict or by_logit == sorted(by_logit)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """30 documents are kept in three shards, training sees 2,000 tokens; published dry."""
    publication = {"license": "mit", "dry_run": True}
    selection = {"max_repeat": 3, "training_tokens": 2000}
    chosen = settings(source, selection=selection, publication=publication)
    return finish(tmp_path_factory.mktemp("repeats") / "run", chosen, "publication")


def test_the_subset_has_the_repeats_of_all_shards_together(made):
    """An int32 next to the logit it follows from; tokens are those of the setting."""
    subset = table_of(made, "subset")
    assert subset.column_names[-4:] == ["quality", "logit", "shard", "repeat"]
    assert subset.schema.field("repeat").type == pa.int32()
    rows = [
        (row["logit"], row["quality"], row["id"], row["token_count"]) for row in subset.to_pylist()
    ]
    repeats = subset["repeat"].to_pylist()
    assert repeats == expected(rows, [3] * len(rows), 2000)
    assert set(repeats) == {1, 2, 3} or set(repeats) == {1, 3}
    seen = sum(count * row[3] for count, row in zip(repeats, rows, strict=True))
    assert 0 <= seen - 2000 < max(row[3] for row in rows)
    assert made.receipt("repeats").metrics == {"epoch": sum(r[3] for r in rows), "total": 2000}


def test_report_and_tables_count_the_repeats(made):
    """Against the subset: tokens by repeat, epochs, and the share repeated."""
    subset = table_of(made, "subset").select(["id", "repeat", "token_count"]).to_pylist()
    rows = query(made, "SELECT id, repeat FROM documents WHERE repeat IS NOT NULL")
    by_id = {row["id"]: row["repeat"] for row in rows}
    assert by_id == {row["id"]: row["repeat"] for row in subset}
    epoch = sum(row["token_count"] for row in subset)
    seen = sum(row["token_count"] * row["repeat"] for row in subset)
    text, page = (made.root / "publication/README.md").read_text(), made.path("report").read_text()
    assert report_markdown(made) in text
    for number in (f"{seen:,}", f"{seen / epoch:.3g}", f"{1 - epoch / seen:.2%}"):
        assert number in text and number in page


def test_only_what_shows_repeats_depends_on_them(made, tmp_path):
    """Another total keeps the masks; with the first total again the files have the same bytes."""
    shutil.copytree(made.root, tmp_path / "run")
    selection = made.settings.selection.model_copy(update={"training_tokens": 2100})
    again = plan_run(tmp_path / "run", made.settings.model_copy(update={"selection": selection}))
    stale = [stage for stage in stages_of(again.settings) if again.remaining(stage)]
    assert stale == ["repeats", "documents", "subset", "composition", "report", "publication"]
    shutil.rmtree(again.root / "subset")
    again.path("repeats").unlink()
    finish(again.root, made.settings, "subset")
    for path in [made.path("repeats"), *made.root.glob("subset/*")]:
        assert (again.root / path.relative_to(made.root)).read_bytes() == path.read_bytes()


def test_groups_are_repeated_less(made, tmp_path, caplog):
    """Alone and together with another column, the least cap of a document; no mask is stale."""
    shutil.copytree(made.root, tmp_path / "run")
    caps = [
        {"column": "language", "value": "de", "most": 1},
        {"column": "domain * language", "value": "site1.org*en", "most": 2},
        {"column": "dump", "value": "nowhere", "most": 1},
    ]
    change = {"repeat_caps": caps, "training_tokens": 1700}
    selection = parse_settings({"selection": made.settings.selection.changed(change)}).selection
    chosen = made.settings.model_copy(update={"selection": selection})
    again = plan_run(tmp_path / "run", chosen)
    assert not again.remaining("selection") and again.remaining("repeats")
    rows = table_of(finish(again.root, chosen, "subset"), "subset").to_pylist()
    most = [
        1 if row["language"] == "de" else 2 if "SITE1" in row["url"].upper() else 3 for row in rows
    ]
    kept = [(row["logit"], row["quality"], row["id"], row["token_count"]) for row in rows]
    assert [row["repeat"] for row in rows] == expected(kept, most, 1700)
    assert {*most} == {1, 2, 3} and "dump `nowhere`" in caplog.text
    reach = sum(number * row["token_count"] for number, row in zip(most, rows, strict=True))
    selection = selection.model_copy(update={"training_tokens": reach + 1})
    with pytest.raises(SettingsError, match=rf" to {reach}$"):
        finish(again.root, made.settings.model_copy(update={"selection": selection}))


@pytest.mark.parametrize("total", [100, 100_000])
def test_tokens_that_the_subset_does_not_have_are_refused_before_it_is_written(
    made, tmp_path, total
):
    """With a budget of documents, tokens are known after selection; the error has their number."""
    epoch = made.receipt("repeats").metrics["epoch"]
    shutil.copytree(made.root, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "subset")
    selection = made.settings.selection.model_copy(update={"training_tokens": total})
    chosen = made.settings.model_copy(update={"selection": selection})
    with pytest.raises(DatamaskError, match=rf"set a number from {epoch} to {3 * epoch}$"):
        finish(tmp_path / "run", chosen)
    assert not list((tmp_path / "run").glob("subset/*"))


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        ({"max_repeat": 2}, "need each other"),
        ({"training_tokens": 5}, "need each other"),
        ({"repeat_caps": [{"column": "dump", "value": "a", "most": 2}]}, "max_repeat is 1"),
        ({"repeat_caps": [{"column": "dump*topic", "value": "a", "most": 1}]}, "each column"),
        ({"max_repeat": 2, "training_tokens": 5, "training_documents": 5}, "are both set"),
    ],
)
def test_settings_of_repeats_belong_together(selection, reason):
    """A total without repeats, repeats without a total, or two totals."""
    with pytest.raises(SettingsError, match=reason):
        parse_settings({"selection": selection})
