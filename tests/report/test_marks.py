"""Every ✓ of a report has a case in which it is given, and one in which it must not be."""

import ast
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datamask.config.loading import parse_settings
from datamask.report import evaluation, findings, group_findings, quality_findings
from datamask.report.finding import Finding
from datamask.report.rendering import cell
from datamask.runs.run import Run

REPORT = Path(findings.__file__).parent

Patch = pytest.MonkeyPatch
COLUMN = {"scores": [{"name": "edu", "kind": "column", "column": "edu"}]}
EXAMPLES = {"scores": [{"name": "edu", "kind": "examples", "path": "x.jsonl"}]}


def run_of(**groups: Any) -> Run:
    """Settings that pass for a run, whose results are those of the case."""
    settings = parse_settings({"quality": COLUMN, **groups})
    run: Any = SimpleNamespace(settings=settings, in_force=settings, address="r", root="r")
    return run


def only(found: list[Finding], name: str) -> Finding:
    """The finding of a name."""
    [one] = [row for row in found if row.name == name]
    return one


def near_duplicates(patch: Patch, ours: float, random: float) -> Finding:
    """Shares of near-copies, each known to 1 %."""
    known = {"selected": ours, "random": random}
    rows = {n: {"near_duplicates": v, "error": 0.01, "mean": 0.5} for n, v in known.items()}
    patch.setattr(findings, "redundancy", lambda run: rows)
    return only([*findings._near_duplicates(run_of())], "near-duplicates")


def embeddings(patch: Patch, copies: float, cosine: float, method: str) -> Finding:
    """Near-copies among random documents, and their mean cosine."""
    receipt = SimpleNamespace(metrics={"mean_cosine": cosine})
    patch.setattr(findings, "redundancy", lambda run: {"random": {"near_duplicates": copies}})
    patch.setattr(findings, "read_receipt", lambda path: receipt)
    patch.setattr(findings, "sample_path", lambda run: None)
    run: Any = run_of(embedding={"method": method})
    run.fetch = lambda path: path
    return only([*findings._embeddings(run)], "embeddings")


def length(patch: Patch, ratio: float, kept: int) -> Finding:
    """The selected documents are so many times as long on average, with these least characters."""
    names = ("source", "candidates", "selected", "top_quality")
    totals = {name: {"mean_tokens": None, "mean_characters": 100.0} for name in names}
    totals["selected"]["mean_characters"] = 100.0 * ratio
    patch.setattr(quality_findings, "totals_of", lambda run: totals)
    least = {"before": 64, "after": kept}

    def octaves(run: Any, sql: str) -> list[dict[str, Any]]:
        [number] = [least[when] for when in least if f"documents_{when}" in sql]
        return [{"name": f"{number:,d} to {2 * number - 1:,d}", "n": 9}]

    patch.setattr(quality_findings, "query", octaves)
    return only([*quality_findings.lengths(run_of())], "length")


def text_read(patch: Patch, mean: float, below: int) -> Finding:
    """Mean share read of 1,000 documents, and those of which less than half was read."""
    row = {"documents": 1000, "mean": mean, "least": 0.1, "below": below}
    patch.setattr(findings, "query", lambda run, sql: [row])
    return only([*findings._text_read(run_of())], "text read")


def drift(patch: Patch, share: float, term: float) -> Finding:
    """Changes of the share kept, and of the mean gain of a term."""
    rows = [
        {"term": "share kept", "then": 0.1, "now": 0.1 * (1 + share), "shift": share},
        {"term": "disf", "then": 0.0, "now": term, "shift": term},
    ]
    patch.setattr(findings, "drift", lambda run: rows)
    return only([*findings._drift(run_of())], "drift")


def score(patch: Patch, quality: dict[str, Any], weight: float, pruned: float) -> Finding:
    """Name the score, and what it decides."""
    patch.setattr(quality_findings, "query", lambda run, sql: [])
    patch.setattr(quality_findings, "rows_in_groups", lambda run: [])
    patch.setattr(
        quality_findings, "example_figures", lambda run: {"edu": {"auc": 0.8, "correlation": 0.6}}
    )
    run = run_of(
        quality={**quality, "prune_fraction": pruned}, selection={"quality_weight": weight}
    )
    return only([*quality_findings.scores(run)], "score")


def in_groups(patch: Patch, low: float) -> Finding:
    """The lower end of the interval of a score's AUC inside a domain."""
    row = {"score": "edu", "kind": "domain", "name": "d", "texts": 200, "auc": 0.6}
    rows = [row | {"low": low, "high": 0.7}, row | {"kind": "all", "low": 0.4, "high": 0.7}]
    patch.setattr(quality_findings, "rows_in_groups", lambda run: rows)
    return only([*quality_findings._in_groups(run_of())], "score in groups")


def groups(patch: Patch, kept: int, expected: int) -> Finding:
    """Number kept of a group that a random selection would keep more of."""
    row = {"kind": "domain", "name": "d", "documents_after": kept, "expected": expected}
    row |= {"step": "near_duplicate", "share_before": 0.3, "retention": kept / expected}
    patch.setattr(group_findings, "query", lambda run, sql: [{"number": 1}])
    patch.setattr(group_findings, "unusual_groups", lambda run: [row] if kept < expected else [])
    return only([*group_findings.groups(run_of())], "groups")


def score_and_groups(patch: Patch, auc: float, variance: float, constant: int) -> Finding:
    """Figures of 1,000 documents in two domains."""
    row = {"score": "edu", "kind": "domain", "documents": 1000, "groups": 2, "auc": auc}
    row |= {"eta_squared": variance, "constant_groups": 1, "constant_documents": constant}
    patch.setattr(group_findings, "query", lambda run, sql: [row] if "explained" in sql else [])
    return only([*group_findings.explained(run_of())], "score and groups")


def trained(patch: Patch, verdict: str, against: list[str], model: str) -> Finding:
    """The verdict on ours and random, and sets that decide otherwise."""
    row = {"arm": "ours", "other": "random", "verdict": verdict, "sentence": "", "against": against}
    patch.setattr(
        evaluation, "findings", lambda run: evaluation.Findings([], [row], {}, {}, "", [])
    )
    run = run_of(evaluation={"arms": ["ours", "random"], "model": model})
    return only([*findings.trained(run)], "trained models")


def trade_off(patch: Patch, gain: float) -> Finding:
    """The selection's gain in its diversity over random ones."""
    gained = {"facility_location": {"selected": gain, "error": 0.01}}
    patch.setattr(findings, "gains", lambda run: gained)
    patch.setattr(findings, "query", lambda run, sql: [])
    return only([*findings._gains(run_of())], "trade-off")


CASES: dict[str, tuple[Any, tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "near-duplicates": (near_duplicates, (0.02, 0.03), [(0.037, 0.032), (0.2, 0.3)]),
    "embeddings": (
        embeddings,
        (0.1, 0.5, "sentence-transformer"),
        [
            (0.6, 0.5, "sentence-transformer"),
            (0.1, 0.95, "sentence-transformer"),
            (0.1, 0.5, "lexical"),
        ],
    ),
    "length": (length, (1.1, 64), [(1.7, 128), (0.6, 32), (2.5, 1024), (0.4, 64)]),
    "text read": (text_read, (0.99, 2), [(0.99, 20), (0.6, 0)]),
    "drift": (drift, (0.05, 0.1), [(0.3, 0.1), (0.0, 0.8), (0.0, -0.8)]),
    "score": (
        score,
        (EXAMPLES, 0.5, 0.2),
        [
            (EXAMPLES, 0, 0),
            (COLUMN, 0.5, 0.2),
            (COLUMN, 0, 0.2),
            ({"scores": [{"name": "heuristic"}]}, 0.5, 0.2),
        ],
    ),
    "groups": (groups, (100, 100), [(10, 100)]),
    "score in groups": (in_groups, (0.51,), [(0.5,), (0.4,)]),
    "score and groups": (
        score_and_groups,
        (0.6, 0.1, 0),
        [(0.85, 0.3, 0), (0.77, 0.99, 0), (0.5, 0.0, 333)],
    ),
    "trained models": (
        trained,
        ("better", [], "small"),
        [
            ("better", ["questions"], "small"),
            ("better", [], "tiny"),
            ("undecided", [], "small"),
            ("worse", [], "small"),
        ],
    ),
    "trade-off": (trade_off, (0.9,), [(-0.5,), (0.01,)]),
}
"""By name of a finding: what computes it, a case with ✓, and cases without."""


@pytest.mark.parametrize("name", CASES)
def test_a_mark_is_given_and_withheld(name, monkeypatch):
    """The finding is good in the first case and in none of the others.

    It can be published: its text has no path, address or host, and no entity where Markdown shows
    it. Its headline is read at a glance: at most twelve words, of which two are numbers.
    """
    finding, *cases = CASES[name]
    found = [finding(monkeypatch, *case) for case in (cases[0], *cases[1])]
    assert [one.grade == "good" for one in found] == [True] + [False] * len(cases[1])
    for one in found:
        text = cell(one.text)
        assert not re.search(r"(^|\s)[~.]?/\w|://|&#?\w+;", text), text
        assert socket.gethostname() not in text and "datamask " not in text
        assert 2 <= len(one.headline.split()) <= 12, one.headline
        assert len(re.findall(r"\d[\d.,]*", one.headline)) <= 2, one.headline
        assert not one.headline.endswith(".")


def test_every_mark_has_its_cases():
    """All calls in the sources whose grade may be good have a case of their name."""
    names = set()
    for path in REPORT.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Finding":
                continue
            parts = [*ast.walk(call.args[0])]
            is_good = any(isinstance(p, ast.Constant) and p.value == "good" for p in parts)
            if is_good or any(isinstance(p, ast.Name) and p.id == "grade" for p in parts):
                names.add(ast.literal_eval(call.args[1]))
    assert names == CASES.keys()
