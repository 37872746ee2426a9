"""Tokens of a published data set for PyTorch: in the order of training, with a state to resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node


class Tokens(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of *length* tokens and those that follow each, streamed from the Hub."""

    def __init__(self, repository: str, length: int, rank: int = 0, ranks: int = 1) -> None:
        documents = load_dataset(repository, "tokens", split="train", streaming=True)
        self.documents = split_dataset_by_node(documents, rank, ranks)
        self.length = length
        self.left: list[int] = []

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        documents = iter(self.documents)
        while True:
            while len(self.left) > self.length:
                sequence = torch.tensor(self.left[: self.length + 1])
                self.left = self.left[self.length :]
                yield sequence[:-1], sequence[1:]
            document = next(documents, None)
            if document is None:
                return
            self.left = self.left + document["tokens"]

    def state_dict(self) -> dict[str, Any]:
        return {"documents": self.documents.state_dict(), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.documents.load_state_dict(state["documents"])
        self.left = state["left"]
