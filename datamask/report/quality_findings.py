"""Findings about scores, and about what screening dropped or flagged."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from datamask.analysis.summary import benchmarks, query, totals_of
from datamask.config.recipe import wanted_share
from datamask.config.scores import ExamplesScore
from datamask.config.screening import SHORTEST
from datamask.config.selection import Selection
from datamask.quality.examples import example_figures
from datamask.quality.in_groups import rows_in_groups, unordered, warning_of
from datamask.quality.resemblance import alike, sorted_by_kind
from datamask.report.finding import Finding
from datamask.report.group_findings import label_command, prefers_quality, remedy
from datamask.runs.run import Run

MOST_LACKING = 0.5
"""Fraction of documents without a score above which there is a warning."""


LENGTH_FACTOR = 2.0
"""Ratio of the mean lengths of selection and source above which length dominates the selection: the
same number of documents has twice or half the tokens."""

NOTABLE_FACTOR = 1.5
"""Smaller ratio, from which length asks for caution."""


def length_command(selection: Selection) -> str:
    """Return the command that keeps the source's lengths, if a mask is learned without terms."""
    if selection.more_terms or selection.method != "mask":
        return ""
    return "datamask rebuild RUN --set 'selection.more_terms=[{name: length, weight: 1}]'"


def _median_characters(run: Run, when: str) -> float:
    """Estimate the median characters of the source (*when* before) or the selection (after).

    Counts are known by octave; within one, logarithms of lengths are taken as evenly spread.
    """
    rows = query(run, f"SELECT name, documents_{when} AS n FROM groups WHERE kind = 'length'")
    octaves: dict[float, int] = {}
    for row in rows:  # `below 64` counts as the octave before `64 to 127`.
        first = row["name"].partition(" to ")[0].replace(",", "")
        octaves[log2(int(first)) if first.isdigit() else 5.0] = row["n"]
    left = sum(octaves.values()) / 2
    for octave, number in sorted(octaves.items()):
        if number >= left > 0:
            return float(2 ** (octave + left / number))
        left -= number
    return 0.0


def lengths(run: Run) -> Iterator[Finding]:
    """Compare the lengths of the kept texts with those of the source."""
    totals = totals_of(run)
    unit = "tokens" if totals["source"]["mean_tokens"] else "characters"
    means = {name: row[f"mean_{unit}"] for name, row in totals.items()}
    if not means["selected"] or not means["source"]:
        return
    text = ", ".join(
        f"{means[name]:,.0f} {shown}"
        for name, shown in (
            ("source", "in the source"),
            ("candidates", "after pruning"),
            ("selected", "in the selection"),
            ("top_quality", "in top quality"),
        )
        if means[name]
    )
    ratio = means["selected"] / means["source"]
    apart = max(ratio, 1 / ratio)
    times = "" if f"{ratio:.2g}" == "1" else f"{ratio:.2g} times "
    short = f"kept texts are {times}as long as the source's"
    if apart < NOTABLE_FACTOR:
        yield Finding("good", "length", short, f"Mean {unit}: {text}.")
        return
    source, kept = _median_characters(run, "before"), _median_characters(run, "after")
    if source < kept * NOTABLE_FACTOR and kept < source * NOTABLE_FACTOR:
        many = "the source" if ratio < 1 else "the selection"
        yield Finding(
            "caution",
            "length",
            f"a few long texts move the mean length: {ratio:.2g} times the source's",
            f"Half of the source's documents have less than about {source:,.0f} characters, and "
            f"half of the selected ones less than about {kept:,.0f}, so neither scores nor "
            f"embeddings favour a length: {many} has a few very long texts. Mean {unit}: {text}.",
        )
        return
    yield Finding(
        "warning" if apart >= LENGTH_FACTOR else "caution",
        "length",
        short,
        f"The selected documents are on average {ratio:.3g} times as long as those of the source: "
        f"the scores or the embeddings favour a length. Mean {unit}: {text}.",
        length_command(run.settings.selection),
    )


def role_of_score(run: Run) -> str:
    """Say in a clause what the quality score does to the selection: prefer, prune, or nothing."""
    if prefers_quality(run):
        return "the selection prefers documents with a high score"
    if run.in_force.prune_fraction:
        return "the score only prunes the worst documents"
    return "the score has no effect on the selection"


def _examples(run: Run) -> Iterator[Finding]:
    """Report what scores of examples imply if they are right, and whether the examples suffice."""
    figures = example_figures(run)
    for score in run.settings.scores:
        if isinstance(score, ExamplesScore) and score.path:
            auc = figures[score.name]["auc"]
            short = f"at most {min(1.0, 2 - 2 * auc):.0%} of the source can be wanted: is that so?"
            text = f"Score {score.name}: {wanted_share(auc)}"
            yield Finding("unknown", "wanted share", short, text)
            if text := alike(figures[score.name].get("groups")):
                short = "the examples resemble each other, as pieces of few texts do"
                yield Finding("warning", "examples", short, f"Score {score.name}: {text}")
            elif text := sorted_by_kind(figures[score.name].get("order")):
                short = "the file of examples seems to be sorted by kind: shuffle it"
                yield Finding("warning", "examples", short, f"Score {score.name}: {text}")


def _in_groups(run: Run) -> Iterator[Finding]:
    """Warn of groups whose documents a score from examples orders no better than chance."""
    for score in run.settings.scores:
        name = score.name
        of_score = [row for row in rows_in_groups(run) if row["score"] == name]
        groups = [row for row in of_score if row["kind"] != "all"]
        if by_chance := unordered(of_score):
            first, text = by_chance[0], f"Score {name}: {warning_of(by_chance)}"
            short = f"{name} orders texts of {first['kind']} {first['name']} no better than chance"
            is_within = score.normalise_within == first["kind"]
            command = "" if is_within else remedy(run, name, first["kind"])
            yield Finding("warning", "score in groups", short, text, command)
        elif groups:
            text = f"Score {name} was tested inside {len(groups)} groups; its lowest AUC is "
            text += f"{min(row['auc'] for row in groups):.2f}, and no interval includes chance."
            short = f"{name} orders the texts inside every group that was tested"
            yield Finding("good", "score in groups", short, text)


def scores(run: Run) -> Iterator[Finding]:
    """Report what quality consists of, and scores that most documents lack or that have one value.

    Only a score whose predictions were compared with examples or labels is known to measure
    something: preferring documents with a high score shows nothing about the score.
    """
    settings = run.settings
    kinds = {score.name: score.kind for score in settings.scores}
    role = role_of_score(run)
    if settings.has_heuristic_alone:
        text = "Quality is a heuristic of a text's form (length, symbols, repetition, stop words), "
        text += f"not a judgement of its content; {role}. Label texts for a score of your own."
        short = "quality is a heuristic of form, not of content"
        yield Finding("caution", "score", short, text, label_command(run))
    else:
        names = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        text = f"Quality combines {names}; {role}."
        has_effect = prefers_quality(run) or run.in_force.prune_fraction > 0
        is_tested = all(score.is_fitted for score in settings.scores) and has_effect
        if is_tested:
            figures = example_figures(run)
            told = ", ".join(f"{name} {figures[name]['correlation']:.2f}" for name in kinds)
            text += " Rank correlation of cross-validated predictions with the examples: "
            text += f"{told}."
            short = "the score was tested on examples that it had not seen"
        else:
            short = "nothing here shows that the scores are right"
            text += " Nothing in this run shows that the scores are right; trained models do."
        yield Finding("good" if is_tested else "unknown", "score", short, text)
    yield from _examples(run)
    yield from _in_groups(run)
    rows = query(
        run,
        "SELECT *, missing / documents AS lacking FROM score_summary JOIN totals "
        "USING (selection) WHERE selection = 'source' AND documents > 0",
    )
    row_of = {row["score"]: row for row in rows}
    for score in settings.scores:
        row = row_of.get(score.name)
        if row and row["lacking"] > MOST_LACKING:
            fate = "were dropped" if score.filled is None else f"got {score.filled:g}"
            yield Finding(
                "warning",
                "coverage of scores",
                f"{score.name} is missing for {row['lacking']:.0%} of the documents",
                f"Score {score.name} is missing for {row['lacking']:.1%} of the source's "
                f"documents, which {fate}; check that the ids of its files match the source.",
            )
        if row and row["least"] is not None and row["least"] == row["largest"]:
            text = f"Score {score.name} is {row['least']:g} for every document that has it, so it "
            short = f"{score.name} has one value for all documents"
            yield Finding("warning", "coverage of scores", short, f"{text}cannot order documents.")


def leaks(run: Run) -> Iterator[Finding]:
    """Warn of benchmark texts in the selection, and of benchmark texts that cannot be detected."""
    known = run.settings.quality.contamination
    if known is None:
        return
    for row in benchmarks(run):
        if row["selected"]:
            text = f"{row['selected']:,d} of the documents kept share {known.ngram} consecutive "
            text += f"words with benchmark {row['name']}; {row['leaks']:,d} of them cover an item "
            text += f"(quality.contamination.action: {known.action})."
            action = "drop_covered" if row["leaks"] else "drop"
            command = f"datamask rebuild RUN --set quality.contamination.action={action}"
            short = f"{row['selected']:,d} kept documents share words with benchmark {row['name']}"
            yield Finding(
                "warning" if row["leaks"] else "caution", "benchmarks", short, text, command
            )
        if row["short"]:
            text = f"{row['short']:,d} of the {row['texts']:,d} texts of benchmark {row['name']} "
            text += f"have fewer than {min(SHORTEST, known.ngram)} words; documents that contain "
            short = f"{row['short']:,d} items of benchmark {row['name']} are too short to find"
            yield Finding("warning", "benchmarks", short, f"{text}them are not detected.")
