"""No pickle, setting or model runs code that the user did not ask for.

The attacks are real: each payload leaves a mark when it runs.
"""

import ast
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.compute import Compute
from datamask.config.inputs import Embedding
from datamask.config.reference import descriptions
from datamask.errors import SettingsError
from datamask.objectives.weighted import load_objective
from datamask.runs.checkpoints import Checkpoints
from tests import finished

PROJECT = Path(__file__).parents[2]


class Payload:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_in_a_checkpoint_is_refused_and_not_run(planned, tmp_path, caplog):
    """Arrays of objects where a killed shard left vectors: they count as no checkpoint."""
    mark, kept = tmp_path / "mark", Checkpoints(planned, "embeddings", 0)
    kept.folder.mkdir(parents=True)
    np.savez(kept.folder / "first.npz", ids=np.array([Payload(mark)] * 2, dtype=object))
    assert kept.load("first") is None
    assert not mark.exists()
    assert "damaged checkpoint" in caplog.text
    with np.load(kept.folder / "first.npz", allow_pickle=True) as arrays:
        assert len(arrays["ids"]) == 2
    assert mark.exists(), "the payload is harmless: the test would see nothing"


def test_a_pickle_in_the_metadata_of_a_source_is_not_run(tmp_path):
    """Arrow once unpickled extension types that a file brought (CVE-2023-47248)."""
    source, mark = finished.corpus(tmp_path / "source"), tmp_path / "mark"
    bring = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload(mark)),
    }
    for path in source.iterdir():
        table = pq.read_table(path)
        fields = [f.with_metadata(bring) if f.name == "dump" else f for f in table.schema]
        pq.write_table(table.cast(pa.schema(fields)), path)
    assert pq.read_metadata(path).metadata, "the file carries Arrow's own schema"
    finished.finish(tmp_path / "run", finished.settings(source), last="subset")
    assert not mark.exists()


def calls(folder: Path) -> Iterator[tuple[Path, str, ast.Call]]:
    """All calls in the Python files of a folder, with the dotted name of what is called."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, ast.unparse(node.func), node


def test_nothing_that_unpickles_or_evaluates_is_called():
    """In the library, the tasks and the flows; np.load only without pickle, text only as UTF-8."""
    forbidden = {
        *("eval", "exec", "pickle.load", "pickle.loads", "joblib.load", "torch.load"),
        *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"),
        *("cloudpickle.load", "cloudpickle.loads", "marshal.loads", "shelve.open"),
    }
    loads = 0
    for folder in ("datamask", "tasks", "flows"):
        for path, name, node in calls(PROJECT / folder):
            assert name not in forbidden, f"{path}:{node.lineno}: {name}"
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert options.get("shell") != "True", f"{path}:{node.lineno}"
            method = name.rpartition(".")[2]
            mode = [*map(ast.unparse, node.args), options.get("mode", ""), ""]
            if method in ("read_text", "write_text") or (
                name.endswith(("path.open", "temporary.open")) and "b" not in mode[0]
            ):
                assert options.get("encoding") == "'utf-8'", f"{path}:{node.lineno}: {name}"
            if name in ("np.load", "numpy.load"):
                loads += 1
                assert options.get("allow_pickle") == "False", f"{path}:{node.lineno}"
    assert loads, "checkpoints are read somewhere: this test looks in the wrong place"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("subprocess:Popen", {"args": ["touch", "MARK"]}),
        ("subprocess:run", {"args": ["touch", "MARK"]}),
        ("os:mkdir", {"path": "MARK"}),
        ("mailbox:Maildir", {"dirname": "MARK"}),
        ("shelve:DbfilenameShelf", {"filename": "MARK"}),
    ],
)
def test_settings_call_no_class_but_objectives(name, options, tmp_path):
    """A function, or a class with `values` that is not an objective, is refused, never called."""
    mark = str(tmp_path / "mark")
    given = json.loads(json.dumps(options).replace("MARK", mark))
    with pytest.raises(SettingsError, match=f"{name}`: ") as caught:
        load_objective(name, given)
    assert "see docs/own-objective.md" in str(caught.value)
    assert not list(tmp_path.iterdir())


CODE = "from pathlib import Path\nPath({mark!r}).touch()\nclass Theirs: pass\n"


def custom_configuration(folder: Path) -> None:
    """A model whose configuration is a class of its own."""
    config = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}
    (folder / "config.json").write_text(json.dumps(config))


def custom_module(folder: Path) -> None:
    """A sentence-transformers model that begins with a module of its own."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "theirs.Theirs"}]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("write", [custom_configuration, custom_module])
def test_code_of_a_model_does_not_run_unless_asked_for(write, tmp_path, monkeypatch):
    """By default it is refused in one line; with trust_remote_code it does run."""
    from datamask.embedding.pinning import folder_digest
    from datamask.embedding.sentence_transformer import load_model

    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    write(folder)
    (folder / "theirs.py").write_text(CODE.format(mark=str(mark)))
    pin = folder_digest(folder)
    assert not Embedding().trust_remote_code
    with pytest.raises(SettingsError, match="cannot be loaded"):
        load_model(Embedding(model=str(folder)), pin, Compute())
    assert not mark.exists()
    with pytest.raises(Exception):  # noqa: B017 - their class is no model; it was run
        load_model(Embedding(model=str(folder), trust_remote_code=True), pin, Compute())
    assert mark.exists(), "the code is never run: the test would see nothing"


def test_every_setting_that_runs_code_is_listed():
    """The settings whose help says so are those of SECURITY.md, and its command finds them."""
    named = {
        key.partition(" (kind ")[0].replace("[].", "`, a `")
        for key, help in descriptions().items()
        if "package.module:Class" in help.partition(" (kind ")[0] or "trust_remote_code" in key
    }
    text = (PROJECT / "SECURITY.md").read_text()
    assert named and all(f"`{key}" in text for key in named)
    [pattern] = re.findall("grep -E '([^']+)'", text)
    for line in ('"method": "a.b:C",', '"name": "a:B"', '"trust_remote_code": true,'):
        assert re.search(pattern, line)
    assert not re.search(pattern, '"path": "s3://a/b", "method": "lexical"')
