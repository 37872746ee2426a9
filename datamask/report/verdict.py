"""The verdict on a selection: what it keeps of quality, its near-duplicates, lengths and groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from datamask.analysis.composition import KINDS, query
from datamask.analysis.summary import totals_of
from datamask.report.redundancy import redundancy
from datamask.report.rendering import render
from datamask.runs.run import Run

LEAST_EXPECTED = 5
"""Documents that a random selection would keep of a group; a smaller group may be lost by chance
(probability below 1 %)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Four figures of a selection.

    Args:
        quality: its gain in quality over random, as a share of top quality's; None if top quality
            is no better than random.
        near_duplicates: share by selection (`selected`, `top_quality`, `random`), in [0, 1]; empty
            without a report.
        length: mean length of its documents, as a multiple of the source's; None without text.
        unit: of length: tokens or characters.
        groups: number of groups (dumps, domains, languages) of which random would keep at least
            `LEAST_EXPECTED` documents, as far as table `groups` lists them.
        lost: number of these of which it keeps nothing.
    """

    quality: float | None
    near_duplicates: dict[str, float]
    length: float | None
    unit: str
    groups: int
    lost: int


def verdict(run: Run) -> Verdict:
    """The figures of a finished selection.

    Raises:
        RunError: the composition is missing.
    """
    terms = query(run, "SELECT selected, random, top_quality FROM terms WHERE term = 'quality'")
    gains = [(r["selected"] - r["random"], r["top_quality"] - r["random"]) for r in terms]
    near = {name: row["near_duplicates"] for name, row in redundancy(run).items()}
    totals = totals_of(run)
    unit = "tokens" if totals["source"]["mean_tokens"] else "characters"
    ours, source = (totals[name][f"mean_{unit}"] for name in ("selected", "source"))
    kept = totals["selected"]["documents"] / max(totals["source"]["documents"], 1)
    groups = query(
        run,
        "SELECT count(*) AS large, count(*) FILTER (documents_after = 0) AS lost FROM groups "
        f"WHERE kind IN {tuple(KINDS)} AND documents_before * {kept} >= {LEAST_EXPECTED}",
    )[0]
    quality = gains[0][0] / gains[0][1] if gains and gains[0][1] > 0 else None
    length = ours / source if ours and source else None
    return Verdict(quality, near, length, unit, groups["large"], groups["lost"])


def verdict_text(found: Verdict) -> str:
    """The verdict in words; empty if nothing is known."""
    near = {name: f"{share:.1%}" for name, share in found.near_duplicates.items()}
    text = render("verdict.md", **asdict(found), near=near)
    return " ".join(text.splitlines())
