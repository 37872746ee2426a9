"""Runs side by side: sets worked out in Python from the masks' own files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamask.analysis.compare import compare
from datamask.analysis.summary import gains
from datamask.errors import RunError
from datamask.report.compare_page import compare_page, term_rows
from datamask.runs.run import Run
from tests.cli.commands import here
from tests.finished import corpus, finish, selected_ids, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three lambdas of one source, cut into different shards."""
    folder = tmp_path_factory.mktemp("compare")
    source = corpus(folder / "source")
    made = []
    for name, weight, rows in (("even", 0.5, 45), ("quality", 1.0, 45), ("diverse", 0.0, 70)):
        chosen = settings(
            source, selection={"quality_weight": weight}, plan={"rows_per_shard": rows}
        )
        made.append(finish(folder / name, chosen, "composition"))
    return made


def qualities(run: Run) -> dict[str, float]:
    """Quality by id."""
    tables = [pq.read_table(run.path("quality", n)).to_pylist() for n in range(run.num_shards)]
    return {row["id"]: row["quality"] for rows in tables for row in rows}


def test_overlap_of_every_pair(runs):
    """Sets of ids, whatever the shards."""
    found = compare(runs)
    assert [(pair.first, pair.second) for pair in found.pairs] == [
        ("even", "quality"),
        ("even", "diverse"),
        ("quality", "diverse"),
    ]
    by_name = dict(zip(found.names, runs, strict=True))
    for pair in found.pairs:
        first, second = selected_ids(by_name[pair.first]), selected_ids(by_name[pair.second])
        assert pair.documents == 120
        assert (pair.both, pair.only_first, pair.only_second) == (
            len(first & second),
            len(first - second),
            len(second - first),
        )
        assert pair.jaccard == pytest.approx(len(first & second) / len(first | second))
        assert pair.jaccard < 1


def test_what_one_has_and_the_other_lacks(runs):
    """Numbers, mean quality, groups, and the best as examples."""
    quality = qualities(runs[0])
    pair = compare(runs[:2]).pairs[0]
    only = selected_ids(runs[1]) - selected_ids(runs[0])
    missing = pair.missing[1]
    assert missing["keeper"] == "quality" and missing["documents"] == len(only)
    assert missing["mean_quality"] == pytest.approx(sum(quality[name] for name in only) / len(only))
    best = sorted(only, key=lambda name: (-quality[name], name))[:10]
    assert [row["id"] for row in missing["examples"]] == best
    assert all(row["beginning"] for row in missing["examples"])
    assert sum(count for _, count in missing["groups"]["language"]) == len(only)


def test_without_the_source(runs, tmp_path):
    """Moved or changed files leave all figures; only the examples lose their texts."""
    source = Path(runs[0].settings.source.path)
    known, moved = compare(runs[:2]), source.rename(tmp_path / "moved")
    try:
        left = compare(runs[:2])
        assert "(no text)" in compare_page(left)
    finally:
        moved.rename(source)
    for pair in (known.pairs[0], left.pairs[0]):
        for missing in pair.missing:
            texts = [row.pop("beginning") for row in missing["examples"]]
            assert texts and all(texts) is (pair is known.pairs[0])
    assert left.pairs == known.pairs


def test_terms_and_settings_side_by_side(runs, tmp_path, capsys):
    """Each run's own figures in its column; only settings that differ."""
    found = compare(runs)
    columns: dict[str, list[Any]] = {name: values for name, values, _ in term_rows(found)}
    for place, run in enumerate(runs):
        for name, gain in gains(run, runs[0]).items():
            assert columns[name][place] == gain["selected"]
    assert {key for key, _ in found.settings} == {
        "selection.quality_weight",
        "plan.rows_per_shard",
    }
    assert found.settings[0][0] == "selection.quality_weight"
    assert here("compare", *(run.root for run in runs)) == 0
    text, page = capsys.readouterr().out, (runs[0].root / "comparison.html").read_text()
    for pair in found.pairs:
        assert f"{pair.jaccard:.6g}" in text
        assert f"{pair.jaccard:.2%}" in page
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["setting", *found.names]
    weights = [f"{run.settings.selection.quality_weight}" for run in runs]
    assert ["selection.quality_weight", *weights] in lines


def test_the_better_run_is_named_where_values_can_be_compared(runs):
    """By the largest gain; with other shards no run is named, except for quality."""
    for compared in (runs[:2], runs[:2][::-1]):
        found = compare(compared)
        for name, values, better in term_rows(found):
            if name in ("quality", "disf"):
                own = [gains(run, compared[0])[name]["selected"] for run in compared]
                assert values == own and better == found.names[int(np.argmax(own))]
                assert f"<td>{better}</td></tr>" in compare_page(found)
    named = {name: better for name, _, better in term_rows(compare(runs))}
    assert named["quality"] == "quality"
    assert named["disf"] == named["near-duplicates"] == "(other plan.rows_per_shard)"
    with pytest.raises(RunError):
        compare([runs[0], runs[0]])


@pytest.mark.slow
def test_gains_are_over_random_selections_of_the_first_run(tmp_path):
    """The higher mean quality is the larger gain, whichever gains more over its own random."""
    source, made = corpus(tmp_path / "source"), []
    for name, weight, pruned in (("all", 0.5, 0.0), ("pruned", 0.3, 0.6)):
        groups = {"selection": {"quality_weight": weight}, "quality": {"prune_fraction": pruned}}
        made.append(finish(tmp_path / name, settings(source, **groups), "composition"))
    assert qualities(made[0]) == qualities(made[1])
    means = [np.mean([qualities(run)[name] for name in selected_ids(run)]) for run in made]
    own = [gains(run)["quality"]["selected"] for run in made]
    assert means[0] < means[1] and own[0] > own[1]
    for pair in (made, made[::-1]):
        gained = {name: values for name, values, _ in term_rows(compare(pair))}["quality"]
        assert gained[pair.index(made[1])] > gained[pair.index(made[0])]


@pytest.mark.slow
def test_text_and_page_say_that_sources_differ(runs, tmp_path, capsys):
    """Runs that share documents by id only; a copy of the source is the same source."""
    source, copy = corpus(tmp_path / "other"), corpus(tmp_path / "source")
    (source / "3.parquet").unlink()
    weight = {"quality_weight": 1.0}
    other = finish(tmp_path / "run", settings(source, selection=weight), "composition")
    again = finish(tmp_path / "again", settings(copy, selection=weight), "composition")
    found = compare([runs[0], other])
    assert found.pairs[0].documents == 90 and not found.same_source
    told = "different sources"
    assert here("compare", runs[0].root, other.root, "-o", tmp_path / "page.html") == 0
    assert told in capsys.readouterr().out and told in compare_page(found)
    same = compare([runs[0], again])
    assert same.same_source and told not in compare_page(same)


@pytest.mark.slow
def test_runs_that_cannot_be_compared(runs, tmp_path):
    """One run alone, an unfinished run, and runs that share nothing: each in one line."""
    with pytest.raises(RunError, match="two runs or more"):
        compare(runs[:1])
    source = corpus(tmp_path / "source")
    unfinished = finish(tmp_path / "run", settings(source), "selection")
    with pytest.raises(RunError, match="run stage `composition`"):
        compare([runs[0], unfinished])
    for path in source.iterdir():
        table = pq.read_table(path)
        names = [f"other-{name}" for name in table["id"].to_pylist()]
        place = table.schema.get_field_index("id")
        pq.write_table(table.set_column(place, "id", [names]), path, row_group_size=12)
    other = finish(tmp_path / "other", settings(source), "composition")
    with pytest.raises(RunError, match="share no document"):
        compare([runs[0], other])
