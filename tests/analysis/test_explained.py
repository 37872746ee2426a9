"""The part of a score that its group explains: planted scores, computed again with sklearn."""

import hashlib
import math
import shlex
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from datamask.analysis.explained import explained as computed
from datamask.analysis.summary import documents_of, query
from datamask.config.loading import load_settings
from datamask.report.findings import findings_of
from datamask.report.group_findings import MOST_AUC
from datamask.report.markdown import report_markdown
from datamask.runs.run import Run
from tests.finished import finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

SCORES = ("site", "noise")


def write(folder: Path) -> Path:
    """Score `site` is that of the domain, with little noise, and constant in one; the other none.

    Half a dozen large domains and many of one or two documents.
    """
    generator = np.random.default_rng(3)
    domains = [f"d{min(int(n), 40)}" for n in generator.geometric(0.2, 500)]
    level = {name: generator.standard_normal() for name in sorted({*domains})}
    noise = np.array([0.0 if name == "d2" else 0.2 for name in domains])
    folder.mkdir(parents=True)
    table = {
        "id": [f"n{row}" for row in range(500)],
        "text": [" ".join(["word"] * generator.integers(2, 90)) + f" {row}" for row in range(500)],
        "url": [f"https://{name}.org/" for name in domains],
        "language": ["en" if row % 3 else "de" for row in range(500)],
        "site": np.array([level[name] for name in domains])
        + noise * generator.standard_normal(500),
        "noise": generator.standard_normal(500),
    }
    pq.write_table(pa.table(table), folder / "a.parquet")
    return folder


def asked(source: Path, **of_site: Any) -> Any:
    """Settings with both scores."""
    columns = [{"name": name, "kind": "column", "column": name} for name in SCORES]
    scores = [columns[0] | of_site, columns[1] | {"weight": 0.0}]
    return settings(source, quality={"scores": scores}, plan={"rows_per_shard": 200})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run."""
    folder = tmp_path_factory.mktemp("explained")
    return finish(folder / "run", asked(write(folder / "source")), "composition")


def explained(run: Run, score: str) -> dict[str, dict[str, Any]]:
    """The table's rows of a score by kind."""
    rows = query(run, f"SELECT * FROM score_explained WHERE score = '{score}'")
    return {row["kind"]: row for row in rows}


def groups_of(run: Run, kind: str, score: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The groups, folds and values of a score of the documents that could be selected."""
    rows = query(run, "SELECT * FROM documents WHERE dropped IS NULL OR dropped = 'pruned'")
    if kind == "length":
        names = [str(math.floor(2 * math.log2(row["characters"]))) for row in rows]
    else:
        names = [row[kind] for row in rows]
    digests = [hashlib.md5(row["id"].encode()).digest() for row in rows]
    folds = np.array([int.from_bytes(digest[:8], "little") % 5 for digest in digests])
    return names, folds, np.array([row[score] for row in rows])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", ["domain", "language", "length"])
def test_figures_are_those_of_brute_force(run, kind, score):
    """AUC in each fold by scikit-learn, from shares in the other folds; eta² by its definition."""
    names, folds, values = groups_of(run, kind, score)
    number = len(values)
    is_best = values > np.sort(values)[number - 1 - number // 10]
    won = pairs = 0.0
    for fold in range(5):
        other, inside = folds != fold, folds == fold
        prior = is_best[other].mean()
        predicted = []
        for name in np.array(names)[inside]:
            members = other & (np.array(names) == name)
            predicted.append((is_best[members].sum() + 10 * prior) / (members.sum() + 10))
        count = is_best[inside].sum() * (~is_best[inside]).sum()
        won += roc_auc_score(is_best[inside], predicted) * count
        pairs += count
    row = explained(run, score)[kind]
    members = {name: values[np.array(names) == name] for name in names}
    within = sum(((group - group.mean()) ** 2).sum() for group in members.values())
    whole = ((values - values.mean()) ** 2).sum()
    eta = 1 - (within / (number - len(members))) / (whole / (number - 1))
    constant = [group for group in members.values() if len(group) >= 10 and np.ptp(group) == 0]
    assert (row["documents"], row["groups"]) == (number, len(members))
    assert row["auc"] == pytest.approx(won / pairs, abs=6e-5)
    assert row["eta_squared"] == pytest.approx(eta, abs=6e-5)
    assert row["constant_groups"] == len(constant) == (kind == "domain" and score == "site")
    assert row["constant_documents"] == sum(map(len, constant))


def test_of_many_documents_a_sample_is_compared(run, monkeypatch):
    """Select documents by a digest of the id that no order and no fold depends on."""
    monkeypatch.setattr("datamask.analysis.explained.MOST_DOCUMENTS", 50)
    rows = query(run, "SELECT id FROM documents WHERE dropped IS NULL OR dropped = 'pruned'")
    digests = [hashlib.md5(row["id"].encode()).digest() for row in rows]
    every = run.num_documents // 50
    expected = sum(int.from_bytes(digest[8:], "little") % every == 0 for digest in digests)
    with duckdb.connect() as connection:
        kinds = ["dump", "language", "domain"]
        told = computed(connection, documents_of(run), run.num_documents, ["site"], kinds)
    assert every > 4 and 0 < expected < len(rows)
    assert {row["documents"] for row in told} == {expected}


def test_a_score_of_the_domain_is_told_from_a_score_of_the_document(run):
    """The first is warned of on page, card and terminal, with a command; the second is not."""
    site, noise = explained(run, "site"), explained(run, "noise")
    assert site["domain"]["auc"] > 0.85 and site["domain"]["eta_squared"] > 0.8
    assert all(abs(row["auc"] - 0.5) < 0.2 for row in noise.values())
    assert all(abs(row["eta_squared"]) < 0.1 for row in noise.values())
    [found] = [row for row in findings_of(run) if row.name == "score and groups"]
    assert found.grade == "warning" and "one value in 1 of them" in found.text
    assert f"{site['domain']['auc']:.2f}" in found.text
    assert "| site | domain |" in report_markdown(run)


def test_a_score_that_is_the_length_calls_for_another_score(tmp_path):
    """The command labels texts for it; a term for length would leave the score as it is."""
    source = write(tmp_path / "source")
    table = pq.read_table(source / "a.parquet")
    sizes = pa.array([float(len(text)) for text in table["text"].to_pylist()])
    pq.write_table(table.append_column("size", sizes), source / "a.parquet")
    quality = {"scores": [{"name": "size", "kind": "column", "column": "size"}]}
    run = finish(tmp_path / "run", settings(source, quality=quality), "composition")
    [found] = [row for row in findings_of(run) if row.name == "score and groups"]
    assert found.grade == "warning" and "length" in found.text
    assert found.command == "datamask label RUN"


@pytest.mark.slow
def test_its_command_normalises_within_the_group_even_where_it_is_constant(run, tmp_path):
    """Quality stays finite, and no longer separates domains."""
    [found] = [row for row in findings_of(run) if row.name == "score and groups"]
    override = shlex.split(found.command)[-1]
    chosen, _ = load_settings(None, (override,), run.settings)
    again = finish(tmp_path / "again", chosen, "composition")
    before, after = explained(run, "quality")["domain"], explained(again, "quality")["domain"]
    assert before["auc"] > 0.85 and after["auc"] < MOST_AUC and after["eta_squared"] < 0.2
    rows = query(again, "SELECT quality FROM documents")
    assert np.isfinite([row["quality"] for row in rows]).all()
    grades = {row.name: row.grade for row in findings_of(again)}
    assert grades["score and groups"] == "good"


@pytest.mark.slow
def test_scores_of_one_value_and_absent_groups(tmp_path):
    """A constant score has no best tenth and no variance; a kind with one group has no row."""
    source = write(tmp_path / "source")
    table = pq.read_table(source / "a.parquet")
    table = table.set_column(table.column_names.index("site"), "site", pa.array([1.5] * 500))
    pq.write_table(table, source / "a.parquet")
    run = finish(tmp_path / "run", asked(source), "composition")
    rows = explained(run, "site")
    assert {*rows} == {"domain", "language", "length"}
    assert {(row["auc"], row["eta_squared"]) for row in rows.values()} == {(None, None)}
    assert rows["language"]["constant_groups"] == 2
