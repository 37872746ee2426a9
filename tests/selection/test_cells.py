"""Limits of several columns at once, against a search over single documents."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import LinearConstraint, milp

from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.errors import SettingsError
from datamask.planning.plan import plan_run
from datamask.runs import budget
from datamask.runs.budget import Counts, budget_problems
from datamask.selection.cells import Candidates, fill_cells, most_of_cells
from tests.finished import finish, settings, table_of

pytestmark = pytest.mark.usefixtures("undrawn")

LONGEST = 8


def drawn(seed: int, columns: int, in_tokens: bool):
    """Documents with a group of three in each column, and limits that some selection obeys."""
    random = np.random.default_rng(seed)
    names = random.integers(0, 3, (60, columns))
    logits = random.standard_normal(60).round(2 if seed % 2 else 7).astype(np.float32)
    units = random.integers(1, LONGEST + 1, 60) if in_tokens else np.ones(60, np.int64)
    cells = names @ 3 ** np.arange(columns)
    every = np.arange(3**columns)
    inside = [every // 3**column % 3 == group for column in range(columns) for group in range(3)]
    some = random.permutation(60)[:25]
    have = np.array([units[some][group[cells[some]]].sum() for group in inside])
    slack = random.integers(0, 3, len(have)) + (LONGEST if in_tokens else 0)
    bounds = np.stack([np.maximum(0, have - slack), have + slack], 1).astype(float)
    order = np.lexsort((-logits, cells))
    candidates = Candidates(cells[order], logits[order], units[order])
    return candidates, sparse.csr_array(np.array(inside, float)), bounds, int(units[some].sum())


@pytest.mark.parametrize("columns", [2, 3])
def test_whole_documents_are_the_best_that_obey_the_limits(columns):
    """The sum of logits is that of the best selection; with two columns, the proof says so."""
    for seed in range(12):
        candidates, inside, bounds, total = drawn(seed, columns, False)
        numbers, _, short = most_of_cells(candidates, inside, bounds, total, True)
        starts = candidates.starts(3**columns)
        ours = sum(
            candidates.logit[first : first + int(number)].astype(float).sum()
            for first, number in zip(starts[:-1], numbers, strict=True)
        )
        limits = LinearConstraint(inside[:, candidates.cell], *bounds.T)
        exact = LinearConstraint(np.ones((1, 60)), total, total)
        best = milp(
            -candidates.logit.astype(float),
            integrality=np.ones(60),
            bounds=(0, 1),
            constraints=[limits, exact],
            options={"mip_rel_gap": 0},
        )
        assert ours == pytest.approx(-best.fun, rel=1e-6 + short)
        assert short == 0 or columns == 3
        assert numbers.sum() == total and (inside @ numbers <= bounds[:, 1]).all()


def test_tokens_exceed_no_cap_and_meet_the_rest_within_one_document_of_each_cell():
    """Documents are whole, and others fill what the last of a cell would exceed."""
    for seed in range(12):
        candidates, inside, bounds, total = drawn(seed, 2, True)
        numbers, _, _ = most_of_cells(candidates, inside, bounds, total, False)
        taken, beyond = fill_cells(candidates, numbers, inside, bounds, total)
        rank = np.arange(60) - candidates.starts(9)[candidates.cell]
        kept = rank < taken[candidates.cell]
        for cell, places in enumerate(beyond):
            kept |= (candidates.cell == cell) & np.isin(rank + 1, places)
        used = inside @ np.bincount(candidates.cell, candidates.units * kept, 9)
        assert (used <= bounds[:, 1]).all() and (used > bounds[:, 0] - 3 * LONGEST).all()
        assert total - 9 * LONGEST < used[:3].sum() <= total


LIMITS = [
    {"column": "language", "value": "de", "floor": 0.5},
    {"column": "domain", "cap": 0.25},
    {"column": "language*quality", "value": "de*5", "cap": 0.1},
    {"column": "quality", "value": "1", "cap": 0.1},
]


def test_a_run_obeys_limits_of_columns_bands_and_cells(source, tmp_path):
    """In its documents, whose bands are computed again; without these limits it would not."""
    chosen = {"method": "top_quality", "metric": "", "documents": 40}
    runs = [
        finish(
            tmp_path / name, settings(source, selection={**chosen, "limits": limits}), "documents"
        )
        for name, limits in (("free", ()), ("limited", LIMITS))
    ]
    for run in runs:
        rows = table_of(run, "documents").to_pylist()
        left = sorted(row["quality"] for row in rows if row["dropped"] is None)
        edges = [left[band * len(left) // 5 - 1] for band in range(1, 5)]
        kept = [row for row in rows if row["selected"]]
        bands = [1 + sum(row["quality"] > edge for edge in edges) for row in kept]
        german = [row["language"] == "de" for row in kept]
        domains = [row["domain"] for row in kept]
        is_met = [
            sum(german) >= 20,
            max(map(domains.count, domains)) <= 10,
            sum(band == 5 and known for band, known in zip(bands, german, strict=True)) <= 4,
            bands.count(1) <= 4,
        ]
        assert len(kept) == 40 and all(is_met) == (run is runs[1])
    assert run.receipt("threshold").metrics["short_of_best"] >= 0


CELL = {"column": "language * domain"}
GERMAN = {"column": "language", "value": "de"}


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ([GERMAN | {"floor": 0.95}, {"column": "domain", "cap": 0.9}], "only 80 are left"),
        (
            [GERMAN | {"floor": 0.5}, CELL | {"value": "de * a", "cap": 0}, CELL | {"cap": 0.4}],
            "the floor of language de asks for 45 documents, but the limits together leave 20",
        ),
        (
            [GERMAN | {"cap": 0.5}, CELL | {"value": "en * b", "cap": 0.3}],
            "90 documents are to be kept, but the limits together leave 82",
        ),
    ],
)
def test_what_cannot_be_met_is_named_with_its_number(limits, told):
    """Of one column, a floor against caps of cells, and caps that together leave too little."""
    selection = parse_settings({"documents": 90, "limits": limits}, Selection)
    there = {"de * a": 60, "de * b": 20, "en * a": 10, "en * b": 60}
    if len(limits) == 3:
        there = {"de * a": 60, "de * b": 20, "en * a": 36, "en * b": 60}
    problems = list(budget_problems(selection, Counts(200, groups=there)))
    assert [told in str(problem) for problem in problems] == [True]


def test_too_many_cells_are_refused_when_planned(source, tmp_path, monkeypatch):
    """The groups of one column are too many already, though topics are not known yet."""
    monkeypatch.setattr(budget, "MOST_CELLS", 3)
    limits = [{"column": "domain", "cap": 0.9}, {"column": "topic", "value": "a", "cap": 0.5}]
    with pytest.raises(SettingsError, match=r"make \d groups together, at most 3"):
        plan_run(tmp_path / "run", settings(source, topics={}, selection={"limits": limits}))


def test_groups_of_several_columns_need_a_name_for_each():
    """A value has as many names as its column."""
    with pytest.raises(SettingsError, match=r"for each column of `topic . quality`"):
        parse_settings({"limits": [{"column": "topic * quality", "value": "5"}]}, Selection)
