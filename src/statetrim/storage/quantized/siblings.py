"""Whether a quantised checkpoint is the sibling of the model that a plan was made for.

The quantised weights cannot be compared, but norms, gates and convolutions, which quantisation
leaves alone, can: they must be equal in every layer, in bfloat16, in which most tools store them.
"""

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any

from ...errors import StatetrimError
from ..checkpoint import Checkpoint
from ..safetensors_file import DTYPES, tensor_bytes

_MAX_ELEMENTS = 2**20  # larger tensors of a mixer are projections


def small_tensor_digests(model: Checkpoint) -> dict[str, str]:
    """ "LAYER.NAME" -> digest of the values in bfloat16, of small unquantised tensors of mixers."""
    digests: dict[str, str] = {}
    for layer in model.geometry.layers:
        for prefix in model.family.mixer_prefixes:
            mixer = prefix.format(layer=layer) + "."
            for name, (_, info) in model.tensors.items():
                is_small = info.dtype in DTYPES and prod(info.shape) < _MAX_ELEMENTS
                if name.startswith(mixer) and is_small and name in model.logical_tensors:
                    values = tensor_bytes(model.tensor(name).bfloat16().float())
                    digest = hashlib.sha256(values).hexdigest()[:16]
                    digests[f"{layer}.{name.removeprefix(mixer)}"] = digest
    return digests


def is_quantized_sibling(model: Checkpoint, plan_lineage: Mapping[str, Any]) -> bool:
    """Whether the model passes `check_quantized_sibling`."""
    try:
        check_quantized_sibling(model, plan_lineage)
    except StatetrimError:
        return False
    return True


def check_quantized_sibling(model: Checkpoint, plan_lineage: Mapping[str, Any]) -> None:
    """Raise StatetrimError unless `model` is quantised and otherwise has the tensors of the model
    that the plan was made for."""
    expected = plan_lineage.get("small_tensors")
    if not model.quantized or not isinstance(expected, dict):
        raise StatetrimError(
            "the plan was made for another model (its 'source' is not this checkpoint's); "
            "make one for this model with: statetrim select"
        )
    digests = small_tensor_digests(model)
    compared_layers = set[str]()
    for name in sorted(digests.keys() & expected.keys()):
        if digests[name] != expected[name]:
            raise StatetrimError(
                f"the plan was made for another model: {name} of its layers differs here, though "
                f"it is not quantised"
            )
        compared_layers.add(name.partition(".")[0])
    missing = sorted({str(layer) for layer in model.geometry.layers} - compared_layers)
    if missing:
        raise StatetrimError(
            f"layer {missing[0]} has no unquantised tensor in common with the model that the plan "
            f"was made for, so it cannot be said whether they are siblings"
        )
