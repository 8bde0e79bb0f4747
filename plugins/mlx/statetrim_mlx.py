"""MLX-LM model file: Qwen3-Next and Qwen3.5 models whose linear-attention layers differ in width.

Copy it beside the weights of an uneven checkpoint of statetrim, and load that with

    mlx_lm.load(SMALL, model_config={"model_file": "statetrim_mlx.py"}, trust_remote_code=True)

MLX-LM then takes `Model` and `ModelArgs` from here. Each layer is built from arguments of its own.
"""

from dataclasses import replace
from typing import Any

from mlx_lm.models import qwen3_5, qwen3_next

FIELD = "statetrim_widths"


class ModelArgs:
    """The stock arguments of the architecture, and keys and values per head of every layer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.stock: Any = qwen3_next if config["model_type"] == "qwen3_next" else qwen3_5
        self.args = self.stock.ModelArgs.from_dict(config)
        self.widths: dict[str, tuple[int, int]] = config.get(FIELD, {})

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "ModelArgs":
        return cls(config)


def Model(model_args: ModelArgs) -> Any:
    """The stock model; while it is made, the class of its layers is given each layer's widths."""
    stock = model_args.stock
    name = "Qwen3NextDecoderLayer" if stock is qwen3_next else "DecoderLayer"
    layer_class = getattr(stock, name)

    def make_layer(args: Any, layer_idx: int) -> Any:
        keys, values = model_args.widths.get(
            str(layer_idx), (args.linear_key_head_dim, args.linear_value_head_dim)
        )
        layer_args = replace(args, linear_key_head_dim=keys, linear_value_head_dim=values)
        return layer_class(layer_args, layer_idx)

    setattr(stock, name, make_layer)
    try:
        return stock.Model(model_args.args)
    finally:
        setattr(stock, name, layer_class)
