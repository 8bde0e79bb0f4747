"""How much of a model recovery trains."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Coverage:
    """How much of the live model is trained."""

    layers: int = 0
    projections: int = 0
    convolutions: int = 0
    softmax: tuple[int, int] = (0, 0)  # linear modules: adapted, all
    mlp: tuple[int, int] = (0, 0)
    trained_parameters: int = 0
    all_parameters: int = 0

    def as_json(self) -> dict[str, Any]:
        """A dictionary for JSON records."""
        return asdict(self) | {"softmax": list(self.softmax), "mlp": list(self.mlp)}
