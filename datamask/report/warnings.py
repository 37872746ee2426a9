"""What makes the figures of a run doubtful: a sentence each, with the number.

Computed in one place from `composition.duckdb` and the report's sample, and shown wherever results
are: in the log, at the top of the report, in the dataset card and in Prefect's artifact.
"""

from __future__ import annotations

from datamask.analysis.composition import query
from datamask.analysis.screening import benchmarks
from datamask.report.redundancy import redundancy
from datamask.report.sample import sample_path
from datamask.runs.receipt import read_receipt
from datamask.runs.run import Run

MOST_MEAN_COSINE = 0.9
"""Mean cosine of two documents above which embeddings count as collapsed. Encoders of the e5
family, which use little of the sphere, have 0.7 to 0.85; one with random weights has 0.99.
"""

MOST_NEAR_DUPLICATES = 0.5
"""Share of near-duplicates among random documents above which a diversity term has little to choose
by: most of any selection is then a copy of something else in it."""

LENGTH_FACTOR = 2.0
"""Factor between the mean lengths of selection and source above which, for the same number of
documents, the selection is mainly one of length: twice the tokens, or half of them."""

UNREACHED_SHARE = 0.1
"""Share of the source beyond the shortest (or longest) document kept that counts as left out."""

CHANCE = 1e-3
"""A share counts as left out only if a random selection would miss it with less probability."""

_LENGTHS = """
SELECT kept, shortest, longest,
    (SELECT count(*) FILTER (characters < shortest) / count(characters) FROM documents) AS shorter,
    (SELECT count(*) FILTER (characters > longest) / count(characters) FROM documents) AS longer
FROM (SELECT count(*) AS kept, min(characters) AS shortest, max(characters) AS longest
    FROM documents WHERE selected AND characters IS NOT NULL) WHERE kept > 0
"""


def warnings(run: Run) -> list[str]:
    """What should be known before the figures of a run are believed; empty if nothing.

    Embeddings are judged once the run has a report.

    Raises:
        RunError: the composition is not there yet.
    """
    return [
        *_missing_scores(run),
        *_benchmarks(run),
        *_embeddings(run),
        *_mean_length(run),
        *_lengths_left_out(run),
    ]


def warnings_markdown(run: Run) -> str:
    """The same as a GitHub alert, which the Hub shows too; empty if there is nothing to say."""
    lines = [f"> - {line}\n" for line in warnings(run)]
    return "".join(["> [!WARNING]\n", *lines]) if lines else ""


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
        + "; check that the ids of its files are those of the source."
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
                f"{row['selected']:,d} of the documents kept share {known.ngram} words in a row "
                f"with benchmark {row['name']} (quality.contamination.action: flag)."
            )
        if row["short"]:
            found.append(
                f"{row['short']:,d} of the {row['texts']:,d} texts of benchmark {row['name']} have "
                f"fewer than {known.ngram} words, so documents that contain them are not found."
            )
    return found


def _embeddings(run: Run) -> list[str]:
    if not run.fetch(sample_path(run)).exists():
        return []
    cosine = read_receipt(run.fetch(sample_path(run))).metrics["mean_cosine"]
    near = {row.selection: row.near_duplicates for row in redundancy(run)}.get("random", 0.0)
    if cosine <= MOST_MEAN_COSINE and near <= MOST_NEAR_DUPLICATES:
        return []
    return [
        f"The embeddings hardly tell documents apart: the mean cosine of two documents is "
        f"{cosine:.3f}, and {near:.0%} of random documents have a near-duplicate (cosine of at "
        f"least {run.settings.report.near_duplicate_cosine:g}). Diversity has little to choose "
        "by; check "
        "the encoder and its prefix, and the source for copies."
    ]


def _mean_length(run: Run) -> list[str]:
    totals = {row["selection"]: row for row in query(run, "SELECT * FROM totals")}
    unit = "tokens" if totals["source"]["mean_tokens"] else "characters"
    ours, source = (totals[name][f"mean_{unit}"] for name in ("selected", "source"))
    if not ours or not source or 1 / LENGTH_FACTOR < ours / source < LENGTH_FACTOR:
        return []
    return [
        f"The documents kept are {ours / source:.3g} times as long as those of the source on "
        f"average ({ours:,.0f} and {source:,.0f} {unit}): the scores or the embeddings favour a "
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
                    f"No document kept is {side} than {bound:,} characters, though {share:.0%} of "
                    "the source's documents are."
                )
    return found
