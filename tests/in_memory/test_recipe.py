"""`datamask.select` on texts is the recipe: the same documents as a run on files selects."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import datamask
from datamask.config.loading import parse_settings
from datamask.errors import DatamaskError, InputError, SettingsError
from tests.finished import finish, selected_ids

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

COMMON = [f"common{number}" for number in range(40)]
KINDS = {kind: [f"{kind}{number}" for number in range(30)] for kind in ("mill", "star", "news")}


def texts(kinds: list[str], seed: int) -> list[str]:
    """A text of each kind: some of its words among common ones."""
    generator = np.random.default_rng(seed)
    return [
        " ".join(
            generator.permutation(
                [*generator.choice(KINDS[kind], 12), *generator.choice(COMMON, 18)]
            )
        )
        for kind in kinds
    ]


NAMES = [[*KINDS][row % 3] for row in range(240)]
TEXTS = texts(NAMES, 4)
TEXTS[7] = TEXTS[4]
TEXTS[13] = f"{TEXTS[10]} more"
EXAMPLES = texts(["mill"] * 120, 5)
TABLE = pd.DataFrame({"text": TEXTS, "site": NAMES, "size": [len(text.split()) for text in TEXTS]})
GIVEN: dict[str, Any] = {"embedding": datamask.Embedding(method="lexical", dimension=32), "seed": 3}


@pytest.fixture(scope="module")
def chosen() -> datamask.Selected:
    """A selection with all that the recipe has."""
    return datamask.select(
        TABLE,
        examples=EXAMPLES,
        tokens=900,
        lengths="size",
        limits=[{"column": "site", "value": "star", "cap": 0.3}],
        near_duplicates={"similarity": 0.7},
        **GIVEN,
    )


def test_texts_and_files_lead_to_the_same_documents(chosen, tmp_path):
    """The examples' score prunes and weighs as in a run, and copies, tokens and limits count."""
    (tmp_path / "source").mkdir()
    ids = [f"{row:03d}" for row in range(240)]
    columns = {"id": ids, "text": TEXTS, "dump": NAMES, "token_count": TABLE["size"]}
    pq.write_table(pa.table(columns), tmp_path / "source" / "a.parquet")
    pq.write_table(pa.table({"text": EXAMPLES}), tmp_path / "examples.parquet")
    data = {
        "seed": 3,
        "source": {"path": str(tmp_path / "source")},
        "quality": {
            "scores": [
                {"name": "wanted", "kind": "examples", "path": str(tmp_path / "examples.parquet")}
            ],
            "near_duplicates": {"similarity": 0.7},
        },
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"tokens": 900, "limits": [{"column": "dump", "value": "star", "cap": 0.3}]},
    }
    run = finish(tmp_path / "run", parse_settings(data), "selection")
    assert {ids[row] for row in chosen} == selected_ids(run)
    assert chosen.selection.quality_weight == run.in_force.selection.quality_weight
    assert chosen.dropped[7] == "duplicate" and chosen.dropped[13] == "near_duplicate"
    assert np.isnan(chosen.logits[7]) and (chosen.logits[chosen.mask] > 0).all()
    sizes = TABLE["size"].to_numpy()[chosen]
    assert 900 <= sizes.sum() <= 900 + sizes.max()
    assert "duplicate" in chosen.note and "quality_weight" in chosen.note
    with pytest.raises(SettingsError):
        chosen.apply(TEXTS)


def test_a_selection_is_an_index_of_every_container(chosen):
    """Length, iteration and arrays are those of the selected rows."""
    rows = np.flatnonzero(chosen.mask).tolist()
    assert len(chosen) == len(rows) and [*chosen] == rows
    assert chosen[0] == rows[0] and chosen[1:3] == rows[1:3] and rows[2] in chosen
    assert np.asarray(chosen).tolist() == np.arange(240)[chosen].tolist() == rows
    assert torch.arange(240)[chosen].tolist() == rows
    assert TABLE.iloc[chosen].index.tolist() == rows
    assert pl.DataFrame({"row": range(240)})[chosen]["row"].to_list() == rows
    assert pa.table({"row": range(240)}).take(chosen.indices)["row"].to_pylist() == rows


def test_embeddings_can_be_pruned_too():
    """The worst by quality are not candidates."""
    vectors, quality = np.random.default_rng(6).standard_normal((90, 8)), np.arange(90) / 90
    selected = datamask.select(vectors, quality, prune_fraction=0.5, num_selected=9)
    assert min(selected) >= 45 and len(selected) == 9
    assert [*selected.dropped[:45]] == ["pruned"] * 45 and not any(selected.dropped[45:])
    with pytest.raises(DatamaskError):
        datamask.select(vectors, quality, prune_fraction=0.5, num_selected=60)


def test_new_documents_are_judged_by_a_selection(tmp_path):
    """Directly and by the mask model of a run, which is another program, alike."""
    generator = np.random.default_rng(2)
    vectors, quality = generator.standard_normal((200, 8)) + 0.5, generator.standard_normal(200)
    new, of_new = generator.standard_normal((300, 8)) + 0.5, generator.standard_normal(300)
    given = {"ratio": 0.2, "metric": "pairwise", "quality_weight": 0.5}
    direct = datamask.select(vectors, quality, **given)
    by_run = datamask.select(vectors, quality, prune_fraction=0.001, **given)
    logits, others = direct.apply(new, of_new), by_run.apply(new, of_new)
    assert logits.shape == (300,) and logits.dtype == np.float32
    assert np.isfinite(others).sum() >= 297  # The run drops what is worse than all of its own.
    others = np.where(np.isnan(others), logits, others)
    assert np.corrcoef(logits, others)[0, 1] > 0.97
    assert ((logits > 0) == (others > 0)).mean() > 0.94 and 0 < (logits > 0).sum() < 300
    with pytest.raises(SettingsError):
        direct.apply(new)
    with pytest.raises(InputError):
        direct.apply(["a text"], [1.0])
    with pytest.raises(SettingsError):
        datamask.select(vectors, quality).apply(new, of_new)


def test_new_texts_are_judged_by_a_selection():
    """As `datamask apply` does: texts of the pruned kind are dropped, others have a logit."""
    quality = [["news", "star", "mill"].index(kind) + row / 1e3 for row, kind in enumerate(NAMES)]
    chosen = datamask.select(TEXTS, quality, metric="disf", ratio=0.2, **GIVEN)
    new = texts(["star"] * 20 + ["news"] * 20, 7)
    logits = chosen.apply(new, [2.0] * 20 + [0.0] * 20)
    assert np.isfinite(logits[:20]).all() and np.isnan(logits[20:]).all()
    assert len([*chosen.judge.home.iterdir()]) == 2  # the documents and their run
    with pytest.raises(SettingsError, match="quality: give it"):
        chosen.apply(new)


def test_texts_selected_by_coverage_judge_no_others(chosen):
    """Facility location compares documents with each other; the run's folder does not stay."""
    assert chosen.judge is None
    with pytest.raises(SettingsError, match="no function of a document"):
        chosen.apply(TEXTS[:2])
