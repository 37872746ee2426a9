"""Scores that are nothing but a group, or say nothing about one: no ✓, with cause and remedy."""

import math
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.summary import query
from datamask.config.loading import load_settings
from datamask.report.finding import Finding
from datamask.report.findings import findings_of
from datamask.report.group_findings import BEYOND_CHANCE, unusual_groups
from datamask.runs.run import Run
from tests.conftest import nightly
from tests.finished import WORDS, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

NUMBER = 900


def made(folder: Path, domains: list[str], scores: np.ndarray, **groups: Any) -> Run:
    """A run of documents of equal length, with a domain and a score each."""
    generator = np.random.default_rng(1)
    (folder / "source").mkdir(parents=True)
    table = {
        "id": [f"n{row}" for row in range(NUMBER)],
        "text": [" ".join(generator.choice(WORDS, 12)) + f" {row}" for row in range(NUMBER)],
        "url": [f"https://{name}/" for name in domains],
        "edu": scores,
    }
    pq.write_table(pa.table(table), folder / "source" / "0.parquet")
    chosen = settings(folder / "source", plan={"rows_per_shard": 450}, **groups)
    return finish(folder / "run", chosen, "composition")


def found(run: Run) -> dict[str, Finding]:
    """The findings by name."""
    return {row.name: row for row in findings_of(run)}


def drawn(favoured: float) -> list[str]:
    """Domains of the documents, `good` for a share of them."""
    generator = np.random.default_rng(2)
    return ["good" if one < favoured else "bad" for one in generator.random(NUMBER)]


@pytest.mark.parametrize("favoured", [0.5, *nightly(0.12, 0.3, 0.7, 0.85)])
def test_a_score_that_is_the_domain_is_warned_of_however_large_the_domain_is(tmp_path, favoured):
    """The largest possible AUC falls with the favoured share, to 0.58; the warning stays."""
    domains = drawn(favoured)
    noise = 0.01 * np.random.default_rng(3).standard_normal(NUMBER)
    run = made(tmp_path, domains, np.array([name == "good" for name in domains]) + noise)
    rows = query(run, "SELECT domain, selected FROM documents")
    kept = Counter(row["domain"] for row in rows if row["selected"])
    of_bad = domains.count("bad") / NUMBER * sum(kept.values())
    told = found(run)
    assert told["score and groups"].grade == "warning"
    if kept["bad"] < of_bad / 2:
        assert told["groups"].grade == "caution"
        named = f"domain bad, {kept['bad']} kept where chance keeps {of_bad:,.0f}"
        assert named in told["groups"].text and named in told["score and groups"].text
        assert '"normalise_within": "domain"' in told["groups"].command
    else:
        assert favoured < 0.3  # too few documents of the other domain to fill the budget


def test_its_command_gives_the_domain_its_share_again(tmp_path):
    """A run with the settings that are proposed has neither finding."""
    domains = drawn(0.5)
    noise = 0.01 * np.random.default_rng(3).standard_normal(NUMBER)
    run = made(tmp_path, domains, np.array([name == "good" for name in domains]) + noise)
    override = shlex.split(found(run)["score and groups"].command)[-1]
    chosen, _ = load_settings(None, (override,), run.settings)
    told = found(finish(tmp_path / "again", chosen, "composition"))
    assert {told[name].grade for name in ("groups", "score and groups")} == {"good"}


def test_a_score_that_has_one_value_in_a_third_says_nothing_of_it(tmp_path):
    """It is the mean there, so neither AUC nor variance show it."""
    domains = [("flat", "one", "two")[row % 3] for row in range(NUMBER)]
    scores = np.random.default_rng(4).standard_normal(NUMBER)
    scores[::3] = 0
    run = made(tmp_path, domains, scores, selection={"method": "top_quality"})
    [row] = query(run, "SELECT * FROM score_explained WHERE score = 'edu' AND kind = 'domain'")
    assert row["auc"] < 0.8 and row["eta_squared"] < 0.1
    told = found(run)
    assert told["score and groups"].grade == "warning" and told["score and groups"].command
    assert told["groups"].grade == "caution" and "domain flat, 0 kept" in told["groups"].text


def test_a_score_of_the_documents_is_not_warned_of(tmp_path):
    """Domains of all sizes, and a score that knows none of them."""
    generator = np.random.default_rng(5)
    domains = [f"d{min(int(n), 60)}" for n in generator.geometric(0.2, NUMBER)]
    told = found(made(tmp_path, domains, generator.standard_normal(NUMBER)))
    assert {told[name].grade for name in ("groups", "score and groups")} == {"good"}


def test_what_no_score_explains_is_given_limits_that_can_be_met(tmp_path):
    """Documents of one domain are all alike, so diversity alone leaves most of them out."""
    domains = drawn(0.5)
    source = tmp_path / "source"
    source.mkdir()
    generator = np.random.default_rng(6)
    texts = [
        " ".join(generator.choice([f"w{n}" for n in range(3000)] if name == "good" else ["a"], 12))
        for name in domains
    ]
    table = {
        "id": [f"n{row}" for row in range(NUMBER)],
        "text": [f"{text} {row}" for row, text in enumerate(texts)],
        "url": [f"https://{name}/" for name in domains],
        "edu": generator.standard_normal(NUMBER),
    }
    pq.write_table(pa.table(table), source / "0.parquet")
    chosen = settings(source, selection={"quality_weight": 0.0}, plan={"rows_per_shard": 450})
    run = finish(tmp_path / "run", chosen, "composition")
    told = found(run)
    assert told["score and groups"].grade == "good" and told["groups"].grade == "caution"
    override = shlex.split(told["groups"].command)[-1]
    assert override.startswith("selection.limits=")
    limited, _ = load_settings(None, (override,), run.settings)
    again = finish(tmp_path / "again", limited, "composition")
    assert found(again)["groups"].grade == "good"
    rows = query(again, "SELECT domain FROM selection")
    assert Counter(row["domain"] for row in rows)["bad"] >= 0.2 * len(rows)


def test_unusual_groups_are_those_of_the_binomial_distribution(tmp_path):
    """Kept and expected by group, counted in the documents; 4 deviations, half or twice."""
    generator = np.random.default_rng(7)
    domains = [f"d{min(int(n), 30)}" for n in generator.geometric(0.1, NUMBER)]
    scores = np.array([hash_of(name) for name in domains]) + generator.standard_normal(NUMBER)
    run = made(tmp_path, domains, scores)
    rows = query(run, "SELECT domain, selected FROM documents")
    kept = Counter(row["domain"] for row in rows if row["selected"])
    share, expected = kept.total() / NUMBER, {}
    for name, count in Counter(domains).items():
        mean = count * share
        is_far = abs(kept[name] - mean) > BEYOND_CHANCE * math.sqrt(mean * (1 - share))
        if is_far and max(mean, kept[name]) >= 20 and not mean / 2 <= kept[name] <= 2 * mean:
            expected[name] = (kept[name], pytest.approx(mean))
    told = {
        row["name"]: (row["documents_after"], row["expected"])
        for row in unusual_groups(run)
        if row["kind"] == "domain"
    }
    assert told == expected and expected


def hash_of(name: str) -> float:
    """A level for each domain."""
    return float(int(name[1:]) * 7 % 5)
