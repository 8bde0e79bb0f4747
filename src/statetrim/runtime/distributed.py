"""The processes of a torchrun launch: who takes which batch, and sums over all of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def launched_world_size() -> int:
    """How many processes torchrun started, 1 without it; joins nothing."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1


@dataclass(frozen=True)
class DistributedContext:
    """This process's place in the launch; a single process is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1

    @staticmethod
    def current() -> "DistributedContext":
        """Joins the launch on first use; gloo, since the sums are float64 on the CPU."""
        if not dist.is_torchelastic_launched():
            return DistributedContext()
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return DistributedContext(dist.get_rank(), dist.get_world_size())

    def shard(self, batches: Sequence[T]) -> list[T]:
        """Every `world`-th batch, beginning with this rank's own."""
        return list(batches[self.rank :: self.world_size])

    def all_reduce(self, tensors: Sequence[Tensor], tokens: int) -> int:
        """Add the tensors of all processes in place; returns the tokens of all."""
        if self.world_size == 1:
            return tokens
        for tensor in tensors:
            dist.all_reduce(tensor)
        count = torch.tensor(tokens)
        dist.all_reduce(count)
        return int(count)

    def all_gather(self, value: T) -> list[T]:
        """What every process has, in order."""
        if self.world_size == 1:
            return [value]
        values: list[T] = [value] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Until every process is here."""
        if self.world_size > 1:
            dist.barrier()
