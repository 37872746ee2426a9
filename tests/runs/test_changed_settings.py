"""Every setting, changed on a finished run, gives the outputs of a fresh run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datamask.config.loading import parse_settings
from datamask.config.reference import descriptions
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.execution.pipeline import rebuild
from datamask.runs.stages import STAGES
from tests.finished import corpus, settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn", "roughly")]

GRADE = {"name": "edu", "kind": "column", "column": "edu"}
LENGTH = {"name": "length", "weight": 0.5}
NEAR = {"similarity": 0.6}

CHANGES: dict[str, tuple[str, Any]] = {
    "seed": ("seed", 7),
    "source.columns.text": ("source.columns", {"text": "id"}),
    "source.columns.dump": ("source.columns", {"dump": "language"}),
    "source.columns.url": ("source.columns", {"url": "id"}),
    "source.columns.language": ("source.columns", {"language": "dump"}),
    "source.columns.token_count": ("source.columns", {"token_count": "edu"}),
    "quality.scores[].name": ("quality.scores", [{**GRADE, "name": "mark"}]),
    "quality.scores[].kind": ("quality.scores", [{"name": "edu"}]),
    "quality.scores[].column": ("quality.scores", [{**GRADE, "column": "token_count"}]),
    "quality.scores[].normalisation": ("quality.scores", [{**GRADE, "normalisation": "rank"}]),
    "quality.scores[].normalise_within": (
        "quality.scores",
        [{**GRADE, "normalise_within": "language"}],
    ),
    "quality.scores[].weight": ("quality.scores", [{**GRADE, "weight": 2.0}]),
    "quality.scores[].missing": ("quality.scores", [{**GRADE, "missing": 3.0}]),
    "quality.scores": ("quality.scores", [GRADE, {"name": "form"}]),
    "quality.prune_fraction": ("quality.prune_fraction", 0.4),
    "quality.duplicates": ("quality.duplicates", "drop"),
    "quality.near_duplicates": ("quality.near_duplicates", NEAR),
    "embedding.dimension": ("embedding.dimension", 16),
    "embedding.storage": ("embedding.storage", "int8"),
    "selection.scope": ("selection.scope", "corpus"),
    "selection.rounds": ("selection.rounds", 1),
    "selection.method": ("selection.method", "random"),
    "selection.ratio": ("selection.ratio", 0.4),
    "selection.documents": ("selection.documents", 20),
    "selection.tokens": ("selection.tokens", 900),
    "selection.limits": ("selection.limits", [{"column": "language", "cap": 0.7}]),
    "selection.max_repeat": ("selection", {"max_repeat": 2, "training_documents": 45}),
    "selection.training_tokens": ("selection", {"max_repeat": 3, "training_tokens": 2000}),
    "selection.metric": ("selection.metric", "pairwise"),
    "selection.quality_weight": ("selection.quality_weight", 0.9),
    "selection.more_terms": ("selection.more_terms", [LENGTH]),
    "selection.scale_terms": ("selection.scale_terms", False),
    "selection.estimator": ("selection.estimator", "expected"),
    "selection.init": ("selection.init", "uniform"),
    "selection.steps": ("selection.steps", 5),
    "selection.batch_fraction": ("selection.batch_fraction", 0.5),
    "selection.rollouts": ("selection.rollouts", 4),
    "selection.initial_lr": ("selection.initial_lr", 20.0),
    "selection.final_lr": ("selection.final_lr", 0.5),
    "selection.tolerance": ("selection.tolerance", 0.2),
    "selection.swap_refinement": ("selection.swap_refinement", 0),
    "subset.column_prefix": ("subset.column_prefix", "dm_"),
    "subset.file_bytes": ("subset.file_bytes", 1024),
    "evaluation.hold_out": ("evaluation.hold_out", 0.1),
    "topics.number": ("topics", {"number": 3}),
}
"""For each setting, which one is changed to what."""

ELSEWHERE = (
    *("source.", "plan", "compute.", "sweep.", "publication", "evaluation", "tokens.", "rubric."),
    *("quality.scores[]", "quality.near_duplicates.", "quality.contamination"),
    *("embedding.", "selection.mask_model", "selection.training_documents"),
    *("selection.limits[]", "selection.more_terms[]"),
)
"""Beginnings of settings that name other files or models, that are fixed for the life of a run,
that change no output of these runs, or that are part of a group above."""

BASES: dict[str, dict[str, Any]] = {
    "shard": {},
    "gradient": {"estimator": "policy_gradient", "rollouts": 8, "init": "quality"},
    "corpus": {"scope": "corpus", "rounds": 3},
}


def changed(chosen: Settings, path: str, value: Any) -> Settings:
    """Settings with one of another value; a group gets those that are given."""
    data = chosen.model_dump(mode="json", exclude_defaults=True)
    *groups, last = path.split(".")
    group = data
    for name in groups:
        group = group.setdefault(name, {})
    if path in ("selection.documents", "selection.tokens"):
        group.pop("ratio")
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
    """What the stages wrote: bytes, but vectors by value, because they may have been reused."""
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
        wanted = changed(chosen, *CHANGES[name])
    except SettingsError:
        pytest.skip("not a setting of this kind of run")
    shutil.copytree(finished, tmp_path / "run")
    rebuild(tmp_path / "run", wanted)
    rebuild(tmp_path / "fresh", wanted)
    fresh, run = outputs(tmp_path / "fresh"), outputs(tmp_path / "run")
    assert len(fresh) > 15
    assert [path for path in fresh if path not in run or fresh[path] != run[path]] == []


def test_every_setting_is_changed():
    """Or it is named among those that are tested elsewhere."""
    groups = {key.rpartition(".")[0] for key in descriptions()}
    left = [key for key in descriptions() if key not in CHANGES and key not in groups]
    assert [key for key in left if not key.startswith(ELSEWHERE)] == []
