"""Planted truth: a corpus of docstrings, half of it garbage, trains the better model without that.

Equal arms, and differences too small to be seen, are simulated in test_verdict.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.report.evaluation import findings
from datamask.runs.stages import stages_of
from examples.demo_corpus import write_corpus

SIZE, CLEAN = 1400, 300
"""Documents of the corpus, and clean texts that models are scored on."""

MARKS = ["aex", "iok", "uzu", "qew", "xai", "kou", "wez", "oqa"]


@pytest.mark.slow
def test_garbage_is_worse(tmp_path):
    """Shuffled words, boilerplate and syllables have a low score; the interval excludes 0."""
    write_corpus(tmp_path, num_files=1, limit=10**6, roots=tuple(map(Path, scipy.__path__)))
    table = pq.read_table(tmp_path / "docstrings-00.parquet", columns=["text"])
    texts = sorted({text for text in table["text"].to_pylist() if 200 < len(text) < 1500})
    generator = np.random.default_rng(0)
    drawn = [texts[place] for place in generator.permutation(len(texts))[: SIZE + CLEAN]]
    clean, drawn = drawn[:CLEAN], drawn[CLEAN:]
    words = np.array([word for text in drawn for word in text.split()])
    score = generator.normal(size=SIZE)
    for place in range(0, SIZE, 2):
        number = len(drawn[place].split())
        drawn[place] = (
            " ".join(generator.choice(words, number)),
            "All rights reserved. Click here to accept cookies. " * (number // 7 + 1),
            " ".join(generator.choice(MARKS, number)),
        )[place // 2 % 3]
        score[place] -= 6
    columns = {"id": [f"{row:05d}" for row in range(SIZE)], "text": drawn, "score": score}
    pq.write_table(pa.table(columns), tmp_path / "texts.parquet", row_group_size=2000)
    (tmp_path / "clean.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in clean))
    settings = {
        "source": {"path": str(tmp_path / "texts.parquet")},
        "quality": {
            "prune_fraction": 0.0,
            "duplicates": "keep",
            "scores": [{"name": "score", "kind": "column", "column": "score"}],
        },
        "embedding": {"method": "lexical", "dimension": 128},
        "selection": {"ratio": 0.4, "metric": "disf", "quality_weight": 0.3},
        "evaluation": {
            "sets": [{"name": "clean", "path": str(tmp_path / "clean.jsonl")}],
            "arms": ["ours", "random"],
            "model": "tiny",
            "tokens": 20_000,
            "seeds": 3,
            "learning_rates": [8e-3],
        },
    }
    run = plan_run(tmp_path / "run", parse_settings(settings))
    for stage in stages_of(run.settings):
        if stage not in ("composition", "report"):
            run_stage(run, stage, Compute(device="cpu", workers=2))
    found = findings(run)
    assert found is not None
    (pair,) = found.pairs
    assert pair["verdict"] == "better" and pair["high"] < 0
    assert found.metrics["proxy"] == {"agreed": 1, "decided": 1}
