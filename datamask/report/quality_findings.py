"""Findings about scores, and about what screening dropped or flagged."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from datamask.analysis.composition import KINDS, query
from datamask.analysis.summary import benchmarks
from datamask.config.selection import WITHOUT_OBJECTIVE, Selection
from datamask.report.finding import LEAST_EXPECTED, MOST_NAMED, Finding, Grade
from datamask.runs.followed import prune_fraction_of, selection_of
from datamask.runs.run import Run

MOST_AUC = 0.8
"""AUC from which a score is said to repeat a group. Teams report 0.85 of source and score."""

LEAST_DOCUMENTS = 200
"""Documents from which it is said: the best tenth of them is 20, so the AUC is known to 0.06."""


def prefers_quality(selection: Selection) -> bool:
    """Whether documents with a high score are selected rather than others."""
    is_blind = selection.method in WITHOUT_OBJECTIVE
    return selection.method == "top_quality" or bool(selection.quality_weight and not is_blind)


def length_command(selection: Selection) -> str:
    """The command that keeps lengths as in the source, if the mask is learned without terms."""
    if selection.more_terms or selection.method != "mask":
        return ""
    return "datamask rebuild RUN --set 'selection.more_terms=[{name: length, weight: 1}]'"


def role_of_score(run: Run) -> str:
    """What the score does, as a clause."""
    if prefers_quality(selection_of(run)):
        return "the selection prefers documents with a high score"
    if prune_fraction_of(run):
        return "the score only prunes the worst documents"
    return "the score has no effect on the selection"


def scores(run: Run) -> Iterator[Finding]:
    """What quality is made of, and scores that most documents lack."""
    settings = run.settings
    kinds = {score.name: score.kind for score in settings.scores}
    role = role_of_score(run)
    if set(kinds.values()) <= {"heuristic"}:
        text = "Quality is a heuristic of a text's form (length, symbols, repetition, stop words), "
        command = "datamask rebuild RUN --set 'quality.scores="
        command += "[{name: examples, kind: examples, path: GOOD.jsonl}]'"
        yield Finding("caution", "score", f"{text}not a judgement of its content; {role}.", command)
    else:
        names = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        yield Finding("good", "score", f"Quality combines {names}; {role}.")
    rows = query(
        run,
        "SELECT score, missing / documents AS share FROM score_summary JOIN totals "
        "USING (selection) WHERE selection = 'source' AND 2 * missing > documents",
    )
    lacking = {row["score"]: row["share"] for row in rows}
    for score in settings.scores:
        if score.name in lacking:
            fate = "were dropped" if score.filled is None else f"got {score.filled:g}"
            yield Finding(
                "warning",
                "coverage of scores",
                f"Score {score.name} is missing for {lacking[score.name]:.1%} of the source's "
                f"documents, which {fate}; check that the ids of its files match the source.",
            )


def explained(run: Run) -> Iterator[Finding]:
    """Scores whose best tenth is known from a group of the documents alone."""
    rows = query(
        run,
        "SELECT * FROM score_explained WHERE score <> 'quality' AND auc IS NOT NULL "
        f"AND documents >= {LEAST_DOCUMENTS} ORDER BY auc DESC, score, kind",
    )
    known_scores = {score.name: score for score in run.settings.scores}
    rows = [row for row in rows if known_scores[row["score"]].normalise_within != row["kind"]]
    for name, score in known_scores.items():
        known = [row for row in rows if row["score"] == name and row["auc"] > MOST_AUC]
        for row in known[:1]:
            kind = row["kind"]
            text = f"The {kind} of a document alone tells whether it is in the best tenth by score "
            text += f"{name}, with an AUC of {row['auc']:.2f} (0.5: chance; 1: always). "
            text += f"{max(row['eta_squared'] or 0, 0):.0%} of the score's variance is between "
            text += f"{row['groups']:,} groups"
            if row["constant_groups"]:
                text += f", and the score is constant in {row['constant_groups']:,} of them"
            # Examples are of the kind of text that is wanted, which can be that of a group.
            grade: Grade = "caution" if score.kind == "examples" else "warning"
            yield Finding(grade, "score and groups", f"{text}.", _remedy(run, name, kind))
    if rows and rows[0]["auc"] <= MOST_AUC:
        text = "No group tells the best tenth by a score from the rest with an AUC above "
        text += f"{MOST_AUC:g}; the largest is {rows[0]['auc']:.2f}, of {rows[0]['score']} by "
        yield Finding("good", "score and groups", f"{text}{rows[0]['kind']}.")


def _remedy(run: Run, name: str, kind: str) -> str:
    """The command that keeps a score from deciding between groups."""
    if kind == "length":
        is_preferred = prefers_quality(selection_of(run))
        return length_command(run.settings.selection) if is_preferred else ""
    others = [s for s in run.settings.scores if s.name != name and s.normalise_within != "topic"]
    if kind == "topic" and run.settings.prune_fraction and not others:
        return "datamask rebuild RUN --set 'selection.limits=[{column: topic, cap: 0.2}]'"
    chosen = []
    for score in run.settings.scores:
        data = score.without_defaults()
        if score.name == name:
            is_raw = score.normalisation == "none"
            data |= {"normalise_within": kind} | ({"normalisation": "z-score"} if is_raw else {})
        chosen.append(data)
    return f"datamask rebuild RUN --set {shlex.quote(f'quality.scores={json.dumps(chosen)}')}"


_COPIED = f"""
SELECT kind, name, copies / source AS share FROM (
    SELECT kind, name, step, lag(documents) OVER steps - documents AS copies,
        first_value(documents) OVER steps AS source
    FROM funnel WINDOW steps AS (PARTITION BY kind, name ORDER BY number)
) WHERE step = 'near_duplicate' AND kind IN {tuple(KINDS)} AND 2 * copies > source
    AND source >= {LEAST_EXPECTED} ORDER BY copies DESC, kind, name
"""


def copied_groups(run: Run) -> Iterator[Finding]:
    """A warning if near-duplicates are more than half of a dump, language or domain."""
    if not (rows := query(run, _COPIED)):
        return
    named = [f"{row['kind']} {row['name']} ({row['share']:.0%})" for row in rows[:MOST_NAMED]]
    more = f" and {len(rows) - MOST_NAMED:,d} others" if len(rows) > MOST_NAMED else ""
    yield Finding(
        "warning",
        "copied groups",
        "These groups lost more than half of their documents as near-duplicates: "
        f"{', '.join(named)}{more}. Look at some of the pairs before you accept the loss.",
        "datamask query RUN 'SELECT id, near_duplicate_of, near_duplicate_similarity, domain "
        "FROM documents WHERE near_duplicate_of IS NOT NULL LIMIT 20'",
    )


def leaks(run: Run) -> Iterator[Finding]:
    """Warnings of benchmark texts in the selection, and of those that cannot be detected."""
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
            yield Finding("warning" if row["leaks"] else "caution", "benchmarks", text, command)
        if row["short"]:
            text = f"{row['short']:,d} of the {row['texts']:,d} texts of benchmark {row['name']} "
            text += f"have fewer than {known.ngram} words; documents that contain them are not "
            yield Finding("warning", "benchmarks", f"{text}detected.")
