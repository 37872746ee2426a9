"""How the work is done: devices, memory, workers. Nothing here changes a result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from datamask.config.group import Group


class Compute(Group):
    """How a run is computed; changing these never redoes finished work."""

    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1"
    )
    workers: int = Field(
        1, ge=1, le=1024, description="shards worked on at once in this process (engine `threads`)"
    )
    gpus: int | None = Field(
        None, ge=1, description="GPUs used at once, one shard on each; none: all this process sees"
    )
    engine: Literal["threads", "ray"] = Field(
        "threads",
        description="what runs the tasks of a stage: `threads` of the flow run's process, or "
        "`ray`, the cluster at `ray_address` (needs datamask-pipeline[ray]; Prefect flows only)",
    )
    ray_address: str = Field(
        "",
        description="engine `ray`: `auto` (the cluster this machine is a node of), host:port, "
        "ray://host:port; empty starts Ray on this machine",
    )
    task_cpus: float = Field(
        1, gt=0, le=1024, description="engine `ray`: CPUs asked of the scheduler for a task"
    )
    task_gpus: int | None = Field(
        None,
        ge=0,
        le=16,
        description="engine `ray`: GPUs for a task of a stage that computes on a device; none: 1 "
        "with device `cuda`, or `auto` where a node has one, else 0",
    )
    task_memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="engine `ray`: memory asked of the scheduler for a task; none: not asked for",
    )
    shards_per_task: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="neighbouring shards that are one task; none: as many as make a task of "
        "minutes, by their documents, and leave tasks for every worker",
    )
    checkpoint_seconds: float = Field(
        60,
        ge=0,
        description="seconds between checkpoints inside a shard, for going on after a kill",
    )
    mirror_bytes: int = Field(
        100 * 2**30,
        ge=0,
        description="a run at a URL: most bytes kept on this machine of files that no work needs "
        "now; the rest is fetched again when it is needed",
    )
    embedding_batch: int = Field(
        32,
        ge=1,
        description="texts of embedding.max_tokens in one forward pass; of shorter ones there are "
        "more, up to the same number of tokens",
    )
    embedding_chunk: int = Field(
        4096, ge=1, description="texts tokenised and sorted by length together"
    )
    compile_model: bool = Field(
        False,
        description="compile the embedding model (torch.compile): a minute or more at the start of "
        "every process, for less time a text",
    )
    matmul: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="precision of the products that steer `expected`: tf32 on CUDA only, bfloat16 "
        "also on CPUs that have it; reported values are always exact",
    )
    working_set_bytes: int = Field(
        2**30, ge=2**20, description="memory the learner may use beside the embeddings"
    )
    duckdb_memory: str = Field(
        "4GB", pattern=r"^\d+(\.\d+)?(MB|GB|TB)$", description="DuckDB's memory limit, as 4GB"
    )
    duckdb_threads: int = Field(2, ge=1, description="DuckDB's threads")

    @field_validator("duckdb_memory")
    @classmethod
    def _check_memory(cls, value: str) -> str:
        if not 1 <= float(value[:-2]) * 1000 ** ("MB", "GB", "TB").index(value[-2:]) <= 1e9:
            raise ValueError("needed 1MB to 1000TB")
        return value

    @property
    def device_kind(self) -> str:
        """The device without its number: auto, cpu or cuda."""
        return self.device.partition(":")[0]
