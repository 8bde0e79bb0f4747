"""Fixed file names of a checkpoint, and how large these files may be."""

from ..maths.units import MIB

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_CONFIG_BYTES = 16 * MIB
MAX_INDEX_BYTES = 24 * MIB
