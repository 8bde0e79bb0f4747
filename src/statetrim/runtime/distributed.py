"""The processes of a torchrun launch: their shares of the batches, and sums over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class DistributedContext:
    """Rank and world size of this process; a process without torchrun is rank 0 of 1."""

    rank: int = 0
    world_size: int = 1

    @staticmethod
    def join() -> "DistributedContext":
        """Join the processes of the launch: under torchrun the first call creates the process group
        (gloo, since the sums are float64 on the CPU)."""
        if not dist.is_torchelastic_launched():
            return DistributedContext()
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return DistributedContext(dist.get_rank(), dist.get_world_size())

    def shard(self, batches: Sequence[T]) -> list[T]:
        """This rank's share: every `world_size`-th batch, starting at `rank`."""
        return list(batches[self.rank :: self.world_size])

    def all_reduce(self, tensors: Sequence[Tensor], tokens: int) -> int:
        """Sum each tensor over all processes, in place; returns the sum of `tokens`."""
        if self.world_size == 1:
            return tokens
        for tensor in tensors:
            dist.all_reduce(tensor)
        count = torch.tensor(tokens)
        dist.all_reduce(count)
        return int(count)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks."""
        if self.world_size == 1:
            return [value]
        values: list[T] = [value] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        if self.world_size > 1:
            dist.barrier()
