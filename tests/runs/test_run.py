"""The run folder: atomic files, receipts, and the chain of fingerprints."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.errors import CorruptFileError, RunError, SettingsError, StorageError
from datamask.runs import schemas
from datamask.runs.files import replace_file, write_parquet
from datamask.runs.opening import create_run, open_run
from datamask.runs.receipt import Receipt, fingerprint_at_end, html_receipt, read_receipt
from datamask.runs.run import Run, digest, shard_seed
from datamask.runs.schemas import Piece
from datamask.runs.stages import STAGES

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def planned_run(
    root: Path, settings: dict | None = None, pinned_revisions: dict | None = None
) -> Run:
    """A run of three shards, without any output yet."""
    run = create_run(root, parse_settings(settings or {}), pinned_revisions or {})
    rows = [asdict(Piece(shard, "a.parquet", shard, 1, 0, 10, 1000, "d1")) for shard in range(3)]
    table = pa.Table.from_pylist(rows, schema=schemas.PLAN)
    write_parquet(run.plan_path, schemas.PLAN, [table])
    return run


def put(run: Run, stage: str, unit: int) -> None:
    """Write an up-to-date output."""
    table = pa.table({"id": ["x"]}, schema=SCHEMA)
    write_parquet(
        run.path(stage, unit), SCHEMA, [table], lambda n: run.make_receipt(stage, unit, n)
    )


def stages_in(run: Run) -> list[str]:
    """The stages of a run, in order."""
    return [name for name, stage in STAGES.items() if stage.where(run.settings)]


def changed(before: Run, after: Run) -> list[str]:
    """The stages of a run whose fingerprints differ from those of another."""
    return [n for n in stages_in(after) if before.fingerprint(n) != after.fingerprint(n)]


DOWNSTREAM = ["scores", "quality", "embeddings"]
DOWNSTREAM += ["selection", "outcome", "mask_model", "documents", "subset", "composition", "report"]
EMBEDDED = DOWNSTREAM.index("embeddings")


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"quality": {"scores": [{"kind": "column", "column": "c"}]}}, "scores"),
        ({"quality": {"prune_fraction": 0.1}}, "quality"),
        ({"quality": {"scores": [{"weight": 2}]}}, "quality"),
        ({"quality": {"scores": [{"normalisation": "rank"}]}}, "quality"),
        ({"embedding": {"method": "lexical"}}, "embeddings"),
        ({"embedding": {"dtype": "float16"}}, "embeddings"),
        ({"selection": {"quality_weight": 0.7}}, "selection"),
        ({"seed": 5}, "selection"),
    ],
)
def test_a_setting_changes_its_stage_and_all_that_follow(tmp_path, settings, first):
    """Lambda re-learns but does not re-embed; the card re-publishes only."""
    before, after = planned_run(tmp_path / "before"), planned_run(tmp_path / "after", settings)
    assert changed(before, after) == DOWNSTREAM[DOWNSTREAM.index(first) :]


def test_the_size_of_files_changes_the_subset_only(tmp_path):
    """Only if it is then cut into other files; composition and report do not depend on it."""
    runs = [
        planned_run(
            tmp_path / str(size), {"selection": {"ratio": 1}, "subset": {"file_bytes": size}}
        )
        for size in (8192, 4096, 1024)
    ]
    assert [len(run.subset_files) for run in runs] == [1, 1, 3]
    assert changed(*runs[:2]) == []
    assert changed(*runs[1:]) == ["subset"]


def test_rounds_are_stages_of_the_corpus_scope_alone(tmp_path):
    """As many as are asked for; a new lambda learns all of them anew and embeds nothing."""
    corpus = {"scope": "corpus", "rounds": 2}
    before = planned_run(tmp_path / "before", {"selection": corpus})
    after = planned_run(tmp_path / "after", {"selection": {**corpus, "quality_weight": 0.7}})
    learning = ["corpus_statistics", "round", "round_total"]
    learning += ["learning", "threshold"]
    embedded, after_that = DOWNSTREAM[: EMBEDDED + 1], DOWNSTREAM[EMBEDDED + 1 :]
    assert stages_in(after) == [*embedded, *learning, *after_that]
    assert changed(before, after) == [*learning, *after_that]


def test_a_second_round_begins_anew_and_a_third_goes_on(tmp_path):
    """One round reads vectors once; of more, the first do not depend on how many may follow."""
    runs = [
        planned_run(tmp_path / str(number), {"selection": {"scope": "corpus", "rounds": number}})
        for number in (1, 2, 3)
    ]
    once, several = stages_in(runs[0]), stages_in(runs[1])
    assert changed(runs[1], runs[0]) == once[once.index("round") :]
    assert changed(*runs[1:]) == several[several.index("learning") :]
    for stage, unit in (("round", 5), ("round_total", 2)):
        assert runs[1].fingerprint(stage, unit) == runs[2].fingerprint(stage, unit)


def test_a_run_that_kept_its_vectors_before_all_did_opens(tmp_path):
    """run.json of earlier versions has `embedding.keep`; only true is known."""
    run = planned_run(tmp_path)
    for keep in (True, False):
        record = json.loads((tmp_path / "run.json").read_text())
        del record["digest"]
        record["settings"]["embedding"]["keep"] = keep
        (tmp_path / "run.json").write_text(json.dumps(record | {"digest": digest(record)}))
        if keep:
            assert open_run(tmp_path).settings == run.settings
        else:
            with pytest.raises(SettingsError, match=r"embedding\.keep"):
                open_run(tmp_path)


def test_missing_done_stale(tmp_path):
    """The state of a shard follows its file, and a corrupt file counts as missing."""
    run = planned_run(tmp_path)
    assert run.remaining("selection") == [0, 1, 2]
    put(run, "selection", 1)
    assert run.state("selection", 1) == "done"
    assert run.remaining("selection") == [0, 2]
    assert run.remaining("selection", [1]) == []
    assert run.remaining("selection", [1], force=True) == [1]
    other = planned_run(tmp_path, {"seed": 9})
    assert other.state("selection", 1) == "stale"
    data = run.path("selection", 1).read_bytes()
    run.path("selection", 1).write_bytes(data[: len(data) // 2])
    assert run.state("selection", 1) == "missing"
    with pytest.raises(RunError, match=r"selection/00001\.parquet: missing"):
        run.receipt("selection", 1)
    with pytest.raises(RunError, match="no shard 7; the plan has 0 to 2"):
        run.remaining("selection", [7])


def test_a_fingerprint_is_the_hash_of_the_canonical_text_of_all_that_determines_it(tmp_path):
    """The text is assembled from parts, some of them kept for all units; the standard hashes it."""
    run = planned_run(
        tmp_path, {"selection": {"ratio": 0.3}}, {"selection:x": "7", "scores:y": "8"}
    )
    for unit in (2, 1):
        stage = STAGES["selection"]
        inputs = [run.fingerprint(name, unit) for name in ("quality", "embeddings")]
        settings = stage.settings(run.settings)
        whole = [stage.name, stage.version, unit, settings, {"selection:x": "7"}, inputs]
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        assert run.fingerprint("selection", unit) == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_the_end_of_a_file_says_the_same_as_its_decoded_footer(tmp_path, monkeypatch):
    """`status` reads it without Arrow; where it is not plain to see, the footer is decoded."""
    path = tmp_path / "a.parquet"
    table = pa.table(
        {"id": ["x"] * 9}, schema=SCHEMA.with_metadata({"datamask": "{}", "z": "PAR1"})
    )
    for note in ("", "y" * 200, "y" * 70_000):
        due = hashlib.sha256(note.encode()).hexdigest()[:32]
        made = Receipt("selection", 0, due, 9, {"note": note})
        write_parquet(path, SCHEMA, [table], lambda rows, made=made: made)
        with monkeypatch.context() as without_arrow:
            without_arrow.delattr(pq, "read_metadata")
            assert fingerprint_at_end(str(path)) == due
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole[:-8] + b"\xff" * 4 + b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"a\.parquet"):
            fingerprint_at_end(str(path))
    write_parquet(path, SCHEMA, [table], lambda rows: Receipt("selection", 0, "f00d", rows))
    assert fingerprint_at_end(str(path)) == "f00d", "no fingerprint of this version"
    (tmp_path / "b.parquet").mkdir()
    for name in ("b.parquet", "c.parquet"):
        with pytest.raises(FileNotFoundError):
            fingerprint_at_end(str(tmp_path / name))


def test_a_receipt_comes_back_from_every_kind_of_file(tmp_path):
    """Parquet, HTML and DuckDB files carry the receipt that was put into them."""
    import duckdb

    receipt = Receipt("report", 0, "f00d", 3, {"note": "--> <b>"})
    html = tmp_path / "a.html"
    html.write_text(html_receipt(receipt) + "<!doctype html>")
    assert read_receipt(html) == receipt
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute("CREATE TABLE receipt AS SELECT ? AS receipt", [receipt.to_json()])
    assert read_receipt(tmp_path / "a.duckdb") == receipt
    path = tmp_path / "a.parquet"
    table = pa.table({"id": ["x", "y", "z"]}, schema=SCHEMA)
    write_parquet(path, SCHEMA, [table], lambda rows: Receipt("selection", 0, "f00d", rows))
    assert read_receipt(path).rows == 3
    pq.write_table(table, path)
    with pytest.raises(CorruptFileError, match=r"a\.parquet"):
        read_receipt(path)
    (tmp_path / "b.duckdb").write_bytes(b"nonsense")
    with pytest.raises(CorruptFileError):
        read_receipt(tmp_path / "b.duckdb")


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    """An error half way changes nothing."""
    path = tmp_path / "a.parquet"
    table = pa.table({"id": ["old"]}, schema=SCHEMA)
    write_parquet(path, SCHEMA, [table])

    def batches():
        yield table
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_parquet(path, SCHEMA, batches())
    assert pq.read_table(path).to_pydict() == {"id": ["old"]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_line(tmp_path):
    """ENOSPC becomes a transient error that names the file and the remedy."""
    with (
        pytest.raises(StorageError, match=r"a\.json: no space left .* relaunch"),
        replace_file(tmp_path / "a.json"),
        open("/dev/full", "w") as full,
    ):
        full.write("x")
        full.flush()


def test_seeds_of_shards_differ_and_stay():
    """A shard's seed depends on run seed and shard only."""
    seeds = {shard_seed(seed, shard) for seed in range(20) for shard in range(500)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert shard_seed(0, 0) == shard_seed(0, 0)
