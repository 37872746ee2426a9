"""Settings that are malformed, unknown, out of range or name unusable classes are refused."""

from pathlib import Path

import pytest

from tests.malformed.commands import LATE, assert_refused, problems, run_main
from tests.malformed.inputs import Cases, Make, arguments, corpus, rebuild, setting


def config(content: str | bytes) -> Make:
    """A good corpus and a configuration file."""

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        path = folder / "my.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [*rebuild(folder), "--config", str(path)]

    return make


def objective(body: str, *, inside: bool = False) -> Make:
    """A module of the user's with an objective; *inside*: the body of its `values`."""
    if inside:
        body = (
            "import torch\n"
            "class Term:\n"
            "    name, maximise = 'mine', True\n"
            "    def values(self, masks, batch):\n"
            + "".join(f"        {line}\n" for line in body.splitlines())
        )

    def make(folder: Path) -> list[str]:
        corpus(folder / "source")
        (folder / "their_terms.py").write_text(body)
        return rebuild(folder, selection__metric="their_terms:Term")

    return make


SETTINGS: Cases = {
    "no such configuration": (
        arguments("rebuild", "HERE/run", "--config", "HERE/none.yaml"),
        "--config",
    ),
    "configuration that is not YAML": (
        config("seed: 1\nsource: [1"),
        "my.yaml, line 2, column 11: not YAML (",
    ),
    "configuration that is a list": (config("- 1\n"), "my.yaml"),
    "configuration with an alias": (
        config("seed: &a 1\nplan: {rows_per_shard: *a}\n"),
        "my.yaml, line 2, column 24: not YAML (an alias; write its value here)",
    ),
    "a key outside its group": (config("quality_weight: 0.5\n"), "quality_weight: unknown key;"),
    "key given twice": (
        config("seed: 1\nselection:\n  ratio: 0.1\n  steps: 5\n  'ratio': 0.2\n"),
        "my.yaml, line 5, column 3: not YAML (key `ratio` was given in line 3 already); fix it",
    ),
    "unknown key in --set": (setting(sorce__path="x"), "sorce: unknown key; did you mean"),
    "limit of a column that there is not": (
        setting(selection__limits="[{column: language, cap: 0.5}]"),
        "selection.limits: the source has no column `language`; set source.columns.language",
    ),
    "objective that is none": (
        setting(selection__metric="decimal:Decimal"),
        "objective `decimal:Decimal`: needs a class with `name`, `maximise` and `values`; see",
    ),
    "objective that raises": (
        objective("raise RuntimeError('boom')", inside=True),
        "objective `mine`: failed (RuntimeError: boom); fix its class",
    ),
    "objective of another shape": (
        objective("return torch.zeros(3)", inside=True),
        "objective `mine`: values() gave [3] for 2 masks; it must return a tensor of shape [2]",
    ),
    "objective that fails later": (
        objective(
            "if len(masks[0]) < 9:\n    raise RuntimeError('few')\nreturn masks.sum(1) / 1.0",
            inside=True,
        ),
        "selection: 1 of 2 shards failed: 00001 (",
    ),
    "folder without a model": (
        setting(embedding__method="sentence-transformer", embedding__model="HERE/source"),
        "config.json is missing",
    ),
    "publication under an impossible name": (
        setting(publication="{repository: ada/subset.git, license: mit}"),
        "'ada/subset.git'",
    ),
    "score named as the raw values of another": (
        setting(quality__scores="[{name: edu}, {name: raw_edu}]"),
        "name `raw_edu` is reserved for a column of the run's files",
    ),
    "no memory for DuckDB": (setting(compute__duckdb_memory="0MB"), "compute.duckdb_memory:"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_input_gets_one_line(name, tmp_path, capsys):
    """Configuration files, options and values that cannot be used."""
    late = frozenset({"subset"}) if name == "objective that fails later" else LATE
    assert_refused(SETTINGS[name], tmp_path, capsys, late)


def test_all_faulty_settings_are_reported_together(tmp_path, capsys):
    """The faults of the file, of --set and of compute have one line each."""
    (tmp_path / "my.yaml").write_text("sorce: {}\nseed: -1\ncompute: {workers: 0}\nplan:\n")
    more = ["--set", "selection.ratio=2", "--set", "quality", "--set", "publication.repository=x"]
    more += ["--set", "selection.metric=dissf"]
    given = ["rebuild", str(tmp_path / "run"), "--config", str(tmp_path / "my.yaml"), *more]
    assert run_main(given) == 2
    keys = [line.split()[1].rstrip(":") for line in problems(capsys)]
    assert sorted(keys) == sorted(
        (
            *("--set", "sorce", "seed", "selection.ratio", "selection.metric"),
            *("publication.repository", "compute.workers"),
        )
    )
