"""Floors and caps of groups hold over all shards of real runs, or are refused before embedding."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.analysis.composition import query
from datamask.config.compute import Compute
from datamask.errors import SettingsError
from datamask.execution.pipeline import run_stage
from tests.finished import corpus
from tests.selection.runs import candidates, kept, learn


@pytest.mark.parametrize("scope", ["shard", pytest.param("corpus", marks=pytest.mark.slow)])
def test_floors_and_caps_hold_over_all_shards(tmp_path: Path, source: Path, scope: str) -> None:
    """The budget to the document, the floor reached, no domain above its cap."""
    limits = [{"column": "language", "value": "de", "floor": 0.6}]
    run = learn(tmp_path / "floor", source, selection={"scope": scope, "limits": limits})
    documents = kept(run)
    assert len(documents) == 30
    assert sum(row["language"] == "de" for row in documents) >= 18
    capped = [{"column": "domain", "cap": 0.2}]
    run = learn(tmp_path / "cap", source, selection={"scope": scope, "limits": capped})
    documents = kept(run)
    domains = [row["domain"] for row in documents]
    assert len(documents) == 30
    assert max(domains.count(name) for name in set(domains)) <= 6


@pytest.mark.slow
def test_caps_of_tokens_skip_what_does_not_fit(tmp_path: Path, source: Path) -> None:
    """The shards keep what the rules keep of the logits in the files, a document at a time."""
    limits = [{"column": "domain", "cap": 0.22}]
    run = learn(tmp_path / "run", source, selection={"tokens": 900, "limits": limits})
    facts = {
        row["id"]: row
        for shard in range(run.num_shards)
        for row in pq.read_table(run.path("scores", shard)).to_pylist()
    }
    taken: dict[str, int] = {}
    expected, total, skipped = set(), 0, 0
    for _, _, name in candidates(run):
        row = facts[name]
        fits = taken.get(row["domain"], 0) + row["tokens"] <= round(0.22 * 900)
        if fits and total < 900:
            taken[row["domain"]] = taken.get(row["domain"], 0) + row["tokens"]
            total += row["tokens"]
            expected.add(name)
        skipped += not fits and total < 900
    assert {row["id"] for row in kept(run)} == expected
    assert run.receipt("threshold").metrics["units"] == total >= 900
    assert skipped
    with pytest.raises(SettingsError, match=r"caps leave 450 tokens, 900 are to be kept"):
        capped = [{"column": "domain", "cap": 0.1}]
        learn(tmp_path / "other", source, selection={"tokens": 900, "limits": capped})
    assert not (tmp_path / "other" / "embeddings").exists()


def test_impossible_limits_are_refused_before_embedding(tmp_path: Path, source: Path) -> None:
    """A floor above what is left, a column that the source lacks."""
    limits = [{"column": "language", "value": "fi", "floor": 0.1}]
    with pytest.raises(SettingsError, match="floor of language fi asks for 3 documents, only 0"):
        learn(tmp_path / "run", source, selection={"limits": limits})
    assert not (tmp_path / "run" / "embeddings").exists()
    lacking = {"columns": {"language": "tongue"}}
    with pytest.raises(SettingsError, match=r"no column `tongue`; set source\.columns\.language"):
        learn(tmp_path / "other", source, source=lacking, selection={"limits": limits})


@pytest.mark.slow
def test_documents_without_a_group_are_a_group(tmp_path: Path) -> None:
    """Null, empty and blank are "(none)": capped as every group, shown in every table."""
    folder = corpus(tmp_path / "source")
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        given = [[None, "", " \t", "de"][row % 4] for row in range(len(table))]
        place = table.schema.get_field_index("language")
        pq.write_table(table.set_column(place, "language", pa.array(given)), path)
    limits = [{"column": "language", "cap": 0.5}]
    run = learn(tmp_path / "run", folder, selection={"limits": limits})
    languages = [row["language"] for row in kept(run)]
    assert languages.count(None) == languages.count("de") == 15
    for stage in ("documents", "composition"):
        run_stage(run, stage, Compute())
    rows = query(run, "SELECT * FROM groups WHERE kind = 'language'")
    assert {row["name"]: row["documents_after"] for row in rows} == {"(none)": 15, "de": 15}
    assert sum(row["documents_before"] for row in rows) == 120
    assert sum(row["share_after"] for row in rows) == pytest.approx(1)
    count = "SELECT count(*) AS n FROM selection WHERE language = '(none)'"
    assert query(run, count) == [{"n": 15}]
