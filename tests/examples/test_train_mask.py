"""The published script: its step against numpy, and its flags as a user types them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from datamask.learning import policy_gradient
from datamask.learning.data import ShardData
from examples.train_mask import main

DIMENSION, ROWS = 8, 400

Floats = npt.NDArray[np.float64]


def write_input(path: Path) -> Path:
    """The published columns: integer ids, float64 scores, lists of half floats."""
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((12, DIMENSION))
    noise = generator.standard_normal((ROWS, DIMENSION))
    vectors = centres[generator.integers(0, 12, ROWS)] + noise
    columns = {
        "chunk_id": pa.array(np.arange(ROWS) * 7),
        "quality_score": pa.array(3 + 2 * generator.standard_normal(ROWS)),
        "feature_arr": pa.array(list(vectors.astype(np.float16)), pa.list_(pa.float16())),
    }
    pq.write_table(pa.table(columns), path, row_group_size=150)
    return path


def read_input(path: Path) -> tuple[Floats, Floats]:
    """Scores, and vectors of unit length, in float64."""
    table = pq.read_table(path)
    rows = np.array(table["feature_arr"].to_pylist(), np.float64)
    return table["quality_score"].to_numpy(), rows / np.linalg.norm(rows, axis=1, keepdims=True)


def diversity(algorithm: str, batch: Floats, kept: npt.NDArray[np.bool_]) -> float:
    """The term of a metric in the paper's sum, from its definition; more is more diverse."""
    rows = batch[kept]
    if algorithm == "Facility":
        return float((batch @ rows.T).max(axis=1).mean())
    if algorithm == "Pair_simi":
        cosines = rows @ rows.T
        return -float((cosines.sum() - np.trace(cosines)) / (len(rows) * (len(rows) - 1)))
    correlations = np.corrcoef(rows, rowvar=False)
    return -float((correlations**2).sum() - DIMENSION) / 10_000


@pytest.mark.parametrize("algorithm", ["DiSF", "Facility", "Pair_simi"])
def test_a_step_is_that_of_the_published_objective(algorithm, tmp_path, monkeypatch):
    """One batch and its masks give the gradient that numpy finds from the unscaled sum.

    After one step, the mask has the largest of the initial logits plus the learning rate times it.
    """
    source, seen = write_input(tmp_path / "in.parquet"), {}
    draw, step, batch_of = policy_gradient.gumbel_top_s, policy_gradient.direction, ShardData.batch

    def drawn(*given: object) -> torch.Tensor:
        seen["masks"] = draw(*given)
        return seen["masks"]

    def stepped(*given: object) -> torch.Tensor:
        seen["gradient"] = step(*given)
        return seen["gradient"]

    def batched(data: ShardData, rows: torch.Tensor) -> object:
        seen["rows"] = rows
        return batch_of(data, rows)

    monkeypatch.setattr(policy_gradient, "gumbel_top_s", drawn)
    monkeypatch.setattr(policy_gradient, "direction", stepped)
    monkeypatch.setattr(ShardData, "batch", batched)
    flags = ["--n_epochs", "1", "--partial", "0.5", "--n_rollout", "32", "--lamb", "0.3"]
    flags += ["--max_lr", "4", "--algorithm", algorithm]
    output = tmp_path / "mask.parquet"
    assert main(["--input", str(source), "--output", str(output), *flags]) == 0

    quality, vectors = read_input(source)
    rows, masks = seen["rows"].numpy(), seen["masks"].numpy()
    assert masks.shape == (32, 200) and set(masks.sum(axis=1)) == {20}
    rewards = np.array(
        [
            0.3 * quality[rows][kept].mean() + 0.7 * diversity(algorithm, vectors[rows], kept)
            for kept in masks
        ]
    )
    advantages = (rewards - rewards.mean()) / rewards.std(ddof=1)
    gradient = (advantages[:, None] * masks).mean(axis=0)
    assert seen["gradient"].numpy() == pytest.approx(gradient, abs=2e-4)

    logits = np.log(0.1 + 0.9 * (quality - quality.min()) / np.ptp(quality))
    logits[rows] += 4 * gradient
    kept = pq.read_table(output)["selected"].to_numpy()
    assert set(np.flatnonzero(kept)) == set(np.argsort(-logits)[:40])


@pytest.mark.slow
def test_every_published_flag_works_as_a_process(tmp_path):
    """All flags at once; the output has the published columns in the input's order and types."""
    source, output = write_input(tmp_path / "in.parquet"), tmp_path / "mask.parquet"
    flags = (
        "--device cpu --n_epochs 300 --algorithm Pair_simi --partial 0.5 --max_lr 10 --min_lr 1 "
        "--n_rollout 64 --select_ratio 0.1 --init same --lamb 0.5"
    )
    command = [sys.executable, "examples/train_mask.py", *flags.split()]
    command += ["--input", str(source), "--output", str(output)]
    home = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
    assert done.returncode == 0, done.stderr
    mask = pq.read_table(output)
    assert mask.schema.names == ["chunk_id", "logit", "selected"]
    assert mask["chunk_id"].equals(pq.read_table(source)["chunk_id"])
    kept = mask["selected"].to_numpy()
    assert kept.sum() == 40
    assert mask["logit"].to_numpy()[kept].min() >= mask["logit"].to_numpy()[~kept].max()
    quality, vectors = read_input(source)
    everything = np.ones(ROWS, bool)
    assert quality[kept].mean() > quality.mean() + 0.3
    assert np.isfinite(diversity("Pair_simi", vectors, everything))


def test_lamb_one_is_nearly_top_quality(tmp_path):
    """And files of a folder are one shard, in the order of their names."""
    table = pq.read_table(write_input(tmp_path / "in.parquet"))
    folder, masks = tmp_path / "folder", []
    folder.mkdir()
    pq.write_table(table.slice(0, 130), folder / "a.parquet")
    pq.write_table(table.slice(130), folder / "b.parquet")
    for given in (tmp_path / "in.parquet", folder):
        flags = ["--lamb", "1", "--n_epochs", "400", "--partial", "1", "--n_rollout", "64"]
        output = tmp_path / "mask.parquet"
        assert main(["--input", str(given), "--output", str(output), *flags]) == 0
        masks.append(output.read_bytes())
    assert masks[0] == masks[1]
    kept = np.flatnonzero(pq.read_table(output)["selected"].to_numpy())
    quality = table["quality_score"].to_numpy()
    best = np.sort(quality)[-40:].mean() - quality.mean()
    assert 0.9 * best < quality[kept].mean() - quality.mean() <= best


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--select_ratio", "2"], "ratio"), (["--device", "cuda:7"], "cuda:7"), ([], "in.parquet")],
)
def test_bad_input_is_one_line(flags, named, tmp_path, capsys):
    """A flag out of range, an absent device and a null vector."""
    source = write_input(tmp_path / "in.parquet")
    if not flags:
        table = pq.read_table(source)
        nothing = pa.nulls(ROWS, pa.list_(pa.float16()))
        pq.write_table(table.set_column(2, "feature_arr", nothing), source)
    if flags[:1] == ["--device"] and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    output = tmp_path / "mask.parquet"
    assert main(["--input", str(source), "--output", str(output), *flags]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert named in line and not output.exists()
