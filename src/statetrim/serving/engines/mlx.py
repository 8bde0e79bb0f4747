"""MLX-LM."""

from ..capacity.arithmetic import arrays_of_sequences
from .engine import PLUGIN_TYPES, Engine, Flag

ENGINE = Engine(
    key="mlx",
    name="MLX-LM",
    packages=("mlx-lm",),
    version="0.32.2",
    command="mlx_lm.server --model {model}",
    fit=arrays_of_sequences,  # models/cache.py; models/gated_delta.py makes the state in float32
    kv_dtypes={"auto": 2.0},
    flags=(
        Flag("--prompt-cache-size 2", {},
             "two prompts are remembered, not ten; their memory comes on top of these sequences",
             "server.py"),
    ),
    plugin_types=PLUGIN_TYPES,
    driver="ask_mlx",
)  # fmt: skip
