"""The findings about what screening dropped or flagged: near-duplicates and benchmark texts."""

from __future__ import annotations

from collections.abc import Iterator

from datamask.analysis.composition import KINDS, query
from datamask.analysis.summary import benchmarks
from datamask.report.finding import LEAST_EXPECTED, MOST_NAMED, Finding
from datamask.runs.run import Run

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
