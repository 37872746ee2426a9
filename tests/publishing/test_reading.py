"""Sources on the Hub and on S3: real clients, real servers on loopback, only what is needed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.inputs import Source
from datamask.config.settings import Settings
from datamask.errors import HubUnavailableError, InputError
from datamask.planning.plan import plan_run
from datamask.planning.preview import pin_source, pinned_path
from datamask.runs.opening import open_run
from datamask.runs.records import read_record
from datamask.source.opening import list_files, open_parquet
from datamask.source.reading import read_shard
from tests.finished import corpus, finish, settings
from tests.hub.server import Fault, Hub

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

CORPUS = "org/corpus"


def read_from(path: str, **groups: object) -> Settings:
    """Small settings for a source behind a URL."""
    return settings(Path(), **groups).model_copy(update={"source": Source(path=path)})


def put(hub: Hub, folder: Path, name: str = CORPUS) -> str:
    """Commit a folder's files under data/; the commit."""
    return hub.add(name, {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()})


@pytest.mark.slow
def test_a_run_from_the_hub_is_the_run_from_disk(reading, source, tmp_path):
    """The subset is the same; the revision is in run.json, and stays when main moves."""
    commit = put(reading, source)
    local = finish(tmp_path / "local", settings(source), "subset")
    path = f"hf://datasets/{CORPUS}@main/data/*.parquet"
    distant = plan_run(tmp_path / "distant", read_from(path))
    assert open_run(distant.root).pinned_revisions["scores:source"] == commit
    assert all(f"@{commit}/" in piece.path for piece in distant.pieces)
    reading.add(CORPUS, {"data/0.parquet": b"spoilt"})
    finish(distant.root, distant.settings, "subset")
    # The files' receipts differ: the commit is part of what they were made from.
    for unit in range(local.num_units("subset")):
        assert pq.read_table(distant.path("subset", unit)).equals(
            pq.read_table(local.path("subset", unit))
        )


def test_files_added_on_the_hub_extend_a_run(reading, tmp_path):
    """They come last at the new commit, and nothing that was embedded is embedded again."""
    files = {path.stem: path.read_bytes() for path in corpus(tmp_path / "source").iterdir()}
    reading.add(CORPUS, {f"data/{name}.parquet": files[name] for name in "12"})
    chosen = read_from(f"hf://datasets/{CORPUS}/data", plan={"rows_per_shard": 30})
    run = finish(tmp_path / "run", chosen, "embeddings")
    added = reading.add(CORPUS, {"data/0.parquet": files["0"]})
    assert plan_run(run.root, None).pieces == run.pieces
    grown = plan_run(run.root, None, extend=True)
    assert all(f"@{added}/" in piece.path for piece in grown.pieces)
    assert [Path(piece.path).stem for piece in grown.pieces] == ["1", "2", "0"]
    grown = finish(run.root, grown.settings, "embeddings")
    records = [read_record(grown, "embeddings", shard) for shard in range(3)]
    reused = [record.metrics["reused"] for record in records if record is not None]
    assert reused[0] > 20 and reused[1] > 20 and reused[2] == 0


def test_a_branch_and_a_tag_are_resolved_and_another_revision_is_refused(reading, tmp_path):
    """The text after the @ decides what is read."""
    first = put(reading, corpus(tmp_path / "source"))
    reading.repositories[CORPUS].tags["v1"] = first
    reading.repositories[CORPUS].branches["refs/convert/parquet"] = first
    reading.add(CORPUS, {"data/more.parquet": b""})
    known = {"@v1": first, f"@{first}": first, "@refs/convert/parquet": first}
    for revision, expected in (known | {"@main": None, "": None}).items():
        pinned_revisions = pin_source(Source(path=f"hf://datasets/{CORPUS}{revision}/data"))
        head = reading.repositories[CORPUS].branches["main"]
        assert pinned_revisions["scores:source"] == (expected or head)
    with pytest.raises(InputError, match=f"{CORPUS}@v9"):
        pin_source(Source(path=f"hf://datasets/{CORPUS}@v9/data"))


def big_file(path: Path) -> pa.Table:
    """A file of which nearly all is text, in ten row groups."""
    words = np.random.default_rng(0).integers(0, 256, (2000, 500), dtype=np.uint8)
    table = pa.table(
        {"id": [f"{n}" for n in range(2000)], "text": [row.tobytes().hex() for row in words]}
    )
    pq.write_table(table, path, row_group_size=200)
    return table


def test_columns_and_row_groups_that_are_not_needed_are_not_read(reading, tmp_path):
    """Ids of a file of text cost some kilobytes, and a shard costs its share of the file."""
    folder = tmp_path / "source"
    folder.mkdir()
    table = big_file(folder / "0.parquet")
    size = (folder / "0.parquet").stat().st_size
    put(reading, folder)
    path = f"hf://datasets/{CORPUS}/data"
    pinned = pinned_path(path, pin_source(Source(path=path)))
    reading.served = 0
    reading.calls.clear()
    with open_parquet(list_files(pinned)[0]) as file:
        assert file.read(["id"])["id"].to_pylist() == table["id"].to_pylist()
    assert reading.served < size / 10
    assert reading.calls.count("resolve") < 15, "a request for a column chunk, not for a page"

    chosen = read_from(path, plan={"rows_per_shard": 400})
    chosen = chosen.model_copy(update={"quality": type(chosen.quality)()})
    run = plan_run(tmp_path / "run", chosen)
    before = {file for file in tmp_path.rglob("*") if hub_file(file)}
    reading.served = 0
    reading.calls.clear()
    rows = pa.Table.from_batches(read_shard(run, 2))
    assert rows.equals(table.slice(800, 400).cast(rows.schema))
    assert size / 10 < reading.served < size / 3
    assert reading.calls.count("resolve") <= 3, "neighbouring columns are fetched together"
    assert {file for file in tmp_path.rglob("*") if hub_file(file)} == before, "kept on disk"


def hub_file(path: Path) -> bool:
    """Return True if a path is a file of some size that is not the server's own."""
    return path.is_file() and "hub" not in path.parts and path.stat().st_size > 50_000


def test_a_hub_that_fails_while_reading_can_be_tried_again(reading, tmp_path):
    """A transient fault is told apart from a bad file; one fault heals inside the client."""
    put(reading, corpus(tmp_path / "source"))
    path = f"hf://datasets/{CORPUS}/data"
    names = list_files(pinned_path(path, pin_source(Source(path=path))))
    reading.faults = [Fault("resolve", 503)]
    with open_parquet(names[0]) as file:
        assert file.metadata.num_rows == 30
    reading.faults = [Fault("resolve", 503, times=99)]
    with pytest.raises(HubUnavailableError, match="try again later"), open_parquet(names[1]):
        pass


@pytest.fixture(scope="module")
def bucket() -> Iterator[Callable[[Path], str]]:
    """Puts a folder in a bucket of a real S3 API server on loopback; its URL."""
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    clients = pytest.importorskip("s3fs").S3FileSystem
    clients.clear_instance_cache()  # kept by what they were made with, not by the server
    service = server.ThreadedMotoServer(port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s3-loopback-secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="corpus")

        def put_folder(folder: Path) -> str:
            for path in folder.iterdir():
                client.upload_file(str(path), "corpus", f"{folder.name}/{path.name}")
            return f"s3://corpus/{folder.name}"

        yield put_folder
    service.stop()
    clients.clear_instance_cache()


@pytest.mark.slow
def test_a_run_from_s3_is_the_run_from_disk(bucket, source, tmp_path):
    """The subset is the same, byte for byte, by folder or by glob; no secret in the run."""
    url = bucket(source)
    local = finish(tmp_path / "local", settings(source), "subset")
    assert list_files(f"{url}/*.parquet") == list_files(url)
    distant = finish(tmp_path / "distant", read_from(f"{url}/*.parquet"), "subset")
    for unit in range(local.num_units("subset")):
        assert distant.path("subset", unit).read_bytes() == local.path("subset", unit).read_bytes()
    for file in distant.root.rglob("*"):
        assert file.is_dir() or b"s3-loopback-secret" not in file.read_bytes()


def test_what_is_not_on_s3_is_one_line(bucket, tmp_path):
    """No bucket, no files, a file that has gone: each is named."""
    url = bucket(corpus(tmp_path / "gone"))
    for path in ("s3://nobody/data", f"{url}/nothing"):
        with pytest.raises(InputError, match=path):
            list_files(path)
    with (
        pytest.raises(InputError, match=r"0000\.parquet: no such file"),
        open_parquet(f"{url}/0000.parquet"),
    ):
        pass


def test_benchmarks_earlier_datasets_and_held_out_sets_from_the_hub(reading, tmp_path):
    """Drops and held-out texts are the same as from files on disk."""
    source = corpus(tmp_path / "source")
    rows = pq.read_table(source / "0.parquet").to_pylist()
    others = tmp_path / "others"
    others.mkdir()
    asked = [{"question": row["text"], "answer": "yes, " + row["text"][:40]} for row in rows[:6]]
    (others / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    pq.write_table(pq.read_table(source / "1.parquet").slice(3, 4), others / "earlier.parquet")
    put(reading, others, "org/others")
    found = []
    for place in (f"{others}", "hf://datasets/org/others/data"):
        held_out = {"name": "asked", "path": f"{place}/asked.jsonl"}
        quality = {
            "contamination": {
                "sets": [{**held_out, "columns": ["question"]}],
                "ngram": 5,
                "action": "flag",
            },
            "near_duplicates": {"against": [f"{place}/earlier.parquet"]},
        }
        held_out |= {"column": "answer", "prompt": "question"}
        evaluation = {"model": "tiny", "tokens": 1000, "arms": ["ours", "random"]}
        chosen = settings(source, quality=quality, evaluation={**evaluation, "sets": [held_out]})
        run = finish(tmp_path / f"run{len(found)}", chosen, "held_out")
        tables = [pq.read_table(run.path("quality", shard)) for shard in range(run.num_shards)]
        found.append((pa.concat_tables(tables), pq.read_table(run.path("held_out"))))
    (near, scored), (near_hub, scored_hub) = found
    assert near_hub.equals(near) and scored_hub.equals(scored)
    assert near["dropped"].to_pylist().count("near_duplicate") >= 4
    assert {"asked"} == {name for name in near["contaminated_by"].to_pylist() if name}
    assert scored.num_rows == len(asked) and min(scored["prefix"].to_pylist()) > 0
