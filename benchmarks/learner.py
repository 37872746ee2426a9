"""All methods on three metrics: objective value, time and memory, in one table.

Each case runs in its own process and is stored as a line of `learner.jsonl`, so that an interrupted
benchmark resumes. Times are of the method alone: scales are measured before it, final values after
it. Facility location is evaluated on documents that no method used as probes. Values are in units
of the objective's scale; `share` is relative to the best gain over random of all methods in the
same case. `achieved` counts the products that guide the ranking, in multiples of N x D x D, their
share of its CPU time, the passes over the embeddings, their rate, and the memory that it takes.

    python -m benchmarks.learner [--full] [--device cuda] [--only data=text,rows=10000]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.achieved import achieved, ceilings, counted_products
from benchmarks.inputs import WIDTHS, load
from benchmarks.other_libraries import SELECTORS

RATIO = 0.1
METRICS = ("disf", "facility_location", "pairwise")
LAMBDAS = (0.0, 0.1, 0.5)
POLICY_GRADIENT_STEPS = {10_000: 5000, 100_000: 20}
"""As published where that takes minutes; beyond, so few that it says only what a step costs."""

GROWTH = (250_000, 500_000, 2_000_000, 4_000_000)
"""Further sizes at which only the default is run, to see how its time grows."""

SHORTER = ("policy_gradient_50", "policy_gradient_500")
"""Policy gradient broken off after so many steps, for the plot of value against time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    data: str
    rows: int
    metric: str
    quality_weight: float
    method: str
    device: str = "cpu"


def cases(full: bool, device: str) -> list[Case]:
    """The cases, the cheap and informative ones first."""
    sizes = (10_000, 100_000, 1_000_000) if full else (10_000, 100_000)
    made = []
    for rows in sizes:
        for weight in LAMBDAS:
            for data in WIDTHS:
                for metric in METRICS:
                    for method in _methods(metric, rows):
                        if method in SELECTORS and weight:
                            continue  # they know no second term
                        made.append(Case(data, rows, metric, weight, method, device))
    made += [
        Case("text", 10_000, metric, 0.0, name, device) for metric in METRICS for name in SHORTER
    ]
    if full:
        made += [
            Case("clustered", rows, "disf", 0.5, method, device)
            for rows in GROWTH
            for method in ("expected", "expected_bfloat16")
        ]
    return sorted(
        made, key=lambda c: (c.rows, c.method.startswith("policy_gradient"), c.quality_weight)
    )


def _methods(metric: str, rows: int) -> list[str]:
    methods = ["random", "top_quality", "expected", "expected_bfloat16"]
    if rows <= 100_000:
        greedy = ["lazy_greedy"] if rows <= 10_000 else []
        methods += greedy if metric == "facility_location" else ["greedy"]
        methods += ["semdedup", "policy_gradient"]
    if rows <= 10_000:
        methods += ["d4", "cluster_balanced"]
        if metric == "facility_location":
            methods += [name for name in SELECTORS if importlib.util.find_spec(name)]
    return methods


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """Learn once; facility location is evaluated on other probes."""
    import torch

    from datamask.config.compute import Compute
    from datamask.config.selection import Selection
    from datamask.learning.learner import learn_mask

    features, quality = load(folder, case.data, case.rows)
    if case.method in SELECTORS:
        return _run_library(case, features, quality)
    settings: dict[str, Any] = {
        "metric": case.metric,
        "quality_weight": case.quality_weight,
        "ratio": RATIO,
    }
    compute: dict[str, Any] = {"device": case.device}
    if case.method.startswith("expected"):
        settings["estimator"] = "expected"
        compute["matmul"] = "bfloat16" if case.method.endswith("bfloat16") else "float32"
    elif case.method.startswith("policy_gradient"):
        shorter = case.method.removeprefix("policy_gradient").strip("_")
        steps = int(shorter or POLICY_GRADIENT_STEPS[case.rows])
        settings |= {
            "estimator": "policy_gradient",
            "steps": steps,
            "tolerance": 0,
            "swap_refinement": 0,
        }
    else:
        settings["method"] = case.method
    # What is not the method's own: code loaded, threads started.
    warm = np.random.default_rng(0).standard_normal((2000, 64), dtype=np.float32)
    warm /= np.linalg.norm(warm, axis=1, keepdims=True)
    selection, machine = Selection(**settings), Compute(**compute)
    learn_mask(warm, warm[:, 0], selection.model_copy(update={"steps": 3}), 200, seed=0)
    start = time.perf_counter()
    with counted_products() as products:
        learned = learn_mask(
            features, quality, selection, round(RATIO * case.rows), seed=0, compute=machine
        )
    whole = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    metrics = learned.metrics
    value, random = metrics["objective"]["selected"], metrics["objective"]["random"]
    if case.metric == "facility_location":
        drawn = np.random.default_rng(1).permutation(case.rows)[: round(RATIO * case.rows)]
        factor = (1 - case.quality_weight) / metrics["scales"][case.metric]
        terms = metrics["terms"][case.metric]
        rows = np.flatnonzero(learned.selected)
        value += factor * (coverage(features, rows) - terms["selected"])
        random += factor * (coverage(features, drawn) - terms["random"])
    return asdict(case) | {
        "value": value,
        "random": random,
        "quality": metrics["terms"]["quality"]["selected"],
        "seconds": learned.curve["seconds"][-1],
        "whole_seconds": whole,
        "steps": metrics["steps"],
        "optimality_gap": metrics["optimality_gap"],
        "peak_gib": peak,
        "products": products,
        "curve": [learned.curve["seconds"], learned.curve["objective"]],
        "threads": torch.get_num_threads(),
    }


def _run_library(case: Case, features: np.ndarray, quality: np.ndarray) -> dict[str, Any]:
    """The mask of another library, evaluated like those of `random_mask` and the learner."""
    from datamask.config.compute import Compute
    from datamask.config.selection import Selection
    from datamask.learning.learner import learn_mask

    count = round(RATIO * case.rows)
    start = time.perf_counter()
    rows = SELECTORS[case.method](features, count)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # The scale follows from the seed alone, so any method tells it.
    selection = Selection(metric=case.metric, quality_weight=0.0, method="random", ratio=RATIO)
    drawn = learn_mask(features, quality, selection, count, seed=0, compute=Compute()).metrics
    factor = 1 / drawn["scales"][case.metric]
    others = np.random.default_rng(1).permutation(case.rows)[:count]
    return asdict(case) | {
        "value": factor * coverage(features, rows),
        "random": factor * coverage(features, others),
        "quality": float(quality[rows].mean()),
        "seconds": seconds,
        "whole_seconds": seconds,
        "steps": 0,
        "optimality_gap": None,
        "peak_gib": peak,
        "curve": [[], []],
        "threads": 1,
    }


def coverage(features: np.ndarray, rows: np.ndarray, probes: int = 8192) -> float:
    """Mean largest cosine to the selection, over probes that the learner did not use."""
    asked = np.sort(np.random.default_rng(2).permutation(len(features))[:probes])
    seen = np.asarray(features[asked], np.float32)
    best = np.full(len(seen), -1.0, np.float32)
    for start in range(0, len(rows), 4096):
        part = np.asarray(features[rows[start : start + 4096]], np.float32)
        best = np.maximum(best, (seen @ part.T).max(1))
    return float(best.mean(dtype=np.float64))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one block per data, size and metric."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("data", "rows", "metric", "quality_weight"))
        groups.setdefault(key, []).append(row)
    lines = [
        "| data | documents | metric | lambda | method | value | share | seconds "
        "| time / policy gradient | time / greedy | GiB | achieved |",
        "|:--|--:|:--|--:|:--|--:|--:|--:|--:|--:|--:|:--|",
    ]
    for key in sorted(groups):
        group = groups[key]
        best = max(row["value"] for row in group)
        times = {row["method"]: row["seconds"] for row in group}
        greedy = times.get("greedy", times.get("lazy_greedy"))
        gradient = next((row for row in group if row["method"] == "policy_gradient"), None)
        for row in sorted(group, key=lambda row: -row["value"]):
            gain = (row["value"] - row["random"]) / max(best - row["random"], 1e-12)
            name = row["method"]
            if name.startswith("policy_gradient"):
                name = f"policy_gradient ({row['steps']} steps)"
            whole = gradient is not None and gradient["steps"] == 5000
            cells = [
                *(str(part) for part in key),
                name,
                f"{row['value']:.3f}",
                f"{gain:.1%}",
                f"{row['seconds']:.2f}",
                f"{row['seconds'] / gradient['seconds']:.2%}" if gradient and whole else "–",
                f"{row['seconds'] / greedy:.1%}" if greedy else "–",
                f"{row['peak_gib']:.1f}",
                achieved(row) or "–",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Value against seconds, one panel per metric, quality weight 0."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in rows if r["quality_weight"] == 0 and r["rows"] == 10_000]
    shown = [r for r in shown if r["data"] == "text"]
    figure, axes = pyplot.subplots(1, len(METRICS), figsize=(13, 5), layout="constrained")
    marks = {"greedy": "s", "lazy_greedy": "s", "semdedup": "D"}
    marks |= {"apricot": "v", "submodlib": "P"}
    for axis, metric in zip(axes, METRICS, strict=True):
        for row in (r for r in shown if r["metric"] == metric):
            name = row["method"].replace("_", " ")
            if row["method"] == "expected":
                axis.plot(*row["curve"], "o-", markersize=3, label=name, color="#0072B2")
            elif row["method"] in marks:
                mark = marks[row["method"]]
                axis.plot(row["seconds"], row["value"], mark, label=name, color="#666666")
        # Its own curve tells the values of batches, so it is drawn as masks after some steps.
        gradient = [
            (r["seconds"], r["value"])
            for r in sorted(shown, key=lambda r: r["seconds"])
            if r["metric"] == metric and r["method"].startswith("policy_gradient")
        ]
        if gradient:
            label = "policy gradient (50, 500, 5000 steps)"
            axis.plot(*zip(*gradient, strict=True), "o-", label=label, color="#D55E00")
        random = next((r["random"] for r in shown if r["metric"] == metric), 0)
        axis.axhline(random, color="#bbbbbb", linewidth=1, label="random")
        axis.set(xscale="log", xlabel="seconds", ylabel="objective", title=metric)
        axis.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run missing cases, then write table and plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="up to four million documents too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--only", default="", help="key=value,... of the cases to run")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if arguments.case:
        print(json.dumps(run_case(Case(**json.loads(arguments.case)), folder)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict(item.split("=") for item in arguments.only.split(",") if item)
    kept = folder / "learner.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    names = list(asdict(Case("", 0, "", 0, "")))
    done = {tuple(row[name] for name in names) for row in rows}
    for case in cases(arguments.full, arguments.device):
        fields = asdict(case)
        if tuple(fields.values()) in done:
            continue
        if any(str(fields[name]) not in values.split("/") for name, values in wanted.items()):
            continue
        load(folder, case.data, case.rows)
        command = [sys.executable, "-m", "benchmarks.learner", "--folder", str(folder)]
        found = subprocess.run(
            [*command, "--case", json.dumps(fields)], stdout=subprocess.PIPE, text=True, check=True
        )
        row = json.loads(found.stdout.splitlines()[-1])
        rows.append(row)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{fields} value {row['value']:.3f} in {row['seconds']:.2f} s", flush=True)
    heading = (
        f"{date.today()}, {platform.machine()}, {rows[0]['threads']} threads, "
        f"{arguments.device}: {ceilings(arguments.device)}"
    )
    text = f"{heading}\n\n{table(rows)}\n"
    (folder / "learner.md").write_text(text)
    plot(rows, folder / "learner.png")
    print(text + f"\n{folder / 'learner.md'}, {folder / 'learner.png'}, {kept}")


if __name__ == "__main__":
    main()
