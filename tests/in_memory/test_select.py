"""`datamask.select`: the same selection from every container, and no silent use of wrong rows."""

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import datamask
from datamask.errors import InputError, SettingsError
from datamask.in_memory.containers import column_of, texts_or_matrix

pytestmark = pytest.mark.usefixtures("roughly")

ROWS, WIDTH = 120, 8
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, WIDTH)).astype(np.float32)
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)
QUALITY = RANDOM.standard_normal(ROWS)
LISTS = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), WIDTH)
HF = datasets.Dataset.from_dict({"vector": X, "score": QUALITY, "text": ["a"] * ROWS})
SMALL = {"ratio": 0.1, "steps": 50}


class Mine(datamask.MomentObjective):
    """A term of the user's own."""

    name, maximise, order = "mine", True, 0

    def of_moments(self, moments: datamask.Moments) -> torch.Tensor:
        """Mean quality."""
        return moments.quality / moments.count


@pytest.fixture(scope="module")
def expected() -> datamask.Selected:
    """Return what the learner selects from the array."""
    return datamask.select(X, QUALITY, **SMALL)


def test_the_names_that_users_import_are_these():
    """No name comes or goes unnoticed, and each can be imported."""
    names = """
    Compute DatamaskError DiSF Embedding FacilityLocation GroupBalance LearnedMask LengthBalance
    MomentObjective Moments Objective PairwiseSimilarity Selected
    Selection Settings TargetCoverage __version__ learn_mask open_run rebuild select
    """
    assert sorted(datamask.__all__) == names.split()
    assert all(getattr(datamask, name) is not None for name in datamask.__all__)
    assert {*datamask.__all__} <= {*dir(datamask)}
    with pytest.raises(AttributeError, match="no attribute 'selct'"):
        datamask.selct  # noqa: B018


def test_importing_datamask_imports_nothing_heavy():
    """Neither does `Settings`; `select` imports torch when it is called."""
    code = (
        "import sys, datamask\n"
        "heavy = {'torch', 'duckdb', 'transformers', 'prefect', 'numpy', 'pyarrow', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "datamask.Settings(), datamask.DatamaskError\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "datamask.select\n"
        "print(sorted((heavy | {'scipy'}) & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["[]", "['pydantic']", "['numpy', 'pyarrow', 'pydantic']"]


CONTAINERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tensors": lambda: (torch.tensor(X, requires_grad=True), torch.tensor(QUALITY)),
    "lists": lambda: (X.tolist(), QUALITY.tolist()),
    "list of arrays": lambda: (list(X), pd.Series(QUALITY)),
    "Arrow array": lambda: (LISTS, pa.array(QUALITY)),
    "Arrow chunks": lambda: (pa.chunked_array([LISTS[:50], LISTS[50:]]), QUALITY),
    "Arrow table": lambda: (pa.table({"vector": LISTS, "score": QUALITY}), "score"),
    "pandas": lambda: (pd.DataFrame({"vector": list(X), "score": QUALITY, "text": "a"}), "score"),
    "pandas series": lambda: (pd.Series(list(X)), pd.Series(QUALITY)),
    "polars": lambda: (pl.DataFrame({"vector": pl.Series(X), "score": QUALITY}), "score"),
    "polars lists": lambda: (pl.Series(X.tolist()), pl.Series(QUALITY)),
    "Dataset": lambda: (HF, "score"),
    "Dataset, reordered": lambda: (
        HF.select(range(119, -1, -1)).select(range(119, -1, -1)),
        "score",
    ),
    "column of a Dataset": lambda: (HF["vector"], HF["score"]),
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_every_container_gives_the_same_selection(make, expected):
    """Indices and logits are the same, bit for bit."""
    data, quality = make()
    found = datamask.select(data, quality, **SMALL)
    assert found.indices.tolist() == expected.indices.tolist()
    assert (found.logits == expected.logits).all()


def test_a_selection_is_that_of_the_learner(expected):
    """Rows are scaled to length 1, and a tenth of them is selected."""
    selection = datamask.Selection(steps=50)
    learned = datamask.learn_mask(UNIT, QUALITY, selection, 12, seed=0)
    assert learned.selected.tolist() == expected.mask.tolist()
    assert expected.indices.tolist() == np.flatnonzero(learned.selected).tolist()
    assert expected.mask.sum() == 12 and (expected.logits[expected.mask] > 0).all()


def test_unit_rows_are_not_copied():
    """Arrays and fixed-size lists of float16 or float32 stay where they are; others are scaled."""
    for dtype in (np.float16, np.float32):
        rows = UNIT.astype(dtype)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH)
        assert texts_or_matrix(rows) is rows
        assert not texts_or_matrix(column).flags.owndata
        assert np.shares_memory(texts_or_matrix(column), column.values.to_numpy())
    longer = texts_or_matrix(7 * UNIT.astype(np.float64))
    assert longer.dtype == np.float32
    np.testing.assert_allclose(longer, UNIT, atol=1e-7)
    assert texts_or_matrix(torch.tensor(UNIT).bfloat16()).dtype == np.float32


def test_a_selection_says_what_it_gained(expected):
    """Summary, text, table and chart have the values of the terms; of an empty gain, none."""
    quality, diversity = expected.summary()
    assert quality.selected == pytest.approx(QUALITY[expected.mask].mean(), rel=1e-5)
    assert quality.top_quality == pytest.approx(np.sort(QUALITY)[-12:].mean(), rel=1e-5)
    assert quality.better == "higher" and diversity.better == "higher"
    share = (quality.selected - quality.random) / (quality.top_quality - quality.random)
    shown, table = repr(expected), expected._repr_html_()
    assert quality.best == quality.top_quality and quality.share == share
    assert shown.startswith(f"12 of 120 documents selected: quality {share:.0%}, facility_location")
    assert f"{diversity.selected:.5g}" in shown and f"<td>{diversity.random:.5g}</td>" in table
    chart = expected.plot()
    assert [series.name for series in chart.series] == ["ours", "top quality"]
    assert chart.series[0].y[0] == pytest.approx(share)
    assert chart._repr_png_().startswith(b"\x89PNG")
    assert "quality 0%" not in repr(datamask.select(X, np.ones(ROWS), **SMALL))


def test_without_quality_only_diversity_counts():
    """Embeddings alone have no quality, and nothing says they had."""
    found = datamask.select(X, **SMALL)
    assert found.selection.quality_weight == 0 and found.quality is None
    assert [row.name for row in found.summary()] == ["facility_location"] and "top" not in repr(
        found
    )[:99]
    assert len(found.plot().series) == 1
    with pytest.raises(SettingsError, match="quality: "):
        datamask.select(X, quality_weight=0.5)


TEXTS = [f"The {'river ' * (row % 5)}runs by the {'old ' * (row % 7)}mill." for row in range(40)]


@pytest.mark.parametrize(
    "data",
    [
        pd.Series(TEXTS),
        pl.DataFrame({"text": TEXTS, "id": TEXTS}),
        pl.Series(TEXTS, dtype=pl.Categorical),
        np.array(TEXTS),
        pa.array(TEXTS),
        datasets.Dataset.from_dict({"content": TEXTS}),
    ],
    ids=lambda data: type(data).__name__,
)
def test_texts_are_read_from_every_container(data):
    """Every container gives the same texts."""
    assert texts_or_matrix(column_of(data)) == TEXTS


def test_a_named_model_embeds_texts(tmp_path):
    """The width is the model's own; its vectors decide, without a prefix."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    model = SentenceTransformer(modules=[BoW(["river", "old", "mill", "query"])], device="cpu")
    model.save(str(tmp_path / "model"))
    given = {"num_selected": 4, "steps": 20, "compute": datamask.Compute(device="cpu")}
    texts = [f"{text} {'river ' * row}{'old ' * (row % 3)}" for row, text in enumerate(TEXTS)]
    given |= {"prune_fraction": 0.001}  # of 40 documents none
    embedded = datamask.select(texts, np.arange(40), embedding=str(tmp_path / "model"), **given)
    vectors = datamask.select(model.encode(texts), np.arange(40), quality_weight=0.3, **given)
    assert embedded.mask.tolist() == vectors.mask.tolist() and not embedded.note


def test_metrics_and_terms_of_ones_own():
    """A class is named by itself, and further scores by name or column."""
    found = datamask.select(X, QUALITY, metric=Mine, **SMALL)
    assert [row.name for row in found.summary()] == ["quality", "mine"]
    terms = [{"name": "group_balance", "weight": 1, "options": {"column": "dump", "shares": ["a"]}}]
    scores = {"dump=a": (np.arange(ROWS) < 60).astype(float)}
    balanced = datamask.select(X, QUALITY, more_terms=terms, scores=scores, **SMALL)
    assert balanced.summary()[2].name == "dump_balance"


def wrong(rows: int, value: float) -> np.ndarray:
    """Vectors of which one has another value."""
    found = X.copy()
    found[rows] = value
    return found


DATES = np.datetime64("2026-01-01", "s") + np.arange(ROWS)


def learn(features: Any, quality: Any = QUALITY, number: Any = 12) -> datamask.LearnedMask:
    """The learner itself, which takes arrays of one kind."""
    return datamask.learn_mask(features, quality, datamask.Selection(), number, seed=0)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ragged": (lambda: datamask.select([[1.0, 2.0], [3.0]]), "row 1: 1 numbers, but row 0 has 2"),
    "zero": (lambda: datamask.select(wrong(7, 0)), "row 7: all zeros"),
    "NaN": (lambda: datamask.select(wrong(119, np.nan)), "row 119: NaN"),
    "missing number": (lambda: datamask.select([[1.0, 0.0], [None, 1.0]]), "row 1: NaN"),
    "missing row": (lambda: datamask.select(pl.Series([[1.0], None])), "row 1: missing"),
    "missing text": (lambda: datamask.select(["a", None]), "row 1: missing"),
    "no rows": (lambda: datamask.select(X[:0]), "needed rows of numbers"),
    "no texts": (lambda: datamask.select(pl.Series([], dtype=pl.String)), "no texts"),
    "one dimension": (lambda: datamask.select(QUALITY), "needed rows of numbers"),
    "mixed": (lambda: datamask.select(["a", 1]), "not texts, numbers"),
    "short quality": (lambda: datamask.select(X, QUALITY[1:]), r"shape \(119,\), needed \(120,\)"),
    "NaN quality": (lambda: datamask.select(X, [np.nan, *QUALITY[1:]]), "row 0, column quality"),
    "texts as quality": (lambda: datamask.select(X, ["1"] * ROWS), "type string, needed a number"),
    "dates as quality": (lambda: datamask.select(X, DATES), "type timestamp"),
    "days as quality": (lambda: datamask.select(X, DATES - DATES[0]), "type duration"),
    "dates of pandas": (lambda: datamask.select(X, pd.Series(DATES)), "type timestamp"),
    "masked dates": (lambda: datamask.select(X, np.ma.masked_array(DATES)), "type timestamp"),
    "whole numbers": (lambda: datamask.select(X, 2**53 - 9 + np.arange(ROWS)), "row 10, .*2⁵³"),
    "below them": (lambda: datamask.select(X, [*range(119), -(2**60)]), "row 119, .*2⁵³"),
    "decimals": (lambda: datamask.select(X, [Decimal(2**60)] * ROWS), "row 0, .*2⁵³"),
    "beyond 64 bits": (lambda: datamask.select(X, [2**70] * ROWS), "not texts, numbers"),
    "other index": (
        lambda: datamask.select(pd.DataFrame({"v": list(X)}), pd.Series(QUALITY)[::-1]),
        "its index differs",
    ),
    "two columns": (
        lambda: datamask.select(pl.DataFrame({"a": ["x"], "b": ["y"]})),
        "name one with column=; there are a, b",
    ),
    "repeated column": (
        lambda: datamask.select(pa.table([["x"], [1], [2]], names=["text", "edu", "edu"])),
        "column edu: occurs more than once",
    ),
    "repeated score": (
        lambda: datamask.select(
            pa.table([["x"], [1], [2]], names=["text", "edu", "edu"]), "edu", column="text"
        ),
        "column edu: occurs more than once",
    ),
    "no column": (lambda: datamask.select(HF, "scor"), "column scor: absent; there are vector"),
    "splits": (lambda: datamask.select(datasets.DatasetDict(train=HF)), "give one split"),
    "stream": (lambda: datamask.select(HF.to_iterable_dataset()), "give one split"),
    "generator": (lambda: datamask.select(row for row in X), "a generator, not a list"),
    "a path": (lambda: datamask.select("texts.parquet"), "a str, not a list"),
    "large seed": (lambda: datamask.select(X, seed=2**63), "less than 2⁶³"),
    "seed": (lambda: datamask.select(X, seed=-1), "seed: -1; give at least 0"),
    "seed of a kind": (lambda: datamask.select(X, seed=1.5), "seed: 1.5; give"),
    "a set": (lambda: datamask.select({"a", "b"}), "a set, not a list"),
    "typo": (lambda: datamask.select(X, ratoi=0.1), "ratoi: unknown key; did you mean `ratio`"),
    "too many": (lambda: datamask.select(X, num_selected=121), "num_selected: 121 of 120"),
    "ratio too": (
        lambda: datamask.select(X, ratio=0.2, num_selected=4),
        "num_selected, ratio and tokens",
    ),
    "lazy": (lambda: datamask.select(pl.LazyFrame({"text": ["a"]})), "LazyFrame; call its"),
    "a query": (
        lambda: datamask.select(duckdb.sql("SELECT [1.0, 2.0] AS v")),
        r"DuckDBPyRelation; call its method to_arrow_table\(\)",
    ),
    "masked": (lambda: datamask.select(np.ma.masked_less(X, X[3].min() + 1e-9)), "row [0-3]: NaN"),
    "sparse": (lambda: datamask.select(torch.from_numpy(X).to_sparse()), r"to_dense\(\)"),
    "half a document": (lambda: datamask.select(X, num_selected=12.5), "num_selected: 12.5"),
    "learn a list": (lambda: learn(X.tolist()), "column features: list of objects; needed"),
    "learn big-endian": (lambda: learn(X.astype(">f4")), "column features: ndarray of >f4; needed"),
    "learn a matrix": (
        lambda: learn(X.astype("f4"), X),
        r"column quality: shape \(120, 8\); needed",
    ),
    "no quality": (lambda: datamask.select(X, method="top_quality"), "quality: nothing"),
    "examples": (lambda: datamask.select(X, examples=["a"]), "compare texts"),
    "wide frame": (lambda: datamask.select(pd.DataFrame(X)), r"to_numpy\(\)"),
    "few examples": (
        lambda: datamask.select(TEXTS, examples=TEXTS[:3]),
        "^examples: only 3 different texts",
    ),
    "missing example": (lambda: datamask.select(TEXTS, examples=["a", None]), "row 1: examples"),
    "near copies": (lambda: datamask.select(X, near_duplicates={}), "compare texts"),
    "tokens": (lambda: datamask.select(X, tokens=9), "tokens: give lengths"),
    "no group": (lambda: datamask.select(X, limits=[{"cap": 0.3}]), "limits: each must name"),
    "part of a token": (
        lambda: datamask.select(TEXTS, tokens=9, lengths=[1.0, 1.5] * 20),
        "row 1, column lengths",
    ),
    "own vectors": (
        lambda: datamask.select(TEXTS, embedding=datamask.Embedding(method="column")),
        "embedding: method `column`",
    ),
    "another name": (lambda: datamask.select(X, random_state=1), "argument is called seed"),
    "none": (lambda: datamask.select(X, num_selected=0), "num_selected: 0 of 120"),
    "for runs": (lambda: datamask.select(X, scope="corpus"), "scope: for runs only"),
    "lengths": (
        lambda: datamask.select(X, more_terms=[{"name": "length", "weight": 1}]),
        "more_terms: a term reads groups or lengths, which only a run has",
    ),
    "a model": (lambda: datamask.select(X, mask_model="runs/mine"), "mask_model: for runs only"),
}


def test_half_a_document_is_not_learned():
    """A whole number of documents, of any kind of integer."""
    with pytest.raises(ValueError, match=r"num_selected must be in 0 to 120, got 12\.5"):
        learn(UNIT, number=12.5)
    assert learn(UNIT, number=np.int32(12)).selected.sum() == 12


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_input_is_refused_with_its_place(call, message):
    """In one line, and never used silently."""
    with pytest.raises((InputError, SettingsError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
