"""The files of a checkpoint that have the same names everywhere, and how large they may be."""

from ..maths.units import MIB

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_CONFIG_BYTES = 16 * MIB
MOST_INDEX_BYTES = 24 * MIB
