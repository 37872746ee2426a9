"""How the work is done: devices, memory, workers. Nothing here changes a result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from datamask.config.group import Group


class Compute(Group):
    """How a run is computed; changing these never repeats finished work."""

    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1"
    )
    workers: int = Field(
        1,
        ge=1,
        le=1024,
        description="shards processed at once by this process (engine `threads`); also the number "
        "of files that it reads at once, and DuckDB's threads (at least 2)",
    )
    gpus: int | None = Field(
        None, ge=1, description="GPUs used at once, one shard on each; none: all that are visible"
    )
    engine: Literal["threads", "ray"] = Field(
        "threads",
        description="what runs a stage's tasks: `threads` of the flow run's process, or `ray`, the "
        "cluster at `ray_address` (needs datamask-pipeline[ray]; Prefect flows only)",
    )
    ray_address: str = Field(
        "",
        description="engine `ray`: `auto` (the cluster that this machine belongs to), host:port, "
        "ray://host:port; empty starts Ray on this machine",
    )
    task_cpus: float = Field(1, gt=0, le=1024, description="engine `ray`: CPUs requested per task")
    task_gpus: int | None = Field(
        None,
        ge=0,
        le=16,
        description="engine `ray`: GPUs requested per task of a stage that uses a device; none: 1 "
        "with device `cuda`, or with `auto` if a node has a GPU, else 0",
    )
    task_memory_bytes: int | None = Field(
        None, ge=2**20, description="engine `ray`: memory requested per task; none: no request"
    )
    shards_per_task: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="consecutive shards per task; none: as many as make a task of minutes, by "
        "number of documents, while every worker gets tasks",
    )
    checkpoint_seconds: float = Field(
        60, ge=0, description="seconds between checkpoints within a shard, to resume after a kill"
    )
    stall_minutes: float | None = Field(
        30,
        gt=0,
        le=10_080,
        description="minutes without progress after which a shard or stage is given up and "
        "attempted again; there is no progress if it processes nothing and the process does not "
        "compute, as when a server accepts a connection and stays silent; none: never",
    )
    mirror_bytes: int = Field(
        100 * 2**30,
        ge=0,
        description="a run at a URL: maximum size on this machine of cached files that no work "
        "needs now; other files are fetched again when needed",
    )
    embedding_batch: int | None = Field(
        None,
        ge=1,
        description="texts of embedding.max_tokens tokens per forward pass; shorter texts share a "
        "pass up to the same number of tokens; none: 1,024 tokens on a CPU, 16,384 on a GPU",
    )
    embedding_chunk: int = Field(
        4096, ge=1, description="texts tokenised and sorted by length together"
    )
    matmul: Literal["auto", "float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="precision of the products that guide `expected`: tf32 only on CUDA, bfloat16 "
        "only where the device has it, auto the fastest of the device; machines with different "
        "ones select slightly different documents; reported values are always exact",
    )
    working_set_bytes: int = Field(
        2**30, ge=2**20, description="memory for the learner, not counting the embeddings"
    )
    duckdb_memory: str = Field(
        "4GB", pattern=r"^\d+(\.\d+)?(MB|GB|TB)$", description="DuckDB's memory limit, such as 4GB"
    )

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
