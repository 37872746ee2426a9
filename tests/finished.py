"""A small finished run for tests that look at results: three shards, hostile names, real stages."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers

from datamask.config.compute import Compute
from datamask.config.loading import parse_settings
from datamask.config.settings import Settings
from datamask.embedding.vectors import read_vectors
from datamask.execution.pipeline import run_stage
from datamask.planning.plan import plan_run
from datamask.publishing.folder import write_folder
from datamask.runs.run import Run
from datamask.runs.stages import stages_of
from datamask.storage.location import Root

WORDS = ["river", "stone", "market", "window", "garden", "letter", "music", "bridge", "winter"]
WORDS += ["silver", "paper", "morning", "engine", "harbour", "forest", "copper", "signal"]
DUMPS = ["plain", "<script>alert(1)</script>", "a|b`c", "plain"]


def corpus(folder: Path) -> Path:
    """Four files of thirty documents; one document is empty, one column has a space in its name."""
    generator = np.random.default_rng(5)
    folder.mkdir(parents=True)
    for file, dump in enumerate(DUMPS):
        texts = [" ".join(generator.choice(WORDS, generator.integers(5, 60))) for _ in range(30)]
        if file == 2:
            texts[7] = "  \n"
        table = pa.table(
            {
                "id": [f"{file}-{row:02d}" for row in range(30)],
                "their quality": ["good"] * 30,
                "text": texts,
                "dump": [dump] * 30,
                "url": [f"https://WWW.site{row % 5}.org/{row}" for row in range(30)],
                "language": ["en" if row % 3 else "de" for row in range(30)],
                "token_count": [len(text.split()) for text in texts],
                "edu": generator.standard_normal(30),
            }
        )
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=12)
    return folder


def word_tokenizer(path: Path, more: int = 0, of: list[str] = WORDS) -> str:
    """A tokenizer.json whose tokens are words, from number 2 on, and *more* that no text has."""
    words = {word: number for number, word in enumerate(of, 2)}
    words |= {f"#{number}": number for number in range(len(words) + 2, len(words) + 2 + more)}
    known = models.WordLevel({"[UNK]": 0, "<|endoftext|>": 1, **words}, unk_token="[UNK]")
    tokenizer = Tokenizer(known)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return str(path)


def settings(folder: Path, **groups: object) -> Settings:
    """Small shards, a lexical embedder, a column as score, terms for every scope."""
    data = {
        "source": {"path": str(folder)},
        "plan": {"rows_per_shard": 45},
        "quality": {
            "scores": [{"name": "edu", "kind": "column", "column": "edu"}],
            "prune_fraction": 0.2,
        },
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"ratio": 0.25, "steps": 30, "metric": "disf", "quality_weight": 0.5},
    }
    for name, values in groups.items():
        data[name] = {**data.get(name, {}), **values}
    result: Settings = parse_settings(data)
    return result


def finish(
    root: Root, chosen: Settings, last: str = "report", compute: Compute | None = None
) -> Run:
    """Run every stage up to one."""
    run = plan_run(root, chosen)
    for stage in up_to(run, last):
        run_stage(run, stage, compute or Compute())
    return run


def publish_locally(run: Run) -> Path:
    """Write the folder of a run's publication; where it is."""
    assert run.settings.publication is not None
    write_folder(run, run.settings.publication)
    return run.root / "publication"


def embedded(path: Path, width: int) -> tuple[list[str], np.ndarray]:
    """Ids and vectors of a file of embeddings."""
    ids = pq.read_table(path, columns=["chunk_id"])["chunk_id"].to_pylist()
    return ids, read_vectors(path, width)


def up_to(run: Run, last: str) -> list[str]:
    """The stages of a run in order, up to one."""
    stages = stages_of(run.settings)
    return stages[: stages.index(last) + 1]


def table_of(run: Run, stage: str) -> pa.Table:
    """The files of a stage below each other."""
    return pa.concat_tables(
        pq.read_table(run.path(stage, unit)) for unit in range(run.num_units(stage))
    )


def selected_ids(run: Run) -> set[str]:
    """The ids that the masks of a run keep."""
    shards = range(run.num_shards)
    return {row["id"] for shard in shards for row in rows_of(run, shard) if row["selected"]}


def rows_of(run: Run, shard: int, stage: str = "selection") -> list[dict[str, Any]]:
    """Read a stage's rows of documents that were not dropped, by the document's id."""
    names = pq.read_table(run.path("scores", shard))["id"].to_pylist()
    quality = pq.read_table(run.path("quality", shard)).to_pylist()
    left = [row for row in quality if row["dropped"] is None]
    written = pq.read_table(run.path(stage, shard)).to_pylist()
    return [{"id": names[row["row"]], **one} for row, one in zip(left, written, strict=True)]
