"""What commands do unless told otherwise, decided by measurement (docs/recall.md)."""

KEY_METHOD = "product"
"""How key channels are chosen."""
VALUE_METHOD = "readout_greedy"
"""How value channels are chosen."""
HEAD_METHOD = "head_refit"
"""How whole heads are chosen (docs/two-axes.md)."""
RECALL = 0.25
"""The part of the calibration tokens that are recall sequences; the rest is text."""
