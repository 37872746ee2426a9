"""Precision and recall of the rules of near-duplicates, on pairs and groups that are labelled.

Creates texts of about 200 random words: copies that should be dropped, and texts with much in
common that should stay (`KINDS`). Each document has a random score, so either of a pair may be the
better one. A run drops near-duplicates at a similarity of 0.8, and the labels judge what it drops.
`--set-aside K` judges another rule instead, by the exact sets: Jaccard's similarity without the
n-grams that more than K documents of a site share. A group is a site, but in a share of the groups
of versions of a page (`--mirrored`) each version has a site of its own.

    python -m benchmarks.labelled_copies --rows 5000 [--rule containment]
    python -m benchmarks.labelled_copies --rows 5000 --set-aside 10 [--mirrored 0.5]
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.runs.stages import stages_of

VOCABULARY = [f"word{number}" for number in range(100_000)]
SIMILARITY, CROWD, WORDS = 0.8, 20, 5

KINDS = {
    "reformatted": "the same words with other line breaks and capitals",
    "edited": "three words replaced (Jaccard 0.86)",
    "just similar": "four words replaced (0.82)",
    "just not similar": "five words replaced (0.77)",
    "extended": "15 words more at the end (0.93)",
    "crawled": f"{CROWD} versions of a page, with ten own words each (0.91)",
    "templates": f"{CROWD} texts of 12 own words in a template of 120 (0.83)",
    "quotations": "a text of 170 words, and another that quotes it among 30 own words (0.85)",
    "unrelated": "",
}


def _prose(generator: random.Random, words: int) -> list[str]:
    return generator.choices(VOCABULARY, k=words)


def _replaced(generator: random.Random, words: list[str], number: int) -> list[str]:
    changed = list(words)
    for place in range(number):
        changed[20 + 35 * place] = generator.choice(VOCABULARY)
    return changed


def group(generator: random.Random, kind: str) -> tuple[list[list[str]], int, set[int]]:
    """Texts that have much in common, how many should be dropped, and the ones that may be."""
    text = _prose(generator, 200)
    if kind in ("templates", "crawled"):
        shared, own = (text[:120], 12) if kind == "templates" else (text, 10)
        texts = [[*shared, *_prose(generator, own)] for _ in range(CROWD)]
        return texts, *((0, set()) if kind == "templates" else (CROWD - 1, set(range(CROWD))))
    if kind == "quotations":
        quoting = [*_prose(generator, 15), *text[:170], *_prose(generator, 15)]
        return [text[:170], quoting], 1, {0}
    other = {
        "reformatted": [f"{word.title()}\n" for word in text],
        "edited": _replaced(generator, text, 3),
        "just similar": _replaced(generator, text, 4),
        "just not similar": _replaced(generator, text, 5),
        "extended": [*text, *_prose(generator, 15)],
        "unrelated": _prose(generator, 200),
    }[kind]
    is_copy = kind not in ("just not similar", "unrelated")
    return [text, other], int(is_copy), {0, 1} if is_copy else set()


def _ngrams(words: list[str]) -> set[tuple[str, ...]]:
    plain = [word.strip().lower() for word in words]
    return {tuple(plain[start : start + WORDS]) for start in range(len(plain) - WORDS + 1)}


def dropped_without_common(texts: list[list[str]], scores: list[float], most: int) -> set[int]:
    """Texts of a group that resemble a better, kept one without n-grams of more than *most*."""
    sets = [_ngrams(text) for text in texts]
    counts = Counter(ngram for ngrams in sets for ngram in ngrams)
    own = [{ngram for ngram in ngrams if counts[ngram] <= most} for ngrams in sets]
    kept: list[int] = []
    for number in sorted(range(len(texts)), key=lambda number: -scores[number]):
        unions = [(len(own[number] & own[k]), len(own[number] | own[k])) for k in kept]
        if not any(shared >= SIMILARITY * union > 0 for shared, union in unions):
            kept.append(number)
    return set(range(len(texts))) - set(kept)


def dropped_by_run(table: pa.Table, rule: str | None) -> set[str]:
    """Ids of the documents that a run drops as copies or near-copies; None is the default rule."""
    with tempfile.TemporaryDirectory() as folder:
        source, root = Path(folder) / "source.parquet", Path(folder) / "run"
        pq.write_table(table, source)
        scores = [{"name": "score", "kind": "column", "column": "score"}]
        near = {"similarity": SIMILARITY} | ({"rule": rule} if rule else {})
        settings = parse_settings(
            {
                "source": {"path": str(source), "columns": {"text": "text", "id": "id"}},
                "plan": {"rows_per_shard": len(table) // 5},
                "quality": {"scores": scores, "near_duplicates": near},
                "embedding": {"method": "lexical"},
                "selection": {"ratio": 0.1},
            }
        )
        run = plan_run(root, settings, Compute())
        for stage in stages_of(settings, last="quality"):
            run_stage(run, stage, Compute())
        paths = [str(run.path("quality", shard)) for shard in range(run.num_shards)]
        judged = ds.dataset(paths).to_table(columns=["id", "dropped"])
    is_copy = pc.is_in(judged["dropped"], pa.array(["duplicate", "near_duplicate"]))
    return set(judged.filter(is_copy)["id"].to_pylist())


def _groups(rows: int) -> Iterator[tuple[str, list[list[str]], int, set[int], list[float]]]:
    generator = random.Random(rows)
    for kind in KINDS:
        made = 0
        while made < rows // len(KINDS):
            texts, wanted, right = group(generator, kind)
            made += len(texts)
            yield kind, texts, wanted, right, [generator.random() for _ in texts]


def main() -> None:
    """Print how many documents of each kind are dropped, and precision and recall."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--rule")
    parser.add_argument("--set-aside", type=int, default=0)
    parser.add_argument("--mirrored", type=float, default=0)
    arguments = parser.parse_args()
    groups = list(_groups(arguments.rows))
    keys = [(number, index) for number, of in enumerate(groups) for index in range(len(of[1]))]
    random.Random(0).shuffle(keys)
    if arguments.set_aside:
        # Of versions on different sites, an n-gram is once in each: none is set aside.
        most, mirrored = (arguments.set_aside, CROWD), 100 * arguments.mirrored
        names = {
            f"{number}-{index}"
            for number, (kind, texts, _, _, scores) in enumerate(groups)
            for index in dropped_without_common(
                texts, scores, most[kind == "crawled" and number % 100 < mirrored]
            )
        }
    else:
        table = pa.table(
            {
                "id": [f"{number}-{index}" for number, index in keys],
                "text": [" ".join(groups[number][1][index]) for number, index in keys],
                "score": [groups[number][4][index] for number, index in keys],
            }
        )
        names = dropped_by_run(table, arguments.rule)
    totals = Counter[str]()
    print("| documents | to drop | dropped rightly | wrongly |\n|:--|--:|--:|--:|")
    for kind in KINDS:
        counts = Counter[str]()
        for number, (of_kind, texts, wanted, allowed, _) in enumerate(groups):
            if of_kind == kind:
                dropped = {index for index in range(len(texts)) if f"{number}-{index}" in names}
                right = min(len(dropped & allowed), wanted)
                counts.update(wanted=wanted, right=right, wrong=len(dropped) - right)
        totals.update(counts)
        print(f"| {kind} | {counts['wanted']} | {counts['right']} | {counts['wrong']} |")
    precision = totals["right"] / (totals["right"] + totals["wrong"])
    print(f"\nprecision {precision:.1%}, recall {totals['right'] / totals['wanted']:.1%}")


if __name__ == "__main__":
    main()
