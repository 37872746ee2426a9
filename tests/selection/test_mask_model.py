"""A mask as a function of a document: its logits, its files, and what it refuses."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch import Tensor

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.errors import CorruptFileError, DatamaskError, InputError, RunError
from datamask.learning.learner import shard_data
from datamask.objectives.level import Level
from datamask.objectives.protocol import MomentObjective, Moments
from datamask.runs.run import Run
from datamask.selection import sampling
from datamask.selection.documents import read_column, read_quality, read_survivors, with_vectors
from datamask.selection.mask_model import read_model
from datamask.selection.model_file import read_about
from datamask.selection.sampling import sampled_rows
from datamask.selection.sums import read_lists
from tests.conftest import nightly
from tests.finished import corpus, finish, settings
from tests.learning.conftest import clustered
from tests.selection.runs import by_definition, write_vectors

pytestmark = pytest.mark.usefixtures("undrawn")

WIDTH = 16


class Spread(MomentObjective):
    """Length of the mean vector; a user's own term."""

    name = "spread"
    maximise = False
    order: ClassVar[int] = 1

    def of_moments(self, moments: Moments) -> Tensor:
        """‖Σ x / S‖."""
        return (moments.first_D / moments.count).square().sum().sqrt()


def write(
    folder: Path, number: int, seed: int, shift: float = 0.0, rows: slice = slice(None)
) -> Path:
    """Documents of layout `features`, all or some, in three files; their quality is shifted."""
    features, quality = (part[rows] for part in clustered(number, WIDTH, seed))
    folder.mkdir(parents=True)
    names = [f"{seed}-{row:05d}" for row in range(len(quality))]
    return write_vectors(folder, features, quality + shift, 3, names)


def chosen(source: Path, rows: int = 100_000, **selection: object) -> object:
    """Settings of a run of layout `features`."""
    return parse_settings(
        {
            "source": {"path": str(source), "layout": "features"},
            "plan": {"rows_per_shard": rows},
            "embedding": {"dimension": WIDTH},
            "selection": {"ratio": 0.25, "metric": "disf", "steps": 20, **selection},
        }
    )


def logits_of(run: Run, of: Run | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Logits by a run's model, and the published ones, of its documents or of another run's."""
    folder = str(run.path("mask_model").parent)
    about = read_about(folder)
    model, ours, theirs = read_model(folder, about), [], []
    for shard in range((of or run).num_shards):
        documents = with_vectors(of or run, read_quality(of or run, shard))
        mask = None
        if of is None:
            mask = read_column(run, "selection", documents, "selected").to_numpy()
        parts = documents.features, documents.quality, documents.scores
        data = shard_data(*parts, Compute(), Level(about["centre"], about["quality_unit"]))
        ours.append(model.judge(data, mask).logits)
        theirs.append(pq.read_table((of or run).path("selection", shard))["logit"].to_numpy())
    return np.concatenate(ours), np.concatenate(theirs)


TERMS = [
    {"name": "target", "weight": 0.4},
    {"name": "pairwise", "weight": 0.2},
    {"name": "tests.selection.test_mask_model:Spread", "weight": 0.1},
]


@pytest.mark.parametrize(
    ("scope", "selection"),
    [
        ("shard", {}),
        ("corpus", {"metric": "disf", "more_terms": TERMS}),
        *(
            pytest.param(scope, selection, marks=pytest.mark.slow)
            for scope, selection in (
                ("corpus", {}),
                ("corpus", {"rounds": 1, "quality_weight": 1.0}),
                ("shard", {"metric": "disf", "more_terms": TERMS}),
                ("corpus", {"metric": "pairwise", "quality_weight": 0.1, "scale_terms": False}),
            )
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(map(str, given.values()))[:30],
)
def test_the_model_gives_the_logits_of_its_own_run(tmp_path, scope, selection):
    """Of every document, except where the logit was clipped to the side of the mask."""
    np.save(tmp_path / "target.npy", clustered(20, WIDTH, 9)[0])
    terms = [
        term | ({"path": str(tmp_path / "target.npy")} if term["name"] == "target" else {})
        for term in selection.get("more_terms", [])
    ]
    source = write(tmp_path / "source", 600, 1)
    rows = 100_000 if scope == "shard" else 200
    asked = chosen(source, rows, scope=scope, **{**selection, "more_terms": terms})
    run = finish(tmp_path / "run", asked, "mask_model")
    ours, published = logits_of(run)
    free = np.abs(published) > 1e-5
    close = np.isclose(ours, published, atol=1e-4, rtol=1e-4)
    # In scope `corpus` a logit may have been clipped on the way to the threshold, too.
    assert close[free].mean() > (0.999 if scope == "shard" else 0.98)
    assert free.sum() > 540 and ((ours > 0) == (published > 0))[free].mean() > 0.99
    about = json.loads(run.path("mask_model").read_text())
    for term in about["terms"]:
        assert term["deviation"] > 0
    assert about["documents"] == (published > 0).sum()


@pytest.mark.parametrize(
    ("sample", "selection"),
    nightly((200, {}), (600, {"metric": "pairwise", "quality_weight": 0.5})),
)
def test_in_one_pass_the_judge_is_the_model(tmp_path, monkeypatch, sample, selection):
    """Its threshold keeps the share of documents that it was not learned from, if there are any."""
    source = write(tmp_path / "source", 600, 1)
    monkeypatch.setattr(sampling, "SAMPLE", sample)
    monkeypatch.setattr(sampling, "STAND_INS", sample)
    once = {"scope": "corpus", "rounds": 1, **selection}
    run = finish(tmp_path / "run", chosen(source, 200, **once), "mask_model")
    ours, _ = logits_of(run)
    parts = [read_lists(run, "round", ("proposed",), shard)["proposed"] for shard in range(3)]
    assert np.ptp(ours - np.concatenate(parts)) < 1e-4 < np.ptp(ours)
    is_other = np.full(600, sample == 600)
    for shard in range(3):
        is_other[200 * shard + sampled_rows(run, read_survivors(run, shard))] = True
    assert (ours > 0)[is_other].sum() == is_other.sum() // 4


@pytest.mark.slow
def test_rounds_that_have_not_settled_leave_a_usable_model(tmp_path, monkeypatch):
    """By numpy, on documents that were held out: those it finds best are less alike than random."""
    source = write(tmp_path / "source", 5000, 1, rows=slice(4000))
    monkeypatch.setattr(sampling, "SAMPLE", 400)
    monkeypatch.setattr(sampling, "STAND_INS", 400)
    rounds = {"scope": "corpus", "rounds": 3, "quality_weight": 0.0}
    run = finish(tmp_path / "run", chosen(source, 1000, **rounds), "mask_model")
    assert not run.receipt("round_total", 3).metrics["settled"]
    others = write(tmp_path / "others", 5000, 1, rows=slice(4000, None))
    new = finish(tmp_path / "new", chosen(others), "mask_model")
    table = pq.read_table(sorted(others.glob("*.parquet")))
    features = np.stack(table["feature_arr"].to_numpy()).astype(np.float64)

    def alike(rows: np.ndarray) -> float:
        return float(np.square(np.corrcoef(features[rows].T)).sum())

    random = [alike(np.random.default_rng(n).choice(1000, 250, replace=False)) for n in range(9)]
    ours, _ = logits_of(run, new)
    assert alike(np.argsort(-ours)[:250]) < min(random)


@pytest.mark.parametrize("metric", ["disf", pytest.param("pairwise", marks=pytest.mark.slow)])
def test_the_logit_of_a_new_document_is_what_it_changes(tmp_path, metric):
    """In place of a selected one, by numpy and the definitions: documents no learner has seen."""
    source = write(tmp_path / "source", 600, 1)
    run = finish(tmp_path / "run", chosen(source, metric=metric), "mask_model")
    other = write(tmp_path / "new", 90, 2)
    new = finish(tmp_path / "other", chosen(other, metric=metric), "mask_model")
    ours, _ = logits_of(run, new)
    _, published = logits_of(run)
    table = pq.read_table(sorted(source.glob("*.parquet")))
    features = np.stack(table["feature_arr"].to_numpy()).astype(np.float64)
    quality = table["quality_score"].to_numpy()
    table = pq.read_table(sorted(other.glob("*.parquet")))
    later, later_quality = np.stack(table["feature_arr"].to_numpy()), table["quality_score"]
    scales = run.receipt("selection", 0).metrics["scales"]
    kept = np.flatnonzero(published > 0)

    def value(x: np.ndarray, q: np.ndarray) -> float:
        values = by_definition(x, q, metric)
        return 0.5 * values["quality"] / scales["quality"] - 0.5 * values[metric] / scales[metric]

    whole = value(features[kept], quality[kept])
    clear = kept[published[kept] > 0.05]
    swapped, expected = [], []
    for place in range(90):
        leaving = clear[place % len(clear)]
        rows = kept[kept != leaving]
        x = np.vstack([features[rows], later[place]])
        change = value(x, np.append(quality[rows], later_quality[place].as_py())) - whole
        swapped.append(change * 150)
        expected.append(ours[place] - published[leaving])
    np.testing.assert_allclose(swapped, expected, rtol=0.15, atol=0.1)
    assert np.corrcoef(swapped, expected)[0, 1] > 0.995


def test_a_selection_of_several_shards_has_one_threshold(tmp_path):
    """Scope `shard`: the model keeps the share that the shards keep together."""
    source = write(tmp_path / "source", 900, 1)
    run = finish(tmp_path / "run", chosen(source, 300), "mask_model")
    ours, published = logits_of(run)
    assert (ours > 0).sum() == pytest.approx((published > 0).sum(), abs=2)
    assert ((ours > 0) == (published > 0)).mean() > 0.9


def test_masks_that_are_no_function_of_a_document_say_why(tmp_path):
    """Facility location, and a selection of everything."""
    source = write(tmp_path / "source", 90, 1)
    for name, selection, why in (
        ("coverage", {"metric": "facility_location"}, "facility_location is not"),
        ("all", {"ratio": 1.0}, "no threshold"),
    ):
        run = finish(tmp_path / name, chosen(source, **selection), "mask_model")
        with pytest.raises(RunError, match=why):
            read_about(str(run.path("mask_model").parent))


def test_damaged_models_are_refused(tmp_path):
    """Truncated, exchanged or changed files, unknown terms, and a folder without a model."""
    source = write(tmp_path / "source", 90, 1)
    run = finish(tmp_path / "run", chosen(source), "mask_model")
    folder = run.path("mask_model").parent
    about = read_about(str(folder))
    terms = [{**term, "kind": "of a later version"} for term in about["terms"]]
    with pytest.raises(InputError, match="of a later version"):
        read_model(str(folder), about | {"terms": terms})
    tensors = (folder / "model.safetensors").read_bytes()
    for content in (tensors[:-9], tensors[:4], b"", tensors[:-1] + b"x"):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"model\.safetensors: corrupt"):
            read_model(str(folder), about)
    text = (folder / "model.json").read_text()
    for content in (text[:-20], text.replace('"unit": ', '"unit": 1'), "[]", ""):
        (folder / "model.json").write_text(content)
        with pytest.raises(CorruptFileError, match=r"model\.json: corrupt"):
            read_about(str(folder))
    with pytest.raises(DatamaskError, match="no mask model"):
        read_about(str(tmp_path))


def test_groups_and_lengths_are_part_of_the_model(tmp_path):
    """Terms that read indicators; and ranks, whose quantiles are kept."""
    balance = {"column": "language", "shares": {"en": 0.2}}
    terms = [
        {"name": "group_balance", "weight": 1.0, "options": balance},
        {"name": "length", "weight": 1.0},
    ]
    score = {"name": "edu", "kind": "column", "column": "edu", "normalisation": "rank"}
    asked = settings(
        corpus(tmp_path / "source"),
        plan={"rows_per_shard": 1000},
        quality={"scores": [score]},
        selection={"more_terms": terms, "quality_weight": 0.7},
    )
    run = finish(tmp_path / "run", asked, "mask_model")
    ours, published = logits_of(run)
    free = np.abs(published) > 1e-5
    np.testing.assert_allclose(ours[free], published[free], atol=2e-3, rtol=1e-3)
    values, shares = read_about(str(run.path("mask_model").parent))["normalisation"]["edu"]
    raw = pq.read_table(tmp_path / "source")["edu"].to_numpy()
    exact = [(np.sum(raw < value) + (np.sum(raw == value) - 1) / 2) / len(raw) for value in values]
    np.testing.assert_allclose(shares, exact, atol=1e-12)
