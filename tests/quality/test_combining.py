"""Scores are normalised over the corpus and within groups, and combined, as the definitions say."""

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.errors import InputError
from datamask.planning.plan import plan_run
from datamask.quality.moments import moments
from tests.conftest import mostly_nightly
from tests.quality.runs import column, make_run, score

DOMAINS = ["a.org"] * 40 + ["b.org"] * 150 + ["c.org"] * 3 + [None] * 7


def plainly(values: Sequence[float], normalisation: str) -> list[float]:
    """Values normalised among themselves, from the definitions."""
    mean, low = sum(values) / len(values), min(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    extent = max(values) - low
    if normalisation == "z-score":
        return [(value - mean) / deviation if deviation else 0.0 for value in values]
    if normalisation == "min-max":
        return [(value - low) / extent if extent else 0.0 for value in values]
    ordered = sorted(values)
    ties = [(bisect_left(ordered, value), bisect_right(ordered, value)) for value in values]
    return [(low + high - 1) / 2 / len(values) for low, high in ties]


@pytest.mark.parametrize(
    ("normalisation", "outlier"),
    mostly_nightly(
        [("z-score", 1e10), ("min-max", 9.0), ("rank", -1e12)],
        product(("z-score", "min-max", "rank"), (9.0, 1e10, -1e12)),
    ),
)
def test_scores_are_compared_within_groups(tmp_path, normalisation, outlier):
    """Each value is a mix of its place in the group, by size, and its place in the whole."""
    generator = random.Random(1)
    levels = {"a.org": 5.0, "b.org": 0.0, "c.org": 9.0, None: -3.0}
    grades = [levels[d] + round(generator.gauss(0, 1 + (d == "a.org")), 1) for d in DOMAINS]
    grades[DOMAINS.index("c.org")] = outlier
    urls = [d and f"https://{d}/page" for d in DOMAINS]
    one = column(normalisation, normalise_within="domain", weight=2.0)
    columns = {"grade": grades, "url": urls}
    run = make_run(tmp_path, columns, rows=64, prune_fraction=0.1, scores=[one])
    rows = score(run)
    whole = plainly(grades, normalisation)
    expected = list(whole)
    for domain in levels:
        places = [place for place, one in enumerate(DOMAINS) if one == domain]
        weight = len(places) / (len(places) + 10)
        within = plainly([grades[place] for place in places], normalisation)
        for place, value in zip(places, within, strict=True):
            expected[place] = weight * value + (1 - weight) * whole[place]
    assert [row["grade"] for row in rows] == pytest.approx(expected, abs=1e-6)
    assert [row["quality"] for row in rows] == pytest.approx([2 * v for v in expected], abs=1e-6)
    found = {row["name"]: row for row in run.receipt("quality", 0).metrics["score_groups"]}
    for key, values in (("best_whole", whole), ("best_within", expected)):
        cut = sorted(values, reverse=True)[20]
        for domain in levels:
            best = sum(v > cut for v, d in zip(values, DOMAINS, strict=True) if d == domain)
            assert found[domain or "(none)"][key] == best
    assert found["c.org"]["documents"] == 3 and found["(none)"]["kind"] == "domain"


def test_a_score_named_value_is_one_of_several(tmp_path):
    """Ranks of each score rank its own values, though SQL calls the others so too."""
    names = {"a": [3.0, 1.0, 2.0, 4.0], "value": [1.0, None, 2.0, 3.0], "z": [1.0, 2.0, 4.0, 3.0]}
    scores = [{**column("rank"), "name": n, "column": n, "missing": 0.0} for n in names]
    scores[0]["normalise_within"] = "source"
    rows = score(make_run(tmp_path, names, scores=scores))
    for name, values in names.items():
        expected = plainly([v or 0.0 for v in values], "rank")
        assert [row[name] for row in rows] == pytest.approx(expected)


def test_any_number_can_be_a_score(tmp_path):
    """Moments of tiny and huge values scale as usual ones; float64 must hold each value."""
    grades = pa.array([2**53 - place for place in range(8)], pa.uint64())
    rows = score(make_run(tmp_path / "exact", {"grade": grades}, scores=[column("rank")]))
    assert [row["quality"] for row in rows] == [(14 - 2 * place) / 16 for place in range(8)]
    grades = pa.array([*range(6), 2**53 + 1, 2**63], pa.uint64())
    with pytest.raises(InputError) as caught:
        score(make_run(tmp_path / "merged", {"grade": grades}, scores=[column("rank")]))
    assert caught.value.row == 6 and caught.value.column == "grade"
    for factor in (1e-300, 1.0, 1e300):
        found = moments(pa.array([value * factor for value in (3.0, -1.0, 4.0, 2.0)]))
        assert found["mean"] == pytest.approx(2 * factor)
        assert found["deviation"] == pytest.approx(3.5**0.5 * factor)


@pytest.mark.parametrize("normalisation", ["z-score", "min-max", "rank"])
def test_a_score_times_a_number_is_the_same_score(tmp_path, normalisation):
    """However small or large the number is, with several shards and a filled value."""
    values = [0.25, 3.0, None, -7.5, 1.0, 2.0, 0.0, 5.0, -1.0]
    found = []
    for factor in (1.0, 2.0**-900, 2.0**60):
        one = column(normalisation, missing=2 * factor)
        grades = [value and value * factor for value in values]
        run = make_run(tmp_path / str(factor), {"grade": grades}, rows=4, scores=[one])
        found.append([row["quality"] for row in score(run)])
    filled = [2.0 if value is None else value for value in values]
    assert found[0] == pytest.approx(plainly(filled, normalisation))
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-12)
    with pytest.raises(InputError) as caught:
        score(make_run(tmp_path / "huge", {"grade": [1.0, -1e308]}, scores=[column("min-max")]))
    assert caught.value.column == "grade"


def test_scores_are_compared_within_folders(tmp_path):
    """`source` is the folder of a document's file, also where a shard has files of several."""
    for name, values in (("web", [1.0, 2.0, 3.0]), ("books", [10.0, 30.0])):
        (tmp_path / "source" / name).mkdir(parents=True)
        ids = [f"{name}-{place}" for place in range(len(values))]
        table = pa.table({"id": ids, "text": ids, "grade": values})
        pq.write_table(table, tmp_path / "source" / name / "a.parquet")
    one = column("min-max", normalise_within="source")
    data = {
        "source": {"path": str(tmp_path / "source")},
        "quality": {"scores": [one], "prune_fraction": 0},
        "selection": {"documents": 1},
        "embedding": {"method": "lexical"},
    }
    rows = {
        row["id"]: row["grade"] for row in score(plan_run(tmp_path / "run", parse_settings(data)))
    }
    assert rows["books-1"] == pytest.approx(2 / 12 + 10 / 12)
    assert rows["web-1"] == pytest.approx(3 / 13 * 0.5 + 10 / 13 * 1 / 29)


def test_correlations_of_scores_are_those_of_scipy(tmp_path):
    """Spearman's correlation of each pair, over documents that have both; null for a constant."""
    from scipy.stats import spearmanr

    generator = random.Random(2)
    a = [round(generator.gauss(0, 1), 1) for _ in range(60)]
    b = [x + generator.gauss(0, 1) if x > -1 else None for x in a]
    names = {"a": a, "b": b, "c": [1.0] * 60}
    scores = [{**column(), "name": n, "column": n, "missing": "drop"} for n in names]
    run = make_run(tmp_path, names, rows=20, scores=scores)
    score(run)
    found = run.receipt("quality", 0).metrics["score_correlations"]
    both = [(x, y) for x, y in zip(a, b, strict=True) if y is not None]
    expected = spearmanr(*zip(*both, strict=True)).statistic
    assert [(r["score"], r["other"], r["documents"]) for r in found] == [
        ("a", "b", len(both)),
        ("a", "c", 60),
        ("b", "c", len(both)),
    ]
    assert found[0]["correlation"] == pytest.approx(expected, abs=1e-6)
    assert found[1]["correlation"] is found[2]["correlation"] is None
