"""Scores from examples of one domain, on sites whose good and bad texts are known.

A site is a package of Debian's documentation. Its good texts are sections of prose. Its bad texts
are sections without prose (indexes, tables, listings), lists of links, and garbled sections. The
examples are good texts of one site, or four fifths of them are. The score is fitted against other
documents in several ways, and compared by its AUC of good and bad texts inside each site.

    python -m benchmarks.one_domain --work runs/apt
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.debian_texts import Apt, document, documentation, is_prose
from benchmarks.noisy_crawl import _links, _pieces, garbled
from datamask.quality.fitting import concordance
from datamask.quality.word_model import features_of, fit_words

SITES = [
    *("apache2-doc", "cmake-doc", "git-doc", "postgresql-doc-15", "python3.11-doc"),
    *("python-django-doc", "python-sqlalchemy-doc", "debian-handbook"),
]
GOOD, BAD, EXAMPLES = 400, 600, 300
"""Texts of a site in the source, and examples."""
WINDOWS = 3


def texts_of(folder: Path, site: str, seed: int) -> tuple[list[str], list[str]]:
    """Good and bad texts of a site, distinct and in random order."""
    generator = np.random.default_rng(seed)
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for text in {text.text for text in documentation(folder, site)}:
        kinds[is_prose(text)].append(text)
    good = sorted(kinds[True], key=lambda text: document(text, "", "").id)
    spoilt = [garbled(text, generator) for text in good[GOOD + EXAMPLES :][: BAD // 3]]
    pages = sorted(path for path in folder.rglob("*.htm*") if path.is_file())
    links = [piece for path in pages[:400] for piece in _pieces(_links(path), generator)]
    bad: list[str] = [*spoilt]
    for texts in (sorted({*links}), sorted(kinds[False])):
        bad += [texts[row] for row in generator.permutation(len(texts))[: BAD // 3]]
    return good[: GOOD + EXAMPLES], bad


def fits(
    features: Any, sites: np.ndarray, own: np.ndarray, of_own: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """The scores of all documents, by how the score is fitted.

    *sites* is −1 for rows that are not in the source. *own* are rows of examples, and *of_own*
    their sites.
    """
    source = np.flatnonzero(sites >= 0)
    shares = np.bincount(of_own, minlength=sites.max() + 1) / len(own)
    there = np.bincount(sites[source], minlength=len(shares))
    most = (there[shares > 0] / shares[shares > 0]).min()
    generator = np.random.default_rng(seed)
    alike = [
        generator.choice(source[sites[source] == site], int(most * share), replace=False)
        for site, share in enumerate(shares)
    ]

    def fitted(others: np.ndarray) -> np.ndarray:
        rows = np.concatenate([own, others])
        targets = np.repeat([1.0, 0.0], [len(own), len(others)])
        model, figures = fit_words(features[rows], targets)[:2]
        print(f"    {len(others)} others, AUC {figures['auc']:.3f}", flush=True)
        return model.scores(features)

    now, matched = fitted(source), fitted(np.concatenate(alike))
    return {"all": now, "same shares": matched, "sum of both scores": now + matched}


def main() -> None:
    """Print the mean AUC inside the sites, for each way to fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps the downloads")
    parser.add_argument("--sites", nargs="+", default=SITES)
    arguments = parser.parse_args()
    apt = Apt(arguments.work.resolve())
    texts: list[str] = []
    sites: list[int] = []
    is_good: list[bool] = []
    examples: list[np.ndarray] = []
    for number, site in enumerate(arguments.sites):
        good, bad = texts_of(apt.unpack(site)[0], site, number)
        print(f"{site}: {len(good)} good, {len(bad)} bad", flush=True)
        number_good = len(good) - EXAMPLES
        examples.append(np.arange(EXAMPLES) + len(texts) + number_good)
        texts += good + bad
        sites += [number] * number_good + [-1] * EXAMPLES + [number] * len(bad)
        is_good += [True] * len(good) + [False] * len(bad)
    features, _ = features_of(texts, WINDOWS)
    own_site = {row: site for site, rows in enumerate(examples) for row in rows.tolist()}
    of_site, truth = np.array(sites), np.array(is_good, float)
    table: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for home, site in enumerate(arguments.sites):
        others = [rows[: EXAMPLES // 5 // (len(examples) - 1) + 1] for rows in examples]
        others[home] = examples[home][: EXAMPLES * 4 // 5]
        for share, own in (("all", examples[home]), ("four fifths", np.concatenate(others))):
            print(f"  examples of {site}: {share}", flush=True)
            of_own = np.array([own_site[row] for row in own.tolist()])
            for how, scores in fits(features, of_site, own, of_own, home).items():
                sets = [of_site == number for number in range(len(examples))] + [of_site >= 0]
                *inside, whole = (concordance(scores[rows], truth[rows])[0] for rows in sets)
                best = scores >= np.quantile(scores[of_site >= 0], 0.9)
                own_share = float((of_site[best & (of_site >= 0)] == home).mean())
                away = np.delete(inside, home)
                figures = [inside[home], away.mean(), away.min(), whole, own_share]
                table[share, how].append(figures)
                print(f"    {how}: " + " ".join(f"{figure:.3f}" for figure in figures), flush=True)
    print("\n| examples of one site | others | its site | other sites | worst | all | best tenth |")
    print("|:--|:--|--:|--:|--:|--:|--:|")
    for (share, how), rows in table.items():
        means = " | ".join(f"{figure:.3f}" for figure in np.mean(rows, axis=0))
        print(f"| {share} | {how} | {means} |")


if __name__ == "__main__":
    main()
