"""Sensitivity to the learner's settings: one figure with the spread over three seeds.

Reviewers of the paper asked for the sensitivity to G, learning rate, initial logits, batch and
steps. Each setting varies alone around the paper's settings (policy gradient), and around this
project's defaults (`expected`) if they have the setting. The value is the gain of the joint
objective over random, relative to the largest gain with the same seed.

    python -m benchmarks.sensitivity [--data semantic] [--rows 4000] [--metric disf]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import WIDTHS, load

SEEDS = (0, 1, 2)
RECIPE: dict[str, Any] = {
    "estimator": "policy_gradient",
    "steps": 1000,
    "batch_fraction": 0.1,
    "rollouts": 128,
    "init": "quality",
    "tolerance": 0,
    "swap_refinement": 0,
}
SWEEPS: dict[str, tuple[Any, ...]] = {
    "rollouts": (8, 32, 128, 256),
    "initial_lr": (1, 3, 10, 30, 100),
    "init": ("uniform", "quality"),
    "batch_fraction": (0.02, 0.05, 0.1, 0.2),
    "steps": (100, 300, 1000, 3000),
}
EXPECTED_SWEEPS: dict[str, tuple[Any, ...]] = {
    "init": ("uniform", "quality"),
    "steps": (10, 30, 100, 300),
}
"""Its batches hold 2,048 documents at least, so `batch_fraction` says nothing about so small a
shard."""


def points() -> Iterator[tuple[str, str, Any, int]]:
    """Estimator, setting, value, seed."""
    for estimator, sweeps in (("policy_gradient", SWEEPS), ("expected", EXPECTED_SWEEPS)):
        for setting, values in sweeps.items():
            for value in values:
                for seed in SEEDS:
                    yield estimator, setting, value, seed


def gain(
    vectors: tuple[Path, str, int], metric: str, estimator: str, setting: str, value: Any, seed: int
) -> float:
    """The joint objective's gain over random at one point."""
    from datamask.config.compute import Compute
    from datamask.config.selection import Selection
    from datamask.learning.learner import learn_mask

    features, quality = load(*vectors)
    base = RECIPE if estimator == "policy_gradient" else {"estimator": "expected", "tolerance": 0}
    settings = base | {"metric": metric, setting: value}
    if setting == "initial_lr":
        settings["final_lr"] = value / 10
    # The scales follow from the seed, so the values of different seeds have different units.
    found = learn_mask(
        features, quality, Selection(**settings), len(quality) // 10, seed=seed, compute=Compute()
    )
    objective = found.metrics["objective"]
    best = objective["top_quality"] - objective["random"]
    return float((objective["selected"] - objective["random"]) / abs(best))


def plot(found: list[dict[str, Any]], metric: str, path: Path) -> None:
    """One panel per setting: mean over seeds, and the range from minimum to maximum."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # A seed's scales make its gains' unit, so each is compared with the best of the same seed.
    top = {seed: max(p["gain"] for p in found if p["seed"] == seed) for seed in SEEDS}
    figure, axes = pyplot.subplots(1, len(SWEEPS), figsize=(16, 3.6), layout="constrained")
    for axis, setting in zip(axes, SWEEPS, strict=True):
        for estimator, colour in (("policy_gradient", "#D55E00"), ("expected", "#0072B2")):
            some = [p for p in found if (p["estimator"], p["setting"]) == (estimator, setting)]
            if not some:
                continue
            values = list(dict.fromkeys(p["value"] for p in some))
            shares = [
                [p["gain"] / top[p["seed"]] for p in some if p["value"] == value]
                for value in values
            ]
            places = range(len(values)) if setting == "init" else values
            axis.plot(places, [np.mean(s) for s in shares], "o-", color=colour, label=estimator)
            low, high = [min(s) for s in shares], [max(s) for s in shares]
            axis.fill_between(places, low, high, color=colour, alpha=0.25)
            if setting == "init":
                axis.set_xticks(list(places), values)
            else:
                axis.set_xscale("log")
                axis.set_xticks(list(SWEEPS[setting]), list(map(str, SWEEPS[setting])))
                axis.minorticks_off()
        axis.set(xlabel=setting, ylim=(None, 1.02))
    axes[0].set_ylabel(f"share of the best gain ({metric}, lambda 0.5)")
    axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run missing points, then draw the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="semantic", choices=WIDTHS)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--metric", default="disf")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    vectors = arguments.folder, arguments.data, arguments.rows
    load(*vectors)
    name = f"sensitivity-{arguments.data}-{arguments.metric}-{arguments.rows}"
    kept = arguments.folder / f"{name}.jsonl"
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(p["estimator"], p["setting"], p["value"], p["seed"]) for p in found}
    # One process after another: memory of one point does not burden the next.
    with multiprocessing.get_context("spawn").Pool(1) as pool, kept.open("a") as file:
        for point in points():
            if point in done:
                continue
            reached = pool.apply(gain, (vectors, arguments.metric, *point))
            names = ("estimator", "setting", "value", "seed")
            found.append(dict(zip(names, point, strict=True)) | {"gain": reached})
            file.write(json.dumps(found[-1]) + "\n")
            file.flush()
            print(*point, f"{reached:.3f}", flush=True)
    plot(found, arguments.metric, arguments.folder / f"{name}.png")
    print(arguments.folder / f"{name}.png")


if __name__ == "__main__":
    main()
