"""transformers."""

from .engine import Engine

ENGINE = Engine(
    key="transformers",
    name="transformers",
    packages=("transformers",),
    command="transformers serve {model}",
    driver="ask_transformers",
)
