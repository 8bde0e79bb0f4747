"""Shard a model over the processes of a launch with torch's `fully_shard` (FSDP2)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.live import LiveModel


def check_launch(sharded: bool) -> None:
    """Raise StatetrimError if the launch enables accelerate's FSDP, which silently does nothing on
    CPUs, or if `sharded` and there is only one process."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes"):
        raise StatetrimError(
            "this launch asks accelerate for FSDP, which recovery does not go by; start it with "
            "torchrun, or without the FSDP part of accelerate's config, and add --shard"
        )
    if sharded and not (dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1):
        raise StatetrimError(
            "--shard needs several processes; start it with: torchrun --nproc-per-node N -m "
            "statetrim recover ..."
        )


class Sharder:
    """Shards models whose weights are still on disk (`layerwise`): a process reads one full decoder
    layer, keeps its shard, and only then reads the next; likewise embeddings and head."""

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.device = device
        self.mesh = init_device_mesh(
            device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",)
        )

    def shard_model(self, live: LiveModel) -> None:
        """Read and shard all weights."""
        for layer in live.decoder_layers:
            with self.shard_layer(live, layer):
                pass
        self.shard_remaining(live)

    @contextmanager
    def shard_layer(self, live: LiveModel, layer: nn.Module) -> Iterator[None]:
        """A context in which a decoder layer is in memory in full; it is sharded at its end."""
        from torch.distributed.fsdp import fully_shard

        assert live.weights is not None, "it is in memory already"
        live.weights.load_permanently(layer)
        yield
        fully_shard(layer, mesh=self.mesh)

    def shard_remaining(self, live: LiveModel) -> None:
        """Read and shard embeddings, final norm and head, after all layers."""
        from torch.distributed.fsdp import fully_shard

        module, weights = live.module, live.weights
        assert weights is not None
        embeddings, head = module.get_input_embeddings(), live.lm_head
        weights.load_permanently(embeddings)
        module.tie_weights()  # first, or a tied head would be read as a separate matrix
        tied = head.weight is embeddings.weight
        if not tied:  # one vocabulary matrix at a time
            fully_shard(embeddings, mesh=self.mesh)
            weights.load_permanently(head)
            fully_shard(head, mesh=self.mesh)
        weights.load_permanently(module)
        # By default the root module stays unsharded until a backward pass; a teacher has none.
        fully_shard(module.base_model, mesh=self.mesh, reshard_after_forward=True)
        if tied:  # else the head would still refer to the full matrix
            head.weight = embeddings.weight
        check_sharded(module)


def check_sharded(module: nn.Module) -> None:
    """Raise StatetrimError if a parameter is not sharded: each process would hold a full copy."""
    unsharded = [name for name, parameter in module.named_parameters() if not is_shard(parameter)]
    if unsharded:
        raise StatetrimError(
            f"sharding was asked for and {len(unsharded)} parameters are whole, the first is "
            f"{unsharded[0]}"
        )


def is_shard(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor that is split over processes."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor) and any(
        placement.is_shard() for placement in tensor.placements
    )


def full_value(tensor: Tensor) -> Tensor:
    """A sharded tensor in full, for which every process must call this; any other as it is."""
    full_tensor: Any = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def gather_full(tensor: Tensor) -> Tensor:
    return full_value(tensor).detach().cpu()


def shard_like(value: Tensor, reference: Tensor) -> Tensor:
    """The full `value`, with the device, dtype and shards of `reference`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(device=reference.device, dtype=reference.dtype)
    if not isinstance(reference, DTensor):
        return value
    return distribute_tensor(value, reference.device_mesh, reference.placements, src_data_rank=None)
