"""Split a model over the processes of a launch, by torch's own `fully_shard` (FSDP2)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.distributed import launched_world_size
from ..runtime.live import LiveModel
from ..runtime.stored_weights import StoredWeights


def check_launch(sharded: bool) -> None:
    """To accelerate for FSDP, which on CPUs does nothing at all and says nothing; and to us, where
    there is nobody to share with."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true", "yes"):
        raise StatetrimError(
            "this launch asks accelerate for FSDP, which recovery does not go by; start it with "
            "torchrun, or without the FSDP part of accelerate's config, and add --shard"
        )
    if sharded and launched_world_size() < 2:
        raise StatetrimError(
            "--shard needs several processes; start it with: torchrun --nproc-per-node N -m "
            "statetrim recover ..."
        )


class Sharder:
    """Splits models that were loaded `layerwise`, and so are on disk still.

    A process reads one decoder layer whole, keeps its part of it, and only then reads the next;
    embeddings and head likewise.
    """

    def __init__(self, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.device = device
        self.mesh = init_device_mesh(
            device.type, (dist.get_world_size(),), mesh_dim_names=("fsdp",)
        )

    def shard_model(self, live: LiveModel) -> None:
        for layer in live.decoder_layers:
            with self.shard_layer(live, layer):
                pass
        self.shard_remaining(live)

    @contextmanager
    def shard_layer(self, live: LiveModel, layer: nn.Module) -> Iterator[None]:
        """Within, a decoder layer is whole; afterwards it is split."""
        from torch.distributed.fsdp import fully_shard

        _stored_weights(live).load_permanently(layer)
        yield
        fully_shard(layer, mesh=self.mesh)

    def shard_remaining(self, live: LiveModel) -> None:
        """Embeddings, the last norm and the head, once all layers are split; makes sure of it."""
        from torch.distributed.fsdp import fully_shard

        module, weights = live.module, _stored_weights(live)
        embeddings, head = module.get_input_embeddings(), live.lm_head
        weights.load_permanently(embeddings)
        module.tie_weights()  # before the head would be read as a matrix of its own
        tied = head.weight is embeddings.weight
        if not tied:  # one vocabulary matrix after the other
            fully_shard(embeddings, mesh=self.mesh)
            weights.load_permanently(head)
            fully_shard(head, mesh=self.mesh)
        weights.load_permanently(module)
        # Said outright: by default the outermost module stays whole until a backward pass, and a
        # teacher has none.
        fully_shard(module.base_model, mesh=self.mesh, reshard_after_forward=True)
        if tied:  # the head would hold on to the whole matrix
            head.weight = embeddings.weight
        check_sharded(module)


def _stored_weights(live: LiveModel) -> StoredWeights:
    assert live.weights is not None, "it is in memory already"
    return live.weights


def check_sharded(module: nn.Module) -> None:
    """Every parameter must be a shard; one that is not would be a silent full copy."""
    unsharded = [name for name, parameter in module.named_parameters() if not is_shard(parameter)]
    if unsharded:
        raise StatetrimError(
            f"sharding was asked for and {len(unsharded)} parameters are whole, the first is {unsharded[0]}"
        )


def is_shard(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor) and any(
        placement.is_shard() for placement in tensor.placements
    )


def gather_full(tensor: Tensor) -> Tensor:
    """The full value on the CPU; with a sharded tensor every process must ask."""
    full_tensor: Any = getattr(tensor, "full_tensor", None)
    value: Tensor = tensor if full_tensor is None else full_tensor()
    return value.detach().cpu()


def shard_like(value: Tensor, reference: Tensor) -> Tensor:
    """`value`, known whole to every process, on the device and in the shards of `model`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.to(device=reference.device, dtype=reference.dtype)
    if not isinstance(reference, DTensor):
        return value
    return distribute_tensor(value, reference.device_mesh, reference.placements, src_data_rank=None)
