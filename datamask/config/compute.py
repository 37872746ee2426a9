"""Settings of how the work is done: devices, memory, workers. None of them changes a result."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from datamask.config.group import Group


class Compute(Group):
    """Devices, memory and workers; changing them never repeats finished work."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda, cuda:1"""
    workers: int = Field(1, ge=1, le=1024)
    """shards, files and models at once in this process, which share its cores, and DuckDB's threads
    (at least 2)"""
    engine: Literal["threads", "ray"] = "threads"
    """what runs a stage's tasks: `threads` of the flow run's process, or Ray: the cluster at
    RAY_ADDRESS, else one started here (needs datamask-pipeline[ray]; Prefect flows only)"""
    task_cpus: float = Field(1, gt=0, le=1024)
    """engine `ray`: CPUs requested per task; more of them let fewer tasks share a node's memory"""
    stall_minutes: float | None = Field(30, gt=0, le=10_080)
    """minutes after which a shard or stage that neither processes nor computes anything is given up
    and attempted again, as when a server stays silent; none: never"""
    mirror_bytes: int = Field(100 * 2**30, ge=0)
    """a run at a URL: most bytes of cached files that no work needs now"""
    embedding_batch: int | None = Field(None, ge=1)
    """texts of embedding.max_tokens tokens per forward pass, or as many tokens of shorter ones;
    none: 1,024 tokens on a CPU, 16,384 on a GPU"""
    matmul: Literal["auto", "float32", "tf32", "bfloat16"] = "float32"
    """precision of the products that guide `expected`: tf32 only on CUDA, bfloat16 only where the
    device has it, auto the fastest of the device; machines with different ones select slightly
    different documents; reported values are always exact"""
    working_set_bytes: int = Field(2**30, ge=2**20)
    """memory for the learner, not counting the embeddings"""
    duckdb_memory: str = Field("4GB", pattern=r"^[1-9]\d{0,5}(\.\d+)?(MB|GB|TB)$")
    """DuckDB's memory limit, such as 4GB"""

    @property
    def device_kind(self) -> str:
        """The device without its number: auto, cpu or cuda."""
        return self.device.partition(":")[0]
