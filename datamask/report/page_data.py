"""The data of the report's tables, which its script searches, filters and sorts.

It is compressed JSON within the page: `steps` of the funnel, a row per group in `groups`, and a row
per document in `documents`, in the order of the arguments of the script's `groupRow` and
`documentRow`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from typing import Any

from datamask.analysis.summary import query
from datamask.report.finding import LEAST_EXPECTED
from datamask.report.group_findings import RETENTION
from datamask.report.redundancy import NEAR_COPY, NEAR_DUPLICATE_COSINE
from datamask.runs.run import Run


def groups(run: Run) -> list[list[Any]]:
    """List for each group: kind, name, documents, relative share, and documents after each step.

    Groups with few documents in a random selection are last.
    """
    rows = query(
        run,
        "SELECT kind, name, documents_before, documents_after, retention, "
        "list(f.documents ORDER BY number) AS left_by "
        f"FROM ({RETENTION}) JOIN funnel f USING (kind, name) GROUP BY 1, 2, 3, 4, 5, expected "
        f"ORDER BY expected < {LEAST_EXPECTED}, retention, name",
    )
    sizes = Counter(row["kind"] for row in rows)
    return [[*row.values()] for row in rows if sizes[row["kind"]] > 1]


_DOCUMENTS = """
SELECT s.id, if(d.selected, 'kept', if(d.dropped IS NULL, 'left out', 'dropped')) AS state,
    s.kind, d.quality, d.logit, s.nearest, s.cosine::DOUBLE AS cosine, d.characters, s.text,
    {weight} * s.quality_gain AS quality_part, s.nearest_text,
    concat_ws(' · ', if(s.kind = d.dropped, NULL, d.dropped),
        if(d.top_quality, 'top quality', NULL),
        nullif(d.domain, '(none)'), nullif(d.dump, '(none)'),
        nullif(d.topic, '(none)'),
        'shard ' || lpad(s.shard::VARCHAR, 5, '0')) AS facts
FROM sample s JOIN documents d ON s.shard = d.shard AND s.row = d.row AND s.id = d.id
ORDER BY s.kind = 'random', d.dropped IS NOT NULL, s.kind, d.logit, s.shard, s.row
"""


def documents(run: Run) -> list[list[Any]]:
    """List the documents to read, extremes first; each is listed once."""
    sql = _DOCUMENTS.format(weight=run.in_force.selection.quality_weight)
    by_id: dict[str, list[Any]] = {}
    for row in query(run, sql):
        by_id.setdefault(row["id"], [*row.values()])
    for values in by_id.values():
        if values[5] in by_id:  # The page has its text already.
            values[10] = None
    return [*by_id.values()]


_DROPPED = {
    "pruned": "among the worst by score",
    "duplicate": "the same text as another document",
    "near_duplicate": "nearly repeats another document",
    "contaminated": "shares words with a benchmark",
    "held_out": "held out, to test models on",
    "missing-score": "has no score",
}


def first_documents(rows: list[list[Any]]) -> dict[str, list[tuple[str, str, str]]]:
    """Three documents that were kept and three that were not: text, id and reason of each.

    Of those not kept, the first is most like a kept document, the second has the best score, and
    the third was dropped before selection, as far as the sample has such.

    Args:
        rows: as `documents` returns them.
    """
    with_text = [row for row in rows if row[8]]
    kept = [row for row in with_text if row[1] == "kept"]
    others = [row for row in with_text if row[1] != "kept"]
    alike = max(others, key=lambda row: -2 if row[6] is None else row[6], default=None)
    others = [alike, *(row for row in others if row is not alike)] if alike else []
    wanted = {
        "Kept": (kept, "kept, highest logit", "random", "kept, near the threshold"),
        "Not kept": (others, alike and alike[2], "left out, best quality", "pruned"),
    }
    by_title = {}
    for title, (known, *kinds) in wanted.items():
        firsts = [next((row for row in known if row[2] == kind), None) for kind in kinds]
        chosen = {row[0]: row for row in [*firsts, *known] if row}
        shown = [*chosen.values()][:3]
        by_title[title] = [(" ".join(row[8].split())[:300], row[0], _reason(row)) for row in shown]
    return by_title


def _reason(row: list[Any]) -> str:
    """Why a document is kept or not, in a clause."""
    _, state, kind, _, logit, _, cosine, _, _, quality, *_ = row
    if state == "dropped":
        return _DROPPED.get(kind, str(kind).replace("_", " "))
    rest = None if quality is None else logit - quality
    if rest is None:
        reason = "above the threshold" if state == "kept" else "below the threshold"
    elif state == "kept":
        reason = "differs from other kept texts" if quality <= 0 else "good, and different"
        reason = "its score decides" if rest <= 0 else reason
    elif cosine is not None and cosine >= NEAR_DUPLICATE_COSINE:
        reason = "nearly repeats a kept text"
    elif rest > 0:
        reason = "different, but its score is too low"
    else:
        reason = (
            "kept texts represent it" if quality >= 0 else "others are better and more different"
        )
    return reason if cosine is None else f"{reason} (cosine of the nearest kept: {cosine:.2f})"


def choices(rows: list[list[Any]]) -> dict[str, str]:
    """Return the filters of documents: by state, near-copies of kept ones, and kind."""
    values = dict.fromkeys([row[1] for row in rows] + [row[2] for row in rows])
    near = {NEAR_COPY: "near-copy pairs"}
    return {"": "all"} | {value: value.replace("_", "-") for value in values} | near


def packed(data: dict[str, Any]) -> str:
    """Pack data as compressed JSON in Base64: small, and without letters that end a script."""
    text = json.dumps(_rounded(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _rounded(value: Any) -> Any:
    """Round a value to five digits after the point, which halves the size."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value
