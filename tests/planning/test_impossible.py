"""Budgets and limits that cannot be met are refused alike, whatever run they are asked of."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.config.settings import Settings
from datamask.errors import DatamaskError, InputError, SettingsError
from datamask.execution.pipeline import rebuild
from tests.conftest import nightly
from tests.finished import corpus, finish, settings

pytestmark = pytest.mark.usefixtures("undrawn", "roughly")

FINNISH = {"column": "language", "value": "fi", "floor": 0.1}
SMALL_CAPS = [{"column": "domain", "cap": 0.1}]

BEFORE_DROPPING: dict[str, dict[str, Any]] = {
    "documents above the source": {"documents": 1000},
    "ratio above what pruning leaves": {"ratio": 0.95},
    "documents above what pruning leaves": {"documents": 115},
    "tokens above the source": {"tokens": 999_999},
    "floor of an absent group": {"limits": [FINNISH]},
    "floor of an absent group, in tokens": {"tokens": 500, "limits": [FINNISH]},
    "caps": {"limits": SMALL_CAPS},
    "caps, in tokens": {"tokens": 900, "limits": SMALL_CAPS},
    "documents above all repeats": {"max_repeat": 2, "training_documents": 999},
    "documents below one epoch": {"max_repeat": 2, "training_documents": 9},
    "tokens above all repeats": {"max_repeat": 2, "training_tokens": 999_999},
}
"""What no drop of documents makes possible."""

AFTER_DROPPING: dict[str, dict[str, Any]] = {
    "documents without tokens": {"tokens": 500},
    "documents above what is left": {"documents": 96},
    "tokens above what is left": {"tokens": 3500},
    "tokens below one epoch": {"max_repeat": 2, "training_tokens": 100},
}
"""What depends on which documents are dropped."""

FIRST_AFTER = ("quality", "embeddings", "selection", "subset")
"""Folders that no refused launch changes."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus with four more empty documents."""
    folder = corpus(tmp_path_factory.mktemp("corpus") / "source")
    for number in (0, 3):
        path = folder / f"{number}.parquet"
        columns = pq.read_table(path).to_pydict()
        columns["text"][3:5] = ["", " "]
        pq.write_table(pa.table(columns), path, row_group_size=12)
    return folder


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """As above, but the document of the highest quality has no number of tokens."""
    folder = shutil.copytree(source, tmp_path_factory.mktemp("gaps") / "source")
    columns = pq.read_table(folder / "0.parquet").to_pydict()
    columns["edu"][9], columns["token_count"][9] = 9.0, None
    pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=12)
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Of a source, a finished run, and another of all its files but the last."""

    @functools.cache
    def make(source: Path) -> Path:
        folder = tmp_path_factory.mktemp("done")
        finish(folder / "whole", settings(source), "composition")
        last = (source / "3.parquet").rename(folder / "3.parquet")
        finish(folder / "part", settings(source), "composition")
        last.rename(source / "3.parquet")
        return folder

    return make


def files(folder: Path, names: tuple[str, ...] = ("",)) -> dict[str, bytes]:
    """Every file of a run, without locks, logs and records of work."""
    others = ("locks", "logs", "records")
    paths = (path for name in names for path in (folder / name).rglob("*") if path.is_file())
    parts = {path.relative_to(folder): path for path in paths}
    return {
        str(name): path.read_bytes() for name, path in parts.items() if name.parts[0] not in others
    }


def chosen(selection: dict[str, Any]) -> Callable[[Settings | None], Settings]:
    """The settings of a run with another selection."""

    def change(own: Settings | None) -> Settings:
        assert own is not None
        data = own.selection.model_copy(update={"steps": 30}).changed(selection)
        return own.model_copy(update={"selection": type(own.selection)(**data)})

    return change


@pytest.mark.parametrize("way", ["new", "changed", *nightly("extended", "from")])
@pytest.mark.parametrize("name", [*BEFORE_DROPPING, *AFTER_DROPPING])
def test_what_cannot_be_met_is_refused_and_nothing_changes(tmp_path, source, gaps, done, name, way):
    """All get the same error, before run.json changes wherever the counts are on disk."""
    selection = (BEFORE_DROPPING | AFTER_DROPPING)[name]
    has_gaps = name == "documents without tokens"
    expected = InputError if has_gaps else SettingsError
    folder = done(gaps if has_gaps else source)
    root = tmp_path / "run"
    change: Any = chosen(selection)
    more: dict[str, Any] = {}
    if way in ("changed", "extended"):
        shutil.copytree(folder / ("whole" if way == "changed" else "part"), root)
        more = {"extend": way == "extended"}
    elif way == "from":
        more = {"origin": folder / "whole"}
    else:
        change = change(settings(gaps if has_gaps else source))
    before = files(root)
    after = files(root, FIRST_AFTER)
    with pytest.raises(DatamaskError) as caught:
        rebuild(root, change, **more)
    assert {type(problem) for problem in caught.value.problems} == {expected}
    named = "row 9, column token_count" if has_gaps else f"selection.{[*selection][-1]}: "
    assert named in str(caught.value)
    if name in BEFORE_DROPPING or way in ("changed", "from"):
        assert files(root) == before
    assert files(root, FIRST_AFTER) == after
    if way == "from":
        assert not root.exists()
