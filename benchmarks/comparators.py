"""All comparators on real texts: quality, diversity, near-copies, time.

A tenth is selected by each method. CPU seconds are of the whole call, with scales and figures.
`gain` is that of the objective of DiSF and quality at lambda 0.5 over random, as a share of
DATAMASK's; coverage is facility location on probes that no method used. DSIR's target are as many
of the best other documents of the corpus as are selected; QuaDMix samples within the four domains
of the corpus, or within packages for `text`; QuRating samples at temperatures 1 and 2. ODiS has the
five parts of the heuristic as scores, of which quality is the mean.
Near-copies are selected documents whose word 5-grams overlap with those of an earlier selected one
(Jaccard similarity of at least 0.8, exact). Groups are packages and Debian's sections.

Data `text` need no download: docstrings of installed packages and their lexical vectors. They have
one domain, so DSIR and the picture are left out.

    python -m benchmarks.comparators [--rows 20000] [--data text]
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from benchmarks.inputs import best_other_texts, docstrings, load, semantic_documents
from benchmarks.learner import RATIO, coverage
from benchmarks.methods import chosen
from benchmarks.near_copies import OVERLAP, kept_copies, ngrams_of, overlapping
from benchmarks.text_sampling import dsir, quadmix, qurating
from datamask.config.compute import Compute
from datamask.config.selection import Selection
from datamask.learning.data import raw_values
from datamask.learning.learner import learn_mask, shard_data
from datamask.objectives.weighted import build_terms
from datamask.quality.heuristic import parts_of
from datamask.report.sample import embedding_map

METHODS: dict[str, dict[str, Any]] = {
    "DATAMASK, DiSF": {"metric": "disf"},
    "DATAMASK, facility location": {"metric": "facility_location"},
    "DATAMASK, pairwise": {"metric": "pairwise"},
    "random": {"method": "random"},
    "top quality": {"method": "top_quality"},
    "SemDeDup": {"method": "semdedup"},
    "D4": {"method": "d4"},
    "cluster-balanced": {"method": "cluster_balanced"},
}
OWN = {
    "quality − density": "quality_minus_density",
    "GIST": "gist",
    "SPOKES": "spokes",
    "ODiS": "odis",
}
TEMPERATURES = {"QuRating, temperature 1": 1.0, "QuRating, temperature 2": 2.0}
SAMPLING = ("QuaDMix-like", *TEMPERATURES)
METRICS = ("disf", "pairwise", "benchmarks.spectrum:Vendi")
HEADING = """\
| method | CPU seconds | gain | quality | DiSF ↓ | pairwise ↓ | Vendi score ↑ | coverage ↑ \
| near-copies | groups | shares of {domains} |
|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|:--|"""


class Corpus(NamedTuple):
    """The first *rows* documents of `semantic` or `text`, with their files in a folder."""

    folder: Path
    data: str
    rows: int

    @property
    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors and quality."""
        return load(*self)

    @property
    def documents(self) -> pa.Table:
        """Text, domain and dump."""
        if self.data == "semantic":
            return semantic_documents(self.folder, self.rows)
        return docstrings(self.folder, self.rows, np.random.default_rng(0))


def select(corpus: Corpus, name: str) -> tuple[np.ndarray, float]:
    """The mask of a method, and its CPU seconds without loading."""
    features, quality = corpus.vectors
    count = round(RATIO * corpus.rows)
    documents = corpus.documents
    texts = documents["text"].to_pylist()
    if name in METHODS:
        selection = Selection(**{"ratio": RATIO} | METHODS[name])
        given = features, quality, selection, count
        start = time.process_time()
        learned = learn_mask(*given, seed=0, compute=Compute(device="cpu"))
        return learned.selected, time.process_time() - start
    if name in OWN:
        parts = np.array([parts_of(text) for text in texts]).T if name == "ODiS" else ()
        scores = {f"part {number}": part for number, part in enumerate(parts)}
        start = time.process_time()
        mask = chosen(OWN[name], features, quality, count, 0.5, scores)
        return mask, time.process_time() - start
    target = best_other_texts(corpus.folder, corpus.rows, count) if name == "DSIR" else []
    generator = np.random.default_rng(0)
    start = time.process_time()
    if name == "DSIR":
        weights = dsir(texts, target, generator)
    elif name in TEMPERATURES:
        weights = qurating(quality, generator, temperature=TEMPERATURES[name])
    else:
        within = "domain" if corpus.data == "semantic" else "dump"
        weights = quadmix(quality, documents[within].to_numpy(), RATIO, generator)
    selected = np.zeros(corpus.rows, bool)
    selected[np.argsort(-weights)[:count]] = True
    return selected, time.process_time() - start


def measure(corpus: Corpus, name: str) -> dict[str, Any]:
    """One line of the table."""
    features, quality = corpus.vectors
    selected, seconds = select(corpus, name)
    data = shard_data(features, quality, {}, Compute(device="cpu"))
    terms = [build_terms(Selection(metric=metric))[1] for metric in METRICS]
    values = raw_values(terms, data, torch.from_numpy(selected))
    rows_selected = np.flatnonzero(selected)
    return {
        "name": name,
        "seconds": seconds,
        "quality": float(quality[selected].mean()),
        **values,
        "coverage": coverage(features, rows_selected),
        "selected": rows_selected.tolist(),
    }


def table(corpus: Corpus, found: list[dict[str, Any]]) -> str:
    """The measured methods as Markdown."""
    documents, rows = corpus.documents, corpus.rows
    pairs = overlapping(ngrams_of(documents["text"]), OVERLAP)
    domains, groups = documents["domain"].to_numpy(), documents["dump"].to_numpy()
    names = sorted(set(domains))
    gains = _gains(corpus, found)
    total = len(np.unique(groups))
    lines = [
        f"{date.today()}, {rows} documents of {total} groups, {round(RATIO * rows)} selected; "
        f"{len(np.unique(pairs[:, 1]))} documents nearly copy an earlier one.",
        "",
        HEADING.format(domains=", ".join(names)),
    ]
    for row, gain in zip(found, gains, strict=True):
        selected = np.zeros(rows, bool)
        selected[row["selected"]] = True
        shares = " / ".join(f"{(domains[selected] == name).mean():.0%}" for name in names)
        lines.append(
            f"| {row['name']} | {row['seconds']:.1f} | {gain:.0%} | {row['quality']:.3f} | "
            f"{row['disf']:.3f} | {row['pairwise']:.4f} | {np.exp(row['vendi']):.1f} | "
            f"{row['coverage']:.4f} | {kept_copies(pairs, selected)} | "
            f"{len(np.unique(groups[selected]))} | {shares} |"
        )
    return "\n".join(lines)


def _gains(corpus: Corpus, found: list[dict[str, Any]]) -> list[float]:
    """The joint objective of each method, 0 for random and 1 for the mask learned by it."""
    features, quality = corpus.vectors
    given, count = Selection(metric="disf"), round(RATIO * corpus.rows)
    scales = learn_mask(features, quality, given, count, seed=0).metrics["scales"]
    values = {
        row["name"]: row["quality"] / scales["quality"] - row["disf"] / scales["disf"]
        for row in found
    }
    zero, one = values["random"], values["DATAMASK, DiSF"]
    return [(value - zero) / (one - zero) for value in values.values()]


def picture(corpus: Corpus, found: list[dict[str, Any]], path: Path) -> None:
    """t-SNE of all documents and of those that some methods select, coloured by domain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    places_file = corpus.folder / f"semantic-{corpus.rows}-map.npy"
    if not places_file.exists():
        features, _ = corpus.vectors
        np.save(places_file, embedding_map(np.asarray(features, np.float32), seed=0))
    places = np.load(places_file)
    domains = corpus.documents["domain"].to_numpy()
    masks = {row["name"]: np.array(row["selected"]) for row in found}
    shown = {"all": np.arange(corpus.rows)}
    shown |= {name: masks[name] for name in ("random", "top quality", "DATAMASK, DiSF")}
    figure, axes = pyplot.subplots(1, len(shown), figsize=(13, 3.6), layout="constrained")
    for axis, (name, rows_shown) in zip(axes, shown.items(), strict=True):
        for domain in sorted(set(domains)):
            some = rows_shown[domains[rows_shown] == domain]
            size = 0.3 if name == "all" else 1.5
            axis.scatter(*places[some].T, s=size, label=domain, linewidths=0)
        axis.set(title=name, xticks=[], yticks=[])
        axis.sharex(axes[0])
        axis.sharey(axes[0])
    marks = axes[1].get_legend_handles_labels()
    figure.legend(*marks, markerscale=8, ncols=4, loc="outside lower center")
    figure.savefig(path, dpi=90)


def main() -> None:
    """Measure what is missing, then write table and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--data", choices=("semantic", "text"), default="semantic")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    arguments = parser.parse_args()
    corpus = Corpus(arguments.folder, arguments.data, arguments.rows)
    is_semantic = corpus.data == "semantic"
    kept = corpus.folder / f"comparators-{corpus.data}-{corpus.rows}.jsonl"
    found = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for name in (*METHODS, *OWN, *SAMPLING, *(["DSIR"] if is_semantic else [])):
        if name not in {row["name"] for row in found}:
            found.append(measure(corpus, name))
            with kept.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
            print(f"{name}: {found[-1]['seconds']:.1f} s", flush=True)
    text, written = table(corpus, found), corpus.folder / f"comparators-{corpus.data}.md"
    written.write_text(text + "\n")
    print(f"{text}\n{written}")
    if is_semantic:
        picture(corpus, found, corpus.folder / "comparators.png")


if __name__ == "__main__":
    main()
