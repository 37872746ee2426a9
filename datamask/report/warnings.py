"""Warnings about the results of a run: a sentence each, with the number.

They are computed from `composition.duckdb` and the report's sample, and appear in the log, the
report, the dataset card and Prefect's artifact.
"""

from __future__ import annotations

from datamask.analysis.composition import query
from datamask.analysis.summary import MOST_CHANGE, benchmarks, drift, long_texts, totals_of
from datamask.report.redundancy import NEAR_DUPLICATE_COSINE, redundancy, sample_path
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run

MOST_MEAN_COSINE = 0.9
"""Mean cosine of two documents above which embeddings count as collapsed. Encoders of the e5
family, which use a small part of the sphere, have 0.7 to 0.85; random weights give 0.99.
"""

MOST_NEAR_DUPLICATES = 0.5
"""Share of near-duplicates among random documents above which a diversity term cannot discriminate:
most documents of any selection then have a copy in it."""

LENGTH_FACTOR = 2.0
"""Ratio of the mean lengths of selection and source above which length dominates the selection:
the same number of documents has twice or half the tokens."""

UNREACHED_SHARE = 0.1
"""Share of the source outside the range of selected lengths that counts as left out."""

CHANCE = 1e-3
"""Largest probability with which a random selection misses a share that counts as left out."""

_LENGTHS = """
SELECT kept, shortest, longest,
    (SELECT count(*) FILTER (characters < shortest) / count(characters) FROM documents) AS shorter,
    (SELECT count(*) FILTER (characters > longest) / count(characters) FROM documents) AS longer
FROM (SELECT count(*) AS kept, min(characters) AS shortest, max(characters) AS longest
    FROM documents WHERE selected AND characters IS NOT NULL) WHERE kept > 0
"""


def warnings(run: Run) -> list[str]:
    """One sentence per problem. Embeddings are checked only if the run has a report.

    Raises:
        RunError: the composition is missing.
    """
    checks = (
        _missing_scores,
        _long_texts,
        _benchmarks,
        _by_sample,
        _not_kept,
        _objective,
        _limits,
        _embeddings,
        _mean_length,
        _lengths_left_out,
        _drift,
    )
    return [line for check in checks for line in check(run)]


def warnings_markdown(run: Run) -> str:
    """The warnings as a GitHub alert, which the Hub also renders; empty if there are none."""
    lines = [f"> - {line}\n" for line in warnings(run)]
    return "".join(["> [!WARNING]\n", *lines]) if lines else ""


def _long_texts(run: Run) -> list[str]:
    told = long_texts(run)
    return [f"{told}."] if told else []


def _missing_scores(run: Run) -> list[str]:
    rows = query(
        run,
        "SELECT score, missing / documents AS share FROM score_summary JOIN totals "
        "USING (selection) WHERE selection = 'source' AND 2 * missing > documents",
    )
    lacking = {row["score"]: row["share"] for row in rows}
    return [
        f"Score {score.name} is missing for {lacking[score.name]:.1%} of the source's documents, "
        + (f"filled with {score.fill_value:g}" if score.missing == "fill" else "which were dropped")
        + "; check that the ids of its files match the source."
        for score in run.settings.scores
        if score.name in lacking
    ]


def _benchmarks(run: Run) -> list[str]:
    known, found = run.settings.quality.contamination, []
    if known is None:
        return []
    for row in benchmarks(run):
        if row["selected"]:
            found.append(
                f"{row['selected']:,d} of the documents kept share {known.ngram} consecutive words "
                f"with benchmark {row['name']} (quality.contamination.action: flag)."
            )
        if row["short"]:
            found.append(
                f"{row['short']:,d} of the {row['texts']:,d} texts of benchmark {row['name']} have "
                f"fewer than {known.ngram} words; documents that contain them are not detected."
            )
    return found


def _drift(run: Run) -> list[str]:
    rows = drift(run)
    if not rows or abs(rows[0]["shift"]) <= MOST_CHANGE:
        return []
    share, *terms = rows
    furthest = max(terms, key=lambda row: abs(row["shift"]))
    return [
        f"The mask model keeps {share['now']:.2%} of these documents, and kept {share['then']:.2%} "
        f"of those it was learnt on: the corpora differ, most in term {furthest['term']} (mean "
        f"gain {furthest['shift']:+.2f} deviations). Learn a mask of its own if a share is needed."
    ]


def _not_kept(run: Run) -> list[str]:
    if run.settings.embedding.keep:
        return []
    return [
        "The run keeps no embeddings (embedding.keep is false): nearest neighbours and "
        "near-duplicates are looked for among the sampled documents only, so fewer are found than "
        "in other runs.",
    ]


def _by_sample(run: Run) -> list[str]:
    if run.settings.selection.num_rounds != 1 or _learned_all(run):
        return []
    return [
        f"All documents were judged once, by what was learned from {learned_from(run)}. More "
        "rounds (selection.rounds) correct this."
    ]


def _learned_all(run: Run) -> bool:
    learned = run.receipt("round_total").metrics["sample"]["documents"]
    return bool(learned == run.receipt("quality", 0).metrics["kept_total"])


def learned_from(run: Run) -> str:
    """The documents from which shards learned together first, and what confirmed it, in words."""
    sample = run.receipt("round_total").metrics["sample"]
    lost, number = sample["shortfall"], sample["documents"]
    if _learned_all(run):
        return f"all {number:,d} documents"
    confirmed = "too few others were left to confirm it"
    if lost is not None:
        confirmed = f"a second sample confirmed {1 - lost:.0%} of its gain over random selections"
    return f"a sample of {number:,d} documents; {confirmed}"


def _objective(run: Run) -> list[str]:
    selection = run.settings.selection
    rows = query(
        run, "SELECT selected, random FROM terms WHERE term = 'objective' AND selected < random"
    )
    if selection.method != "mask" or selection.limits or not rows:
        return []
    remedy = "selection.scope shard" if selection.scope == "corpus" else "more selection.steps"
    return [
        f"The objective of the selection ({rows[0]['selected']:.4g}) is below that of random "
        f"selections ({rows[0]['random']:.4g}): learning has failed. Use {remedy}, or a larger "
        "selection.quality_weight."
    ]


def _limits(run: Run) -> list[str]:
    rows = query(
        run,
        "SELECT selected, greatest(random, top_quality) AS unlimited FROM terms "
        "WHERE term = 'objective' AND selected < unlimited",
    )
    return [
        f"The objective of the selection ({row['selected']:.4g}) is below that of random "
        f"selections or top quality ({row['unlimited']:.4g}), which need not obey the floors and "
        "caps of selection.limits."
        for row in rows
        if run.settings.selection.limits
    ]


def _embeddings(run: Run) -> list[str]:
    found = redundancy(run)
    if not found:
        return []
    cosine = read_receipt(run.fetch(sample_path(run))).metrics["mean_cosine"]
    near = found.get("random", {}).get("near_duplicates", 0.0)
    if cosine <= MOST_MEAN_COSINE and near <= MOST_NEAR_DUPLICATES:
        return []
    return [
        f"The embeddings hardly distinguish documents: the mean cosine of two documents is "
        f"{cosine:.3f}, and {near:.0%} of random documents have a near-duplicate (cosine of at "
        f"least {NEAR_DUPLICATE_COSINE:g}). The diversity term cannot "
        "discriminate; check the encoder and its prefix, and the source for copies."
    ]


def _mean_length(run: Run) -> list[str]:
    totals = totals_of(run)
    unit = "tokens" if totals["source"]["mean_tokens"] else "characters"
    ours, source = (totals[name][f"mean_{unit}"] for name in ("selected", "source"))
    if not ours or not source or 1 / LENGTH_FACTOR < ours / source < LENGTH_FACTOR:
        return []
    return [
        f"The selected documents are on average {ours / source:.3g} times as long as those of the "
        f"source ({ours:,.0f} and {source:,.0f} {unit}): the scores or the embeddings favour a "
        "length."
    ]


def _lengths_left_out(run: Run) -> list[str]:
    found = []
    for row in query(run, _LENGTHS):
        for share, bound, side in (
            (row["shorter"], row["shortest"], "shorter"),
            (row["longer"], row["longest"], "longer"),
        ):
            if share >= UNREACHED_SHARE and (1 - share) ** row["kept"] < CHANCE:
                found.append(
                    f"No selected document is {side} than {bound:,} characters, although "
                    f"{share:.0%} of the source's documents are."
                )
    return found
