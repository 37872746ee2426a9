"""The published script's flags as a user types them: a process, a file in, a file out."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamask.cli.train_mask import main
from tests.conftest import mostly_nightly

DIMENSION, ROWS = 8, 400


def write_input(path: Path, **replaced: pa.Array) -> Path:
    """The published columns: integer ids, float64 scores, lists of half floats."""
    generator = np.random.default_rng(3)
    centres = generator.standard_normal((12, DIMENSION))
    vectors = centres[generator.integers(0, 12, ROWS)] + generator.standard_normal(
        (ROWS, DIMENSION)
    )
    columns = {
        "chunk_id": pa.array(np.arange(ROWS) * 7),
        "quality_score": pa.array(generator.standard_normal(ROWS)),
        "feature_arr": pa.array(list(vectors.astype(np.float16)), pa.list_(pa.float16())),
    }
    pq.write_table(pa.table(columns | replaced), path, row_group_size=150)
    return path


def objective(path: Path, mask: pa.Table) -> tuple[float, float]:
    """Mean quality and mean off-diagonal cosine of what a mask keeps, in numpy."""
    table = pq.read_table(path)
    kept = mask["selected"].to_numpy()
    rows = np.array(table["feature_arr"].to_pylist(), np.float64)[kept]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    count = len(rows)
    cosines = rows @ rows.T
    similarity = (cosines.sum() - np.trace(cosines)) / (count * (count - 1))
    return float(table["quality_score"].to_numpy()[kept].mean()), float(similarity)


@pytest.mark.slow
def test_every_published_flag_works_as_a_process(tmp_path):
    """All flags at once; the output has the published columns in the input's order and types."""
    source = write_input(tmp_path / "in.parquet")
    output = tmp_path / "out" / "mask.parquet"
    flags = (
        "--device cpu --n_epochs 300 --algorithm Pair_simi --partial 0.5 --max_lr 10 --min_lr 1 "
        "--n_rollout 64 --select_ratio 0.1 --init quality --lamb 0.5"
    )
    command = [sys.executable, "-m", "datamask.cli.train_mask", *flags.split()]
    command += ["--input", str(source), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{output}: 40 of 400 documents selected\n"
    mask = pq.read_table(output)
    assert mask.schema.names == ["chunk_id", "logit", "selected"]
    assert mask["chunk_id"].equals(pq.read_table(source)["chunk_id"])
    kept = mask["selected"].to_numpy()
    assert kept.sum() == 40
    assert mask["logit"].to_numpy()[kept].min() >= mask["logit"].to_numpy()[~kept].max()
    everything = pa.table({"selected": np.ones(ROWS, bool)})
    quality, similarity = objective(source, mask)
    quality_of_all, similarity_of_all = objective(source, everything)
    assert quality > quality_of_all + 0.3 and similarity < similarity_of_all


@pytest.mark.parametrize(
    ("algorithm", "estimator"),
    mostly_nightly(
        [("DiSF", "expected"), ("Facility", "policy_gradient")],
        product(("DiSF", "Facility", "Pair_simi"), ("policy_gradient", "expected")),
    ),
)
def test_each_algorithm_and_estimator_is_deterministic(tmp_path, algorithm, estimator):
    """Equal flags and input, equal bytes."""
    source = write_input(tmp_path / "in.parquet")
    made = []
    for name in ("a", "b"):
        output = tmp_path / f"{name}.parquet"
        flags = ["--algorithm", algorithm, "--estimator", estimator, "--n_epochs", "20"]
        assert main(["--input", str(source), "--output", str(output), *flags]) == 0
        made.append(output.read_bytes())
    assert made[0] == made[1]


def test_lamb_is_the_weight_of_quality(tmp_path):
    """At 1 the mask is top quality itself."""
    source = write_input(tmp_path / "in.parquet")
    output = tmp_path / "mask.parquet"
    flags = ["--lamb", "1", "--estimator", "expected", "--n_epochs", "100"]
    assert main(["--input", str(source), "--output", str(output), *flags]) == 0
    kept = np.flatnonzero(pq.read_table(output)["selected"].to_numpy())
    scores = pq.read_table(source)["quality_score"].to_numpy()
    assert set(kept) == set(np.argsort(-scores)[:40])


def test_unscaled_is_the_sum_of_the_terms_as_they_are(tmp_path):
    """Each of the two masks is better than the other in its own objective, in numpy."""
    source = write_input(tmp_path / "in.parquet")
    flags = ["--algorithm", "Pair_simi", "--estimator", "expected", "--device", "cpu"]
    found = []
    for name, more in (("scaled", []), ("unscaled", ["--unscaled"])):
        output = tmp_path / f"{name}.parquet"
        assert main(["--input", str(source), "--output", str(output), *flags, *more]) == 0
        found.append(objective(source, pq.read_table(output)))
    (quality, similarity), (other_quality, other_similarity) = found
    assert other_quality - other_similarity > quality - similarity
    assert similarity < other_similarity


def test_a_folder_is_one_shard(tmp_path):
    """Files are read in the order of their names."""
    source = write_input(tmp_path / "in.parquet")
    table = pq.read_table(source)
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(table.slice(0, 130), folder / "a.parquet")
    pq.write_table(table.slice(130), folder / "b.parquet")
    for name, given in (("one", source), ("two", folder)):
        flags = ["--estimator", "expected", "--n_epochs", "20"]
        assert main(["--input", str(given), "--output", str(tmp_path / name), *flags]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
