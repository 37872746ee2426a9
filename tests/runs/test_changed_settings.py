"""A setting that is changed on a finished run gives the outputs of a fresh run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.execution.pipeline import rebuild
from datamask.runs.stages import STAGES
from tests.finished import corpus, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "roughly")]

GRADE = {"name": "edu", "kind": "column", "column": "edu"}

CHANGES: dict[str, Any] = {
    # Which vectors are there depends on these, and those of before are used again.
    "quality.prune_fraction": 0.4,
    "quality.duplicates": "drop",
    "quality.near_duplicates": {"similarity": 0.6},
    "embedding.storage": "int8",
    # Stages read these and have them in no fingerprint (`ELSEWHERE` of test_fingerprints.py).
    "quality.scores": [{**GRADE, "missing": 3.0}],
    "selection.rounds": 1,
    "selection": {"max_repeat": 2, "training_documents": 45},
    # There are other stages, or other files of a stage.
    "selection.scope": "corpus",
    "selection.limits": [{"column": "language", "cap": 0.7}],
    "source.columns": {"dump": "language"},
    "subset.file_bytes": 1024,
    "topics": {"number": 3},
    # And one that only the learner reads.
    "selection.quality_weight": 0.9,
}
"""Settings that are changed to these values; test_fingerprints.py has what each stage reads."""

BASES: dict[str, dict[str, Any]] = {
    "shard": {},
    "corpus": {"scope": "corpus", "rounds": 3},
}


def changed(chosen: Settings, path: str, value: Any) -> Settings:
    """Settings with one of another value; a group gets those that are given."""
    data = chosen.model_dump(mode="json", exclude_defaults=True)
    *groups, last = path.split(".")
    group = data
    for name in groups:
        group = group.setdefault(name, {})
    group[last] = {**group.get(last, {}), **value} if isinstance(value, dict) else value
    made: Settings = parse_settings(data)
    return made


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Settings]]:
    """A finished run of each kind, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("done"), {}
    source = corpus(folder / "source")

    def make(base: str) -> tuple[Path, Settings]:
        if base not in made:
            made[base] = settings(source, selection=BASES[base])
            rebuild(folder / base, made[base])
        return folder / base, made[base]

    return make


def outputs(root: Path) -> dict[str, Any]:
    """Read what the stages wrote: bytes, but vectors by value, because they may be reused."""
    names = {stage.file.partition("/")[0] or stage.name for stage in STAGES.values()}
    paths = [path for name in sorted(names) for path in (root / name).rglob("*.parquet")]
    paths += [path for path in root.glob("*.parquet") if path.name != "plan.parquet"]
    return {
        str(path.relative_to(root)): (
            pq.read_table(path) if path.parent.name == "embeddings" else path.read_bytes()
        )
        for path in paths
    }


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_run_is_a_fresh_run(tmp_path, done, name, base):
    """Every output of a fresh run with the setting is in the changed run, byte for byte."""
    finished, chosen = done(base)
    try:
        wanted = changed(chosen, name, CHANGES[name])
    except SettingsError:
        pytest.skip("not a setting of this kind of run")
    shutil.copytree(finished, tmp_path / "run")
    rebuild(tmp_path / "run", wanted)
    rebuild(tmp_path / "fresh", wanted)
    fresh, run = outputs(tmp_path / "fresh"), outputs(tmp_path / "run")
    assert len(fresh) > 15
    assert [path for path in fresh if path not in run or fresh[path] != run[path]] == []
