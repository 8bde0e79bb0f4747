"""Split a model over the processes of a launch, by torch's own `fully_shard` (FSDP2)."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .errors import StatetrimError


def refuse_unmet_requests() -> None:
    """A launch that asks accelerate for FSDP: on CPUs it does nothing at all, and says nothing."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes"):
        raise StatetrimError(
            "this launch asks accelerate for FSDP, which recovery does not go by; start it with "
            "torchrun, or without the FSDP part of accelerate's config, and add --shard"
        )


def shard(live: Any, device: torch.device) -> None:
    """Shard each decoder layer and the rest of `live` in place, and make sure that it happened."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized() or dist.get_world_size() < 2:
        raise StatetrimError(
            "--shard needs several processes; start it with: torchrun --nproc-per-node N -m "
            "statetrim recover ..."
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    for layer in live.base_model.layers:
        fully_shard(layer, mesh=mesh)
    head = live.get_output_embeddings()
    tied = head.weight is live.get_input_embeddings().weight
    if not tied:
        fully_shard(head, mesh=mesh)
    # Said outright: by default the outermost module stays whole until a backward pass, and a
    # teacher has none.
    fully_shard(live.base_model, mesh=mesh, reshard_after_forward=True)
    live.statetrim_device = device
    check_sharded(live)


def check_sharded(live: nn.Module) -> None:
    """Every parameter must be a shard; one that is not would be a silent full copy."""
    whole = [name for name, parameter in live.named_parameters() if not is_shard(parameter)]
    if whole:
        raise StatetrimError(
            f"sharding was asked for and {len(whole)} parameters are whole, the first is {whole[0]}"
        )


def is_shard(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor) and any(place.is_shard() for place in tensor.placements)


def whole(tensor: Tensor) -> Tensor:
    """The full value on the CPU; with a sharded tensor every process must ask."""
    full: Any = getattr(tensor, "full_tensor", None)
    value: Tensor = tensor if full is None else full()
    return value.detach().cpu()


def like(value: Tensor, model: Tensor) -> Tensor:
    """`value`, known whole to every process, on the device and in the shards of `model`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(device=model.device, dtype=model.dtype)
    if not isinstance(model, DTensor):
        return value
    return distribute_tensor(value, model.device_mesh, model.placements, src_data_rank=None)
