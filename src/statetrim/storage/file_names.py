"""The files of a checkpoint that have the same names everywhere, and how large they may be."""

from ..maths.units import MIB

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_CONFIG_BYTES = 16 * MIB
MAX_INDEX_BYTES = 24 * MIB
