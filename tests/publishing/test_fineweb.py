"""`deployments/fineweb.yaml` from its source on a Hub to a published dataset that others load.

The Hub is on loopback, and has texts in FineWeb's layout under FineWeb's name. `make fineweb` does
the same with 200,000 documents, and says what the run took.
"""

import json
import os
import resource
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from benchmarks.fineweb_stand_in import DUMPS, ROWS_PER_FILE, write_stand_in
from datamask.runs.opening import open_run
from tests.docs.pages import ROOT
from tests.finished import table_of
from tests.publishing.test_processes import finished, start

ROWS = int(os.environ.get("DATAMASK_FINEWEB", "3000"))
SOURCE, NAME = "HuggingFaceFW/fineweb", "ada/fineweb-mask"

READ = """
import datasets, duckdb, json, sys
from huggingface_hub import HfFileSystem
name, *dumps = sys.argv[1:]
parts = {dump: list(datasets.load_dataset(name, dump, split="train")["id"]) for dump in dumps}
whole = datasets.load_dataset(name, split="train")
duckdb.register_filesystem(HfFileSystem())
files = f"hf://datasets/{name}/data/*/*.parquet"
counts = duckdb.sql(f"SELECT dump, count(*), sum(token_count) FROM '{files}' GROUP BY 1").fetchall()
print(json.dumps([parts, list(whole["id"]), whole.column_names, counts]))
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fineweb_from_the_hub_to_the_hub(hub, tmp_path, monkeypatch):
    """The settings file as it is, with another embedder: no model is on the loopback Hub."""
    write_stand_in(tmp_path, ROWS)
    files = sorted((tmp_path / "sample/10BT").iterdir())
    assert len(files) == -(-ROWS // ROWS_PER_FILE)
    hub.add(SOURCE, {f"sample/10BT/{path.name}": path.read_bytes() for path in files})
    monkeypatch.chdir(tmp_path)
    settings = ("embedding.method=lexical", f"publication.repository={NAME}", "publication.tag=v1")
    given = [word for setting in settings for word in ("--set", setting)]
    config, begun = ROOT / "deployments/fineweb.yaml", time.monotonic()
    command = ("-m", "datamask.cli.main", "rebuild", "run", "--config", config, *given)
    printed, _ = finished(start(hub, tmp_path / "home", *command))
    seconds, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{printed}\n{ROWS} documents in {seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU"
    )
    print(f"at most {used.ru_maxrss / 1e6:.2f} GB of memory")
    for folder in ("", "publication", "embeddings"):
        size = sum(path.stat().st_size for path in (Path("run") / folder).rglob("*.*"))
        print(f"run/{folder} {size / 1e6:.1f} MB")
    run = open_run(Path("run"))
    documents = table_of(run, "documents").to_pylist()
    selected = {row["id"] for row in documents if row["selected"]}
    assert len(selected) == ROWS // 10

    read, _ = finished(start(hub, tmp_path / "home", "-c", READ, NAME, *DUMPS))
    parts, whole, columns, counts = json.loads(read)
    rows = {row["id"]: row for path in files for row in pq.read_table(path).to_pylist()}
    assert set(whole) == selected and len(whole) == len(selected)
    for dump in DUMPS:
        assert set(parts[dump]) == {name for name in selected if rows[name]["dump"] == dump}
    assert columns == [*next(iter(rows.values())), "quality", "logit", "shard"]
    assert {dump: (number, tokens) for dump, number, tokens in counts} == {
        dump: (len(parts[dump]), sum(rows[name]["token_count"] for name in parts[dump]))
        for dump in DUMPS
    }

    repository = hub.repositories[NAME]
    assert repository.tags == {"v1": repository.branches["main"]}
    card = DatasetCard(hub.files(NAME)["README.md"].decode())
    assert card.data.license == "odc-by" and "2406.17557" in card.text
    assert {config["config_name"] for config in card.data["configs"]} == {
        *("default", "sample"),
        *DUMPS,
    }
    assert "en" in card.data.language and SOURCE in str(card.data.source_datasets)
    pinned = hub.repositories[SOURCE].branches["main"]
    assert run.pinned_revisions["scores:source"] == pinned
