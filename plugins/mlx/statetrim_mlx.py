"""MLX-LM model file: Qwen3-Next and Qwen3.5 models whose linear-attention layers differ in width.

Copy it into the directory of a statetrim checkpoint with widths by layer, and load that with

    mlx_lm.load(SMALL, model_config={"model_file": "statetrim_mlx.py"}, trust_remote_code=True)

MLX-LM then uses `Model` and `ModelArgs` of this file; each layer is built with its own widths.
"""

from dataclasses import replace
from typing import Any

from mlx_lm.models import qwen3_5, qwen3_next

FIELD = "statetrim_widths"


class ModelArgs:
    """The stock arguments of the architecture, and `widths`: layer -> key and value width."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.stock: Any = qwen3_next if config["model_type"] == "qwen3_next" else qwen3_5
        self.args = self.stock.ModelArgs.from_dict(config)
        self.widths: dict[str, tuple[int, int]] = config.get(FIELD, {})

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "ModelArgs":
        return cls(config)


def Model(model_args: ModelArgs) -> Any:
    """The stock model, built while its layer class is replaced by one that sets the widths."""
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
