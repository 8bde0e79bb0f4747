"""fla, a library without a server: the command loads the model."""

from .engine import Engine

ENGINE = Engine(
    name="fla",
    packages=("flash-linear-attention", "flash-qla"),
    command='python -c "import sys, fla; from transformers import AutoModelForCausalLM as A; '
    'A.from_pretrained(sys.argv[1])" {model}',
)
