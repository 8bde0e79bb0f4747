"""Defaults of commands, chosen by measurement (results/recall.md)."""

KEY_METHOD = "product"
"""Selection method for key channels."""
VALUE_METHOD = "readout_greedy"
"""Selection method for value channels."""
HEAD_METHOD = "head_refit"
"""Selection method for whole heads (results/two-axes.md)."""
DEFAULT_METHODS = f"{KEY_METHOD},{VALUE_METHOD},{HEAD_METHOD}"
"""One for every axis."""
REFIT_DAMPING = 1e-8
"""Ridge penalty of a refit, relative to the mean square of the channels."""
RECALL_SHARE = 0.25
"""Fraction of the calibration tokens that are recall sequences; the others are text."""
