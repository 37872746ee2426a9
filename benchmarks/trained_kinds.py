"""Recipes of selection compared by trained models, on each kind of held-out text.

Webs are those of `benchmarks.kinds`, and their tokenizer is the one that `benchmarks.sizes` keeps
there. For each web, a run of the command line with the default recipe (the file `-examples` is its
score, vectors are lexical) trains models of its selection and of three rivals. They are scored on
the held-out texts of each kind. Runs are kept below `trained/` in the webs' folder, and a finished
one is not made again.

The examples of a web are sorted by kind, so their score is tested on kinds that it was not fitted
to. With `--shuffled` they are in a random order, as docs/scores.md advises for such files; these
runs take what is the same from the others.

    python -m benchmarks.trained_kinds runs/webs --folds 0 1 2 3 4
    python -m benchmarks.trained_kinds runs/webs --folds 0 1 2 3 4 --shuffled
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.corpus import interval
from benchmarks.trained_recipes import prepare, rebuild
from datamask.evaluation.verdict import holm
from datamask.runs.files import write_parquet

ARMS = ("ours", "filtered_random", "top_quality", "random")
FIGURES = ("mixture", "mean over kinds")


def trained(folder: Path, web: str, tokens: int, is_shuffled: bool) -> np.ndarray:
    """Bits per byte of models by arm and figure; the mixture weighs kinds as the web does."""
    setting, fold = web.split("-")
    sorted_run, shuffled_run = (folder / "trained" / name for name in (web, f"{web}-shuffled"))
    run = shuffled_run if is_shuffled else sorted_run
    kinds, texts = {}, pq.read_table(folder / f"{web}-held-out.parquet")
    wanted = pq.read_table(folder / f"{web}.parquet", columns=["domain"])["domain"].to_pylist()
    for kind in sorted(set(texts["domain"].to_pylist())):
        kinds[kind] = folder / "trained" / f"{web}-{kind}.parquet"
        of_kind = texts.filter(pc.equal(texts["domain"], kind)).select(["id", "text"])
        write_parquet(kinds[kind], of_kind.schema, [of_kind])
    if not (run / "evaluation.parquet").exists():
        settings = prepare(folder, setting, int(fold), Path())
        del settings["quality"]["prune_fraction"], settings["selection"]["quality_weight"]
        settings["embedding"] = {"method": "lexical"}
        settings["evaluation"] = {
            "sets": [{"name": kind, "path": str(path)} for kind, path in kinds.items()],
            "arms": [*ARMS],
            "model": "tiny",
            "tokens": tokens,
            "seeds": 2,
        }
        if is_shuffled:
            examples = pq.read_table(folder / f"{web}-examples.parquet")
            order = np.random.default_rng(int(fold)).permutation(len(examples))
            path = run.with_name(f"{run.name}-examples.parquet")
            write_parquet(path, examples.schema, [examples.take(order)])
            settings["quality"]["scores"][0]["path"] = str(path)
        rebuild(run, settings, *(["--from", str(sorted_run)] if is_shuffled else []))
    rows = pq.read_table(run / "evaluation.parquet").to_pylist()
    of = {(row["arm"], row["set"]): row["bits_per_byte"] for row in rows if row["other"] is None}
    bits = np.array([[of[arm, kind] for kind in kinds] for arm in ARMS])
    shares = np.array([wanted.count(kind) for kind in kinds])
    return np.stack([bits @ (shares / shares.sum()), bits.mean(1)], axis=1)


def main() -> None:
    """Train the models that have no result yet, and print ours minus each rival."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks.kinds")
    parser.add_argument("--setting", default="8000")
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tokens", type=int, default=150_000, help="that a model is trained on")
    parser.add_argument("--shuffled", action="store_true", help="examples are in a random order")
    given = parser.parse_args()
    folder = given.folder.resolve()
    (folder / "trained").mkdir(exist_ok=True)
    webs = [f"{given.setting}-{fold}" for fold in given.folds]
    bits = np.stack([trained(folder, web, given.tokens, given.shuffled) for web in webs])
    print("| arm |", *(f"{figure} | ours minus it |" for figure in FIGURES))
    for number, arm in enumerate(ARMS):
        cells = []
        for figure in range(len(FIGURES)):
            mean, half, _ = interval((bits[:, 0] - bits[:, number])[:, figure])
            cells.append(f"{bits[:, number, figure].mean():.3f} | {mean:+.3f} ± {half:.3f} |")
        print(f"| {arm} |", *cells)
    tests = [interval((bits[:, 0] - bits[:, 1])[:, figure]) for figure in range(len(FIGURES))]
    adjusted = holm(np.array([p for _, _, p in tests]))
    print("p (Holm), ours minus filtered_random:", *(f"{p:.3f}" for p in adjusted))
    print("by web:", *np.round(bits[:, 0] - bits[:, 1], 3).tolist())


if __name__ == "__main__":
    main()
