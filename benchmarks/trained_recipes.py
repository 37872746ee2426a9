"""Recipes of selection compared by trained models: the command line's evaluation, corpus by corpus.

Corpora are those of `benchmarks.noisy_crawl`, with the tokenizer that `benchmarks.sizes` keeps
there. For each, an ordinary run makes the recommended recipe's selection with the file `-examples`
as its score, and trains models of it and of four rivals, which are scored on the file `-held-out`.
One of these is the fixed recipe, of a run of its own: the best 50 %, lambda 0.3.
Runs are kept below `trained/` in the corpora's folder, and a finished one is not made again.

    python -m benchmarks.trained_recipes runs/crawl --model runs/all-MiniLM-L6-v2 --folds 0 1
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.corpus import interval
from datamask.evaluation.verdict import holm
from datamask.runs.files import write_parquet

ARMS = ("ours", "fixed", "top_quality", "filtered_random", "random")
SHARE = 0.1
"""Of the corpus's tokens, that every arm selects."""
COLUMNS = ("bits_per_byte", "ngram")


def prepare(folder: Path, setting: str, fold: int, model: Path) -> dict[str, Any]:
    """Write a corpus as a source, with unique ids and counts of tokens; the settings of its run."""
    from tokenizers import Tokenizer

    corpus = folder / f"{setting}-{fold}"
    source = folder / "trained" / f"{corpus.name}.parquet"
    documents = pq.read_table(f"{corpus}.parquet")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [len(code.ids) + 1 for code in tokenizer.encode_batch(documents["text"].to_pylist())]
    columns = {
        "id": [f"{row:06d}" for row in range(len(tokens))],
        "text": documents["text"],
        "domain": documents["domain"],
        "tokens": tokens,
    }
    table = pa.table(columns)
    write_parquet(source, table.schema, [table])
    return {
        "source": {"path": str(source), "windows": 1, "columns": {"token_count": "tokens"}},
        "plan": {"rows_per_shard": len(tokens)},
        "quality": {
            "scores": [
                {
                    "name": "examples",
                    "kind": "examples",
                    "path": f"{corpus}-examples.parquet",
                    "least_correlation": 0,
                }
            ],
            "prune_fraction": 0.5,
        },
        "embedding": {
            "model": str(model),
            "prefix": "",
            "dimension": 384,
            "max_tokens": 128,
            "dtype": "float32",
        },
        "selection": {"tokens": int(sum(tokens) * SHARE), "quality_weight": 0.3},
        "compute": {"workers": 1},
    }


def evaluation(folder: Path, setting: str, fold: int) -> dict[str, Any]:
    """The settings of an evaluation that compares a run with the run of the fixed recipe."""
    corpus, fixed = folder / f"{setting}-{fold}", folder / "trained" / f"{setting}-{fold}-fixed"
    return {
        "sets": [{"name": "held out", "path": f"{corpus}-held-out.parquet"}],
        "arms": [ARMS[0], {"name": ARMS[1], "kind": "run", "path": str(fixed)}, *ARMS[2:]],
        "model": "tiny",
        "tokens": 200_000,
        "seeds": 3,
    }


def rebuild(run: Path, settings: dict[str, Any], *more: str) -> None:
    """Make a run by the command line."""
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(settings))
    command = Path(sys.executable).with_name("datamask")
    subprocess.run([command, "rebuild", run, "--config", config, *more], check=True)


def trained(folder: Path, setting: str, fold: int, model: Path) -> dict[str, np.ndarray]:
    """Bits per byte of each arm in a corpus: of trained models, and of the trigram model."""
    run = folder / "trained" / f"{setting}-{fold}"
    results = run / "evaluation.parquet"
    if not results.exists():
        fixed = run.with_name(f"{run.name}-fixed")
        settings = prepare(folder, setting, fold, model)
        rebuild(fixed, settings)
        del settings["quality"]["prune_fraction"], settings["selection"]["quality_weight"]
        settings["evaluation"] = evaluation(folder, setting, fold)
        rebuild(run, settings, "--from", str(fixed))
    rows = pq.read_table(results, columns=["arm", "other", *COLUMNS]).to_pylist()
    own = [row for row in rows if row["other"] is None]
    return {row["arm"]: np.array([row[name] for name in COLUMNS]) for row in own}


def show(setting: str, corpora: list[dict[str, np.ndarray]]) -> None:
    """Print bits per byte by corpus, and the recipe minus each other arm with Holm's p value."""
    recipe, *others = ARMS
    differences = {
        arm: np.array([corpus[recipe] - corpus[arm] for corpus in corpora]).T for arm in others
    }
    tests = {arm: [interval(by_measure) for by_measure in differences[arm]] for arm in others}
    p_values = dict(zip(others, holm(np.array([tests[arm][0][2] for arm in others])), strict=True))
    print(f"\n| {setting} | bits per byte by corpus | mean | {recipe} minus it | by trigrams |")
    for arm in ARMS:
        bits = [corpus[arm][0] for corpus in corpora]
        cells = [" ".join(f"{value:.3f}" for value in bits), f"{np.mean(bits):.3f}"]
        if arm != recipe:
            model, trigrams = ("{:+.3f} ± {:.3f}".format(*test) for test in tests[arm])
            cells += [f"{model} (p = {p_values[arm]:.3f})", trigrams]
        print(f"| {arm} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Train the models that have no result yet, then print a table for each setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.noisy_crawl")
    parser.add_argument("--model", type=Path, required=True, help="all-MiniLM-L6-v2")
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--settings", nargs="+", default=["B"])
    arguments = parser.parse_args()
    folder, model = arguments.folder.resolve(), arguments.model.resolve()
    results = {
        key: trained(folder, *key, model) for key in product(arguments.settings, arguments.folds)
    }
    for setting in arguments.settings:
        show(setting, [results[setting, fold] for fold in arguments.folds])


if __name__ == "__main__":
    main()
