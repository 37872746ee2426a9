"""Findings about groups of documents: what was kept of each against chance, and what decides it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from datamask.analysis.summary import query
from datamask.config.loading import parse_settings
from datamask.config.selection import WITHOUT_OBJECTIVE
from datamask.errors import SettingsError
from datamask.report.finding import LEAST_EXPECTED, MOST_NAMED, Finding, Grade
from datamask.report.rendering import STEPS
from datamask.runs.budget import Counts, budget_problems
from datamask.runs.run import Run

Row = dict[str, Any]

LEAST_RETENTION = 0.5
"""A group is named if the fraction kept of it, relative to the source's, is below this or above its
inverse."""

BEYOND_CHANCE = 4.0
"""Number of deviations from a random selection at which a group is named: of 1,000 groups, chance
names one in 30 runs."""

RETENTION = """
SELECT g.*, share_after / share_before AS retention, share_before * f.documents AS expected
FROM groups g JOIN funnel f ON f.kind = 'all' AND f.step = 'selected'
"""
"""Groups with the fraction kept relative to the source's, and the documents that a random selection
would keep."""

IS_GROUP = "kind NOT IN ('all', 'length')"
"""SQL condition for rows about a group; a band of lengths is none."""

_UNUSUAL = f"""
WITH rates AS (
    SELECT kind, name, step, number, documents, documents / nullif(lag(documents) OVER (
        PARTITION BY kind, name ORDER BY number), 0) AS rate FROM funnel
), whole AS (SELECT step, rate AS usual FROM rates WHERE kind = 'all'
), causes AS (
    SELECT kind, name, arg_min(step, rate / usual) AS lost_at, arg_max(step, rate / usual) AS won_at
    FROM rates JOIN whole USING (step) WHERE usual > 0 GROUP BY kind, name
)
SELECT r.*, if(retention < 1, lost_at, won_at) AS step
FROM ({RETENTION}) r JOIN causes USING (kind, name), (
    SELECT max(documents) FILTER (step = 'selected') / max(documents) AS share
    FROM funnel WHERE kind = 'all')
WHERE {IS_GROUP} AND greatest(expected, documents_after) >= {LEAST_EXPECTED}
    AND (retention < {LEAST_RETENTION} OR retention > {1 / LEAST_RETENTION})
    AND abs(documents_after - expected) > {BEYOND_CHANCE} * sqrt(expected * (1 - share))
ORDER BY abs(documents_after - expected) DESC, kind, name
"""
"""Groups with less than half or more than twice of their share, and not by chance; `step` is where
a group differs most from the whole."""

_BY_SCORES = ("pruned", "selected")
"""Steps at which scores decide."""

MOST_AUC, MOST_VARIANCE, MOST_CONSTANT = 0.8, 0.5, 0.1
"""A score repeats a group from this AUC (teams report 0.85 of source and score), or from this
fraction of its variance between groups: an AUC near 1 is impossible where the favoured groups are
large. A score says nothing about documents of groups in which it is constant: their largest
fraction."""

LEAST_AUC, LEAST_VARIANCE = 0.65, 0.1
"""AUC from which a score counts as a cause of what was kept of groups."""

LEAST_DOCUMENTS = 200
"""Minimum number of documents for this: the best tenth of them is 20, so the AUC is known to
0.06."""


def unusual_groups(run: Run) -> list[Row]:
    """Return the rows of `_UNUSUAL`, largest difference first, without limited groups."""
    limited = run.settings.selection.limited
    return [row for row in query(run, _UNUSUAL) if row["kind"] not in limited]


def groups(run: Run) -> Iterator[Finding]:
    """Report groups that keep far less or more than chance allows, since when, and why."""
    large = f"{IS_GROUP} AND expected >= {LEAST_EXPECTED}"
    [row] = query(run, f"SELECT count(*) AS number FROM ({RETENTION}) WHERE {large}")
    unusual = unusual_groups(run)
    if not row["number"] and not unusual:
        return
    text = "Groups (dumps, languages, domains, topics) that keep less than half or more than twice "
    text += f"of their share, beyond chance: {len(unusual):,}. A random selection would keep "
    text += f"{LEAST_EXPECTED} documents or more of {row['number']:,} groups."
    if not unusual:
        yield Finding("good", "groups", "no group keeps more or less than chance allows", text)
        return
    command = ""
    causes = [(group, _cause(run, group)) for group in unusual[:MOST_NAMED]]
    blamed = next(((group, cause) for group, cause in causes if cause), None)
    if blamed:
        group, cause = blamed
        text += f" Score {cause['score']} differs by {group['kind']}: {_figures(cause)}."
        command = remedy(run, cause["score"], group["kind"])
    elif any(group["step"] in _BY_SCORES for group in unusual):
        text += " No score explains this; the diversity term does."
        command = _limits(run, unusual)
    more = " and others" if len(unusual) > MOST_NAMED else ""
    short = "1 group keeps far more or far less than its share"
    if len(unusual) > 1:
        short = f"{len(unusual):,} groups keep far more or far less than their share"
    text = f"{text} They are: {_named(unusual)}{more}."
    yield Finding("caution", "groups", short, text, command)


def _named(unusual: Sequence[Row]) -> str:
    """Name the groups with the largest differences: kept, expected, and the step that decided."""
    return "; ".join(
        f"{row['kind']} {row['name']}, {row['documents_after']:,.0f} kept where chance keeps "
        f"{row['expected']:,.0f} (decided at: {STEPS[row['step']]})"
        for row in unusual[:MOST_NAMED]
    )


def _explained_rows(run: Run) -> list[Row]:
    """Return figures of scores by kind of group that may be acted on, the strongest first."""
    known = {score.name: score for score in run.settings.scores}
    rows = query(
        run,
        "SELECT * FROM score_explained WHERE score <> 'quality' AND auc IS NOT NULL AND "
        f"documents >= {LEAST_DOCUMENTS} ORDER BY greatest(2 * auc - 1, eta_squared) DESC, "
        "constant_documents DESC, score, kind",
    )
    return [row for row in rows if known[row["score"]].normalise_within != row["kind"]]


def _is_group(row: Row) -> bool:
    return row["auc"] > MOST_AUC or (row["eta_squared"] or 0) > MOST_VARIANCE


def _is_blind(row: Row) -> bool:
    return bool(row["constant_documents"] > MOST_CONSTANT * row["documents"])


def _cause(run: Run, group: Row) -> Row | None:
    """Return the figures of the score that differs most between groups of this kind, or None."""
    if group["step"] not in _BY_SCORES or not _has_effect(run):
        return None
    rows = [row for row in _explained_rows(run) if row["kind"] == group["kind"]]
    return next((row for row in rows if _differs(row)), None)


def _differs(row: Row) -> bool:
    is_cause = row["auc"] > LEAST_AUC or (row["eta_squared"] or 0) > LEAST_VARIANCE
    return is_cause or _is_blind(row)


def _has_effect(run: Run) -> bool:
    """Return True if scores decide anything."""
    return prefers_quality(run) or run.in_force.prune_fraction > 0


def prefers_quality(run: Run) -> bool:
    """Return True if documents with a high score are selected rather than others."""
    selection = run.in_force.selection
    is_blind = selection.method in WITHOUT_OBJECTIVE
    return selection.method == "top_quality" or bool(selection.quality_weight and not is_blind)


def explained(run: Run) -> Iterator[Finding]:
    """Report scores that repeat a group of the documents, or decide what is kept of groups."""
    rows = _explained_rows(run)
    unusual = [row for row in unusual_groups(run) if row["step"] in _BY_SCORES]
    unusual = unusual if _has_effect(run) else []
    has_findings = False
    for score in run.settings.scores:
        judged = [
            (grade, row)
            for row in rows
            if row["score"] == score.name and (grade := _grade(row, unusual))
        ]
        # A warning goes before a caution; the strongest of either goes first.
        for grade, row in sorted(judged, key=lambda graded: graded[0] == "caution")[:1]:
            has_findings = True
            kind = row["kind"]
            text = f"Score {score.name} differs by {kind}: {_figures(row)}."
            if decided := [group for group in unusual if group["kind"] == kind]:
                text += f" What was kept: {_named(decided)}."
            if kind == "length":
                text += " Use another score, or one from texts that you label."
            # Examples have the wanted kind of text, which can be the kind of a group.
            is_wanted = score.is_fitted
            command = remedy(run, score.name, kind)
            short = f"score {score.name} {'repeats the' if _is_group(row) else 'differs by'} {kind}"
            grade = "caution" if is_wanted else grade
            yield Finding(grade, "score and groups", short, text, command)
    if rows and not has_findings:
        text = f"No score repeats a group: the largest AUC is {max(r['auc'] for r in rows):.2f} "
        text += "(0.5 is chance), the largest share of variance between groups "
        most = max((row["eta_squared"] or 0 for row in rows), default=0)
        text += f"{max(most, 0):.0%}."
        yield Finding("good", "score and groups", "no score repeats a group", text)


def _grade(row: Row, unusual: Sequence[Row]) -> Grade | None:
    """Grade a score and a kind of group; None if there is nothing to say."""
    is_decided = any(group["kind"] == row["kind"] for group in unusual)
    if _is_group(row) or (_is_blind(row) and is_decided):
        return "warning"
    return "caution" if _is_blind(row) or (is_decided and _differs(row)) else None


def _figures(row: Row) -> str:
    text = f"the {row['kind']} alone finds the best tenth with an AUC of {row['auc']:.2f} "
    text += f"(0.5 is chance), and {max(row['eta_squared'] or 0, 0):.0%} of the score's variance "
    text += f"is between {row['groups']:,} groups"
    if row["constant_groups"]:
        text += f"; the score has one value in {row['constant_groups']:,} of them, with "
        text += f"{row['constant_documents'] / row['documents']:.0%} of the documents"
    return text


def label_command(run: Run) -> str:
    """Return the command that labels texts for a score of one's own."""
    if run.settings.source.layout == "features":
        return ""
    return "datamask label RUN" + ("" if run.address == str(run.root) else " -o labels")


def remedy(run: Run, name: str, kind: str) -> str:
    """Return the command that keeps a score from deciding between groups."""
    if kind == "length":
        return label_command(run)
    if kind == "topic":
        return _accepted(run, "selection.limits", [{"column": "topic", "cap": 0.2}])
    chosen = []
    for score in run.settings.scores:
        data = score.without_defaults()
        if score.name == name:
            is_raw = score.normalisation == "none"
            data |= {"normalise_within": kind} | ({"normalisation": "z-score"} if is_raw else {})
        chosen.append(data)
    return _accepted(run, "quality.scores", chosen)


def _limits(run: Run, unusual: Sequence[Row]) -> str:
    """Return the command that brings groups of a kind to half or twice their share, if possible."""
    kind, selection = unusual[0]["kind"], run.settings.selection
    limits = []
    for row in [row for row in unusual if row["kind"] == kind][:MOST_NAMED]:
        limit = {"column": kind, "value": row["name"]}
        if row["retention"] < 1:
            limit["floor"] = float(f"{row['share_before'] * LEAST_RETENTION:.2g}")
        else:
            limit["cap"] = float(f"{min(row['share_before'] / LEAST_RETENTION, 1):.2g}")
        limits.append(limit)
    unit = "documents" if selection.tokens is None else "tokens"
    last = f"(SELECT max(number) - 1 FROM funnel WHERE kind = '{kind}')"
    rows = query(
        run, f"SELECT name, {unit} AS there FROM funnel WHERE kind = '{kind}' AND number = {last}"
    )
    there = {row["name"]: int(row["there"] or 0) for row in rows}
    command = _accepted(run, "selection.limits", limits)
    try:
        limited = type(selection)(**selection.model_dump() | {"limits": limits})
    except ValueError:
        return ""
    problems = budget_problems(limited, Counts(run.num_documents, groups=there))
    return "" if list(problems) else command


def _accepted(run: Run, key: str, value: list[dict[str, Any]]) -> str:
    """Return the command that sets a value; empty if the run's settings refuse the value."""
    group, name = key.split(".")
    data = run.settings.given("subset", "publication")
    try:
        parse_settings(data | {group: data[group] | {name: value}})
    except SettingsError:
        return ""
    return f"datamask rebuild RUN --set {shlex.quote(f'{key}={json.dumps(value)}')}"


_COPIED = f"""
SELECT kind, name, copies / source AS share FROM (
    SELECT kind, name, step, lag(documents) OVER steps - documents AS copies,
        first_value(documents) OVER steps AS source
    FROM funnel WINDOW steps AS (PARTITION BY kind, name ORDER BY number)
) WHERE step = 'near_duplicate' AND {IS_GROUP} AND 2 * copies > source
    AND source >= {LEAST_EXPECTED} ORDER BY copies DESC, kind, name
"""


def copied_groups(run: Run) -> Iterator[Finding]:
    """Warn if near-duplicates are more than half of a dump, language or domain."""
    if not (rows := query(run, _COPIED)):
        return
    named = [f"{row['kind']} {row['name']} ({row['share']:.0%})" for row in rows[:MOST_NAMED]]
    more = f" and {len(rows) - MOST_NAMED:,d} others" if len(rows) > MOST_NAMED else ""
    yield Finding(
        "warning",
        "copied groups",
        f"{len(rows):,d} groups lost more than half as near-duplicates",
        "These groups lost more than half of their documents as near-duplicates: "
        f"{', '.join(named)}{more}. Look at some of the pairs before you accept the loss.",
        "datamask query RUN 'SELECT id, near_duplicate_of, near_duplicate_similarity, domain "
        "FROM documents WHERE near_duplicate_of IS NOT NULL LIMIT 20'",
    )
