"""A run that somebody else made leads no command to a file outside of the run."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from datamask.errors import RunError
from datamask.execution.pipeline import rebuild
from datamask.runs.opening import run_storage
from datamask.runs.receipt import canonical_json
from datamask.storage.names import inside, is_plain
from tests import finished
from tests.malformed.commands import run_main

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

THESIS = b"the only copy of a thesis"
OUTSIDE = "home/thesis.txt"
"""The user's file, next to the folder of the run."""

COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "verify": lambda run, new: ["verify", run],
    "status": lambda run, new: ["status", run],
    "report": lambda run, new: ["report", run],
    "publish": lambda run, new: ["rebuild", run],
    "share": lambda run, new: ["rebuild", new, "--from", run],
    "extend": lambda run, new: ["extend", run],
    "compare": lambda run, new: ["compare", run, run, "--output", f"{new}.html"],
    "apply": lambda run, new: ["apply", run, new],
    "label": lambda run, new: ["label", run, "--endpoint", "http://127.0.0.1:1/v1"],
    "query": lambda run, new: ["query", run, "SELECT count(*) FROM documents"],
}
LINKED = (
    *("locks", "logs", "records", "checkpoints", "tmp", "publication", "report"),
    *("subset", "documents", "pictures", "embeddings", "selection", "mask_model"),
    *("run.json", "plan.parquet", "published.json", "report.html", "composition.duckdb"),
    *("documents/00000.parquet", "documents/other.parquet", "subset/train-00000-of-00002.parquet"),
    *("records/plan.parquet.json", "mask_model/model.safetensors", "pictures/stolen.png"),
    *("publication/README.md", "publication/data", "logs/selection/00000.log", "locks/run.lock"),
    *("labels", "labels/labels", "labels/labels/journal.jsonl", "labels/labels/lock"),
    *("locks/settings.lock", "checkpoints/embeddings", "tmp/" + 32 * "a" + ".lock"),
)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, published run."""
    folder = tmp_path_factory.mktemp("theirs")
    source = finished.corpus(folder / "source")
    chosen = finished.settings(source, publication={"dry_run": True, "license": "mit"})
    return rebuild(folder / "run", chosen).root


def hostile_names() -> st.SearchStrategy[str]:
    """Names that lead to the user's file, from some depth of folders, and any other text."""
    to_file = st.sampled_from((OUTSIDE, f"./{OUTSIDE}", OUTSIDE.replace("/", "\\"), "home"))
    climbing = st.builds(
        lambda begin, up, to, end: begin + up * "../" + to + end,
        st.sampled_from(("", "data/", "/", "./", "..\\", "\0")),
        st.integers(0, 6),
        to_file,
        st.sampled_from(("", "/", "/.", "\0", "\n")),
    )
    return climbing | st.just("absolute") | st.text(max_size=300)


def published(run: Path, name: str) -> None:
    """Name a file in published.json, with a checksum that the user's file does not have."""
    path = run / "published.json"
    record = json.loads(path.read_text()) if path.exists() else {"files": []}
    record["files"].append({"path": name, "sha256": "0" * 64, "size": 1})
    (run / "published.json").write_text(json.dumps(record))
    note(run, "published.json")


def dump(run: Path, name: str) -> None:
    """Give the first shard's documents to a dump of that name, and let the subset be made again."""
    table = pq.read_table(run / "plan.parquet")
    dumps = json.dumps([{name: 45}, {"other": 45}, {"other": 30}])
    with_dumps = table.replace_schema_metadata(
        {**table.schema.metadata, b"datamask-dumps": dumps.encode(errors="replace")}
    )
    pq.write_table(with_dumps, run / "plan.parquet")
    note(run, "plan.parquet")


def score(run: Path, name: str) -> None:
    """Name a score in run.json, whose digest anybody can compute."""
    record = json.loads((run / "run.json").read_text())
    record["settings"]["quality"]["scores"][0]["name"] = name
    record.pop("digest")
    text = canonical_json([record])
    record["digest"] = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
    (run / "run.json").write_text(json.dumps(record))


def link(run: Path, name: str) -> None:
    """Put a link to the user's folder or file in the place of one of the run's."""
    path = run / name
    home = run.parent / "home"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, home, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    is_folder = ("." not in path.name and path.name != "embeddings") or name == "checkpoints"
    path.symlink_to(home if is_folder else home / "thesis.txt")


def note(run: Path, name: str) -> None:
    """Write the SHA-256 of a file as datamask does."""
    sha256 = hashlib.sha256((run / name).read_bytes()).hexdigest()
    (run / "records" / f"{name}.json").write_text(
        json.dumps({"sha256": {name: sha256}, "work": {}})
    )


CHANGES = {change.__name__: change for change in (published, dump, score, link)}


@pytest.mark.slow
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(sorted(COMMANDS)),
    st.sampled_from(("published", "dump", "score")).flatmap(
        lambda change: st.tuples(st.just(change), hostile_names())
    )
    | st.tuples(st.just("link"), st.sampled_from(LINKED)),
)
@example("verify", ("published", f"../../{OUTSIDE}"))
@example("verify", ("published", "absolute"))
@example("publish", ("link", "locks/settings.lock"))
@example("publish", ("link", "publication"))
@example("publish", ("link", "pictures/stolen.png"))
@example("publish", ("link", "publication/data"))
@example("report", ("link", "logs"))
@example("label", ("link", "labels"))
@example("label", ("link", "labels/labels/journal.jsonl"))
@example("share", ("link", "subset/train-00000-of-00002.parquet"))
def test_no_command_leaves_a_hostile_run(theirs, tmp_path, capsys, command, change):
    """The user's files keep their names and bytes, and appear in no run and in no message."""
    place = tmp_path / uuid.uuid4().hex
    run, home = place / "run", place / "home"
    shutil.copytree(theirs, run, symlinks=True)
    home.mkdir()
    (home / "thesis.txt").write_bytes(THESIS)
    how, name = change
    if command == "publish":
        (run / "published.json").unlink()
    CHANGES[how](run, str(home / "thesis.txt") if name == "absolute" else name)
    before = contents(place, run)
    capsys.readouterr()
    status = run_main(["-q", *COMMANDS[command](str(run), str(place / "new"))])
    said = "".join(capsys.readouterr())
    after = contents(place, run, place / "new", place / "new.html")
    assert status in (0, 2, 75), (status, said)
    assert after == before
    made = [*run.rglob("*"), *place.glob("new/**/*")]
    for secret in (THESIS, hashlib.sha256(THESIS).hexdigest().encode()):
        assert not [path for path in made if is_file_of(path) and secret in path.read_bytes()]
    assert THESIS.decode() not in said
    shutil.rmtree(place)


def is_file_of(path: Path) -> bool:
    """Return True if a path is a regular file, not a link."""
    return path.is_file() and not path.is_symlink()


def contents(place: Path, *left_out: Path) -> dict[str, bytes]:
    """The bytes of all files below *place* but those of the runs; folders have none."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in place.rglob("*")
        if not any(path.is_relative_to(other) for other in left_out)
    }


@settings(max_examples=300, deadline=None, derandomize=True)
@given(hostile_names())
@example("a//b")
@example("")
@example("x" * 256)
def test_a_name_leads_into_the_run_or_nowhere(name):
    """Paths that `inside` accepts are below the folder by the system's own reading of paths."""
    root = Path("/a/run")
    try:
        path = inside(root, name)
    except RunError as error:
        assert "\n" not in str(error)
        return
    assert is_plain(name)
    assert os.path.normpath(path) == str(path) == f"/a/run/{name}"


def test_a_store_that_lists_hostile_names(tmp_path, monkeypatch):
    """Names that an object store returns lead to no file outside of the cache."""
    import fsspec

    monkeypatch.setenv("DATAMASK_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    for name in ("selection/00000.parquet", "selection/../../../../../home/thesis.txt"):
        files.store[f"/theirs/run/{name}"] = files.store.get(name) or memory_file(files, name)
    storage = run_storage("memory://theirs/run")
    with storage.in_use(10**6, whole_run=True):
        assert storage.list("selection") == ["selection/00000.parquet"]
        storage.fetch("selection/00000.parquet")
    for name in ("../x", "selection/../../x", "/x", "a\\b"):
        for act in (storage.fetch, storage.remove, storage.set_aside, storage.noted_sha256):
            with pytest.raises(RunError):
                act(name)
    cached = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "cache") for path in cached)
    files.store.clear()


def memory_file(files: object, name: str) -> object:
    """An object of fsspec's memory file system, which checks no names."""
    from fsspec.implementations.memory import MemoryFile

    return MemoryFile(files, f"/theirs/run/{name}", b"half")
