"""Results that should not be believed say so, with numbers worked out again from the source."""

import html
import logging
import os
import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import gains
from datamask.config.loading import parse_settings
from datamask.config.selection import Selection
from datamask.execution.pipeline import rebuild
from datamask.report import findings
from datamask.report.answer import answer
from datamask.report.finding import Finding
from datamask.report.quality_findings import length_command, role_of_score
from datamask.report.rendering import cell
from datamask.report.sample import mean_cosine
from datamask.runs.opening import run_storage
from datamask.runs.run import Run
from tests.finished import WORDS

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SHARDS, ROWS, WIDTH = 2, 60, 16


def vectors(spread: float) -> np.ndarray:
    """Around one direction; a spread of 1 is every direction."""
    noise = np.random.default_rng(2).standard_normal((SHARDS * ROWS, WIDTH))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return np.eye(WIDTH)[0] * (1 - spread) + spread * noise


def of_vectors(folder: Path, features: np.ndarray, **groups: dict[str, Any]) -> Run:
    """A published run of documents that are given as vectors."""
    (folder / "source").mkdir()
    quality = np.random.default_rng(3).standard_normal(len(features))
    columns = {"chunk_id": [f"{row:04d}" for row in range(len(features))], "quality_score": quality}
    table = pa.table({**columns, "feature_arr": features.tolist()})
    pq.write_table(table, folder / "source" / "0.parquet", row_group_size=ROWS)
    groups = {"source": {"layout": "features"}, "embedding": {"dimension": WIDTH}, **groups}
    return published(folder, **groups)


def of_texts(folder: Path, lengths: np.ndarray, **selection: Any) -> tuple[Run, np.ndarray]:
    """A published run that prefers long texts, and the number of characters of each.

    A text is of dump `long` if it has at least 50 words.
    """
    (folder / "source").mkdir()
    generator = np.random.default_rng(4)
    texts = [" ".join(generator.choice(WORDS, length)) for length in lengths]
    table = {
        "id": [f"{row:04d}" for row in range(len(texts))],
        "text": texts,
        "long": [float(len(text)) for text in texts],
        "dump": ["long" if length >= 50 else "short" for length in lengths],
    }
    pq.write_table(pa.table(table), folder / "source" / "0.parquet", row_group_size=ROWS)
    run = published(
        folder,
        quality={
            "scores": [{"name": "long", "kind": "column", "column": "long"}],
            "prune_fraction": 0,
        },
        embedding={"method": "lexical", "dimension": WIDTH},
        selection=selection,
    )
    return run, np.array([len(text) for text in texts])


def published(folder: Path, **groups: dict[str, Any]) -> Run:
    """Every stage, up to the card."""
    settings = {
        "plan": {"rows_per_shard": ROWS},
        "publication": {"license": "mit", "dry_run": True},
        **groups,
        "source": {"path": str(folder / "source"), **groups.get("source", {})},
        "selection": {"ratio": 0.25, "steps": 5, **groups.get("selection", {})},
    }
    return rebuild(folder / "run", parse_settings(settings))


def told(run: Run, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings, after it was seen that log, report and card have each of them."""
    found = answer(run).warnings
    page = html.unescape((run.root / "report.html").read_text(encoding="utf-8"))
    card = (run.root / "publication" / "README.md").read_text(encoding="utf-8")
    # Threads of earlier tests may still log, such as those of the Hub's client.
    of_report = [record for record in caplog.records if record.name == "datamask.report.page"]
    assert [record.getMessage() for record in of_report] == found
    listed = page.partition('class="findings"')[2].partition("</ul>")[0]
    assert listed.count('<li class="warning">') == len(found)
    assert card.partition("\n## ")[0].count("- ⚠ ") == len(found)
    for line in found:
        assert cell(line) in card.partition("\n## ")[0]
        assert line in listed
    _reveals_nothing(run, card)
    return found


def _reveals_nothing(run: Run, card: str) -> None:
    """No folder or name of this machine, no secret, no HTML entity, no command for the run."""
    folder, commands = run.root.absolute().parent, answer(run).commands
    secrets = [value for key, value in os.environ.items() if re.search("TOKEN|SECRET|KEY$", key)]
    for hidden in (str(folder), socket.gethostname(), *filter(None, secrets), *commands):
        assert hidden not in card
    assert not re.search(r"&#?\w+;", card) and "datamask rebuild RUN" not in card


@pytest.fixture(autouse=True)
def _only_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="datamask.report")


@pytest.mark.slow
def test_collapsed_embeddings_are_told(tmp_path, caplog):
    """With the mean cosine of all pairs, and the share of near-duplicates among random ones."""
    features = vectors(0.1)
    (line,) = told(of_vectors(tmp_path, features), caplog)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    assert f"mean cosine of two documents is {cosines.mean():.3f}" in line
    assert "100% of random documents" in line


def test_a_selection_worse_than_random_is_told(tmp_path, caplog):
    """Pairwise similarity alone, over all shards: twelve documents that are drawn, not swapped."""
    features = vectors(1.0)
    selection = {"metric": "pairwise", "quality_weight": 0.0, "scope": "corpus", "ratio": 0.1}
    run = of_vectors(tmp_path, features, selection=selection | {"swap_refinement": 0})
    (line,) = told(run, caplog)
    assert "below that of random selections" in line
    masks = [pq.read_table(run.path("selection", shard))["selected"] for shard in range(SHARDS)]
    kept = features[np.concatenate([mask.to_numpy() for mask in masks])]
    of_kept, of_all = (
        (one @ one.T)[~np.eye(len(one), dtype=bool)].mean() for one in (kept, features)
    )
    assert len(kept) == 12 and of_kept > of_all


@pytest.mark.parametrize("features", [vectors(0.5), vectors(0.5)[:2], vectors(0.5)[:1]])
def test_the_mean_cosine_is_that_of_all_pairs(features):
    """Pair by pair."""
    pairs = [a @ b for i, a in enumerate(features) for j, b in enumerate(features) if i != j]
    assert mean_cosine(features) == pytest.approx(np.mean(pairs) if pairs else 0.0)


def test_a_bias_of_length_is_told(tmp_path, caplog):
    """Ratio of the lengths of selected documents and others."""
    lengths = np.random.default_rng(5).integers(2, 20, SHARDS * ROWS) ** 2
    run, characters = of_texts(tmp_path, lengths, method="top_quality")
    longest = np.sort(characters.reshape(SHARDS, ROWS), axis=1)[:, -ROWS // 4 :]
    [mean] = told(run, caplog)
    assert f"{longest.mean() / characters.mean():.3g} times as long" in mean


def test_a_term_for_length_is_proposed_where_it_counts():
    """The command would replace the terms of the run, and methods without terms ignore it."""
    assert "length" in length_command(Selection())
    others = [{"method": "top_quality"}, {"more_terms": [{"name": "length", "weight": 1}]}]
    assert [length_command(Selection(**other)) for other in others] == ["", ""]


@pytest.mark.slow
def test_a_random_selection_has_no_bias(tmp_path, caplog):
    """Of the same source."""
    lengths = np.random.default_rng(5).integers(2, 20, SHARDS * ROWS) ** 2
    run, _ = of_texts(tmp_path, lengths, method="random", metric="facility_location")
    assert told(run, caplog) == []
    trade_off = finding(run, "trade-off")
    known = gains(run)["quality"]
    assert abs(known["selected"]) < 0.5 and trade_off.grade in ("caution", "good")


@pytest.mark.slow
def test_a_score_that_only_prunes_need_not_gain(tmp_path):
    """The quality of the selection is as random, which is what lambda 0 asks for."""
    groups = {"selection": {"quality_weight": 0.0}, "quality": {"prune_fraction": 0.2}}
    run = of_vectors(tmp_path, vectors(1.0), **groups)
    known, trade_off = gains(run), finding(run, "trade-off")
    assert known["quality"]["selected"] < 0.3 < 0.9 < known["facility_location"]["selected"]
    assert trade_off.grade == "good" and "the score only prunes" in trade_off.text


def test_without_weight_a_lower_quality_is_no_reason_for_a_sweep(tmp_path, monkeypatch):
    """A sweep is proposed for a term that the selection maximises, and for no other."""
    gained = {
        "quality": {"selected": -0.5, "error": 0.0},
        "facility_location": {"selected": 0.9, "error": 0.0},
    }
    monkeypatch.setattr(findings, "gains", lambda run: gained)
    monkeypatch.setattr(findings, "query", lambda run, sql: [])

    def trade_off(weight: float) -> Finding:
        settings = parse_settings({"selection": {"quality_weight": weight}})
        (found,) = findings._gains(Run(run_storage(tmp_path), settings, {}))
        return found

    SWEEP = "datamask sweep RUN --over selection.quality_weight=0,0.3,0.7"
    assert (trade_off(0).grade, trade_off(0).command) == ("good", "")
    assert (trade_off(0.3).grade, trade_off(0.3).command) == ("caution", SWEEP)


@pytest.mark.parametrize("score", [{"kind": "column", "column": "q"}, {"kind": "heuristic"}])
def test_the_default_share_that_is_pruned_counts(score, tmp_path):
    """A score that prunes by default is not said to have no effect."""
    quality = {"scores": [{"name": "score", **score}]}

    def role(**more: float) -> str:
        chosen = {"quality": {**quality, **more}, "selection": {"quality_weight": 0}}
        return role_of_score(Run(run_storage(tmp_path), parse_settings(chosen), {}))

    assert role() == role(prune_fraction=0.5) != role(prune_fraction=0)


def finding(run: Run, name: str) -> Finding:
    """The finding of that name."""
    (found,) = (row for row in answer(run).findings if row.name == name)
    return found


@pytest.mark.slow
def test_limits_explain_an_objective_below_top_quality(tmp_path, caplog):
    """Long texts have the best quality, but only two of their dump may be kept."""
    lengths = np.random.default_rng(5).integers(2, 20, SHARDS * ROWS) ** 2
    limits = [{"column": "dump", "value": "long", "cap": 2 / 30}]
    run, _ = of_texts(tmp_path, lengths, quality_weight=0.9, limits=limits)
    masks = [pq.read_table(run.path("selection", shard))["selected"] for shard in range(SHARDS)]
    kept = np.concatenate([mask.to_numpy() for mask in masks])
    assert np.count_nonzero(lengths[kept] >= 50) == 2
    assert "which need not obey the floors and caps of selection.limits" in told(run, caplog)[0]
