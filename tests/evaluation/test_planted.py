"""Planted truth: corpora on which it is known which selection trains the better model.

They are made of docstrings of installed packages. The verdict must be right, and its interval must
exclude 0. Equal arms, and differences too small to be seen, are simulated in test_verdict.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.report.evaluation import Findings, findings
from datamask.runs.stages import stages_of
from examples.demo_corpus import write_corpus

DOCUMENTS = 6000
"""Of a corpus, besides the clean texts that are held out."""

CLEAN = 300
MARKS = ["aex", "iok", "uzu", "qew", "xai", "kou", "wez", "oqa"]


def docstrings(folder: Path, *names: str) -> list[str]:
    """Docstrings of a middle length, of packages that every installation has."""
    packages = map(importlib.util.find_spec, names)
    roots = tuple(Path(str(found.origin)).parent for found in packages if found is not None)
    write_corpus(folder, num_files=1, limit=10**6, roots=roots)
    table = pq.read_table(folder / "docstrings-00.parquet", columns=["text"])
    return sorted({text for text in table["text"].to_pylist() if 200 < len(text) < 1500})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Enough for large corpora."""
    found = docstrings(tmp_path_factory.mktemp("docstrings"), "torch", "scipy")
    assert len(found) > DOCUMENTS + CLEAN
    return found


def evaluated(
    folder: Path, seed: int, columns: dict[str, Any], clean: list[str], **groups: Any
) -> Findings:
    """Evaluate a corpus, scored on clean texts alone if there are any."""
    folder.mkdir(parents=True)
    size = len(columns["text"])
    table = pa.table({"id": [f"{row:05d}" for row in range(size)], **columns})
    pq.write_table(table, folder / "texts.parquet", row_group_size=2000)
    (folder / "clean.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in clean))
    held_out: dict[str, Any] = {"hold_out": 0.08, "hold_out_by": "dump"}
    if clean:
        held_out = {"sets": [{"name": "clean", "path": str(folder / "clean.jsonl")}]}
    budget = {"model": "tiny", "tokens": 60_000, "seeds": 3, "learning_rates": [8e-3]}
    settings = {
        "seed": seed,
        "source": {"path": str(folder / "texts.parquet")},
        "quality": {
            "prune_fraction": 0.0,
            "duplicates": "keep",
            "scores": [{"name": "score", "kind": "column", "column": "score"}],
        },
        "embedding": {"method": "lexical", "dimension": 128},
        "selection": {"ratio": 0.4, "metric": "disf", "quality_weight": 0.3},
    }
    evaluation = {**held_out, **budget, **groups.pop("evaluation")}
    settings |= {"evaluation": evaluation, **groups}
    run = plan_run(folder / "run", parse_settings(settings))
    for stage in stages_of(run.settings):
        if stage not in ("composition", "report"):
            run_stage(run, stage, Compute(device="cpu", workers=2))
    found = findings(run)
    assert found is not None
    return found


def garbage(
    texts: list[str], folder: Path, seed: int, size: int = DOCUMENTS, every: int = 3, **given: Any
) -> Findings:
    """A third is shuffled words, boilerplate or syllables, and has a low score."""
    generator = np.random.default_rng(seed)
    drawn = [texts[place] for place in generator.permutation(len(texts))[: size + CLEAN]]
    clean, drawn = drawn[:CLEAN], drawn[CLEAN:]
    words = np.array([word for text in drawn for word in text.split()])
    score = generator.normal(size=size)
    for place in range(0, size, every):
        number = len(drawn[place].split())
        drawn[place] = (
            " ".join(generator.choice(words, number)),
            "All rights reserved. Click here to accept cookies. " * (number // 7 + 1),
            " ".join(generator.choice(MARKS, number)),
        )[place // every % 3]
        score[place] -= 6
    columns = {"text": drawn, "score": score}
    evaluation = {"arms": ["ours", "random"], **given}
    selection = {"ratio": 0.4, "metric": "disf", "quality_weight": 0.5}
    return evaluated(folder, seed, columns, clean, evaluation=evaluation, selection=selection)


def copies(texts: list[str], folder: Path, seed: int) -> Findings:
    """Half nearly repeats sixty documents and has a slightly better score: quality is blind."""
    generator = np.random.default_rng(seed)
    drawn = [texts[place] for place in generator.permutation(len(texts))[: DOCUMENTS + CLEAN]]
    clean, drawn = drawn[:CLEAN], drawn[CLEAN:]
    score = generator.normal(size=DOCUMENTS)
    for place in range(DOCUMENTS // 2, DOCUMENTS):
        words = drawn[place % 60].split()
        words[generator.integers(len(words))] = f"x{place}"
        drawn[place] = " ".join(words)
        score[place] += 1
    columns = {"text": drawn, "score": score}
    return evaluated(folder, seed, columns, clean, evaluation={"arms": ["ours", "top_quality"]})


def domain(texts: list[str], folder: Path, seed: int) -> Findings:
    """A third belongs to another domain (capitals, backwards), which the score dislikes."""
    generator = np.random.default_rng(seed)
    drawn = [texts[place] for place in generator.permutation(len(texts))[:DOCUMENTS]]
    score = generator.normal(size=DOCUMENTS)
    dumps = ["web"] * DOCUMENTS
    for place in range(0, DOCUMENTS, 3):
        drawn[place] = drawn[place].upper()[::-1]
        dumps[place] = "mirror"
        score[place] -= 3
    columns = {"text": drawn, "score": score, "dump": dumps}
    selection = {"ratio": 0.4, "metric": "disf", "quality_weight": 0.1}
    arms = {"arms": ["ours", "top_quality"]}
    return evaluated(folder, seed, columns, [], evaluation=arms, selection=selection)


def is_right(found: Findings, set_name: str | None = None) -> bool:
    """Return True if ours is better than the other arm, on the main set or another."""
    pairs = found.pairs if set_name is None else found.other_sets[set_name][1]
    return [pair["verdict"] for pair in pairs] == ["better"] and pairs[0]["high"] < 0


@pytest.mark.slow
def test_garbage_is_worse(tmp_path):
    """One small corpus, half of it garbage; ten large ones, and other kinds, in the slow test."""
    texts = docstrings(tmp_path / "docstrings", "scipy")
    found = garbage(texts, tmp_path / "garbage", 0, size=1400, every=2, tokens=20_000)
    assert is_right(found)
    assert found.metrics["proxy"] == {"agreed": 1, "decided": 1}


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("make", [garbage, copies, domain])
def test_ten_corpora(make, texts, tmp_path):
    """The verdict is right on at least nine of ten."""
    name = "mirror" if make is domain else None
    found = [make(texts, tmp_path / str(seed), seed) for seed in range(10)]
    assert sum(is_right(one, name) for one in found) >= 9
