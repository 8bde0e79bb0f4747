"""What a cut leaves of a state."""

from dataclasses import dataclass

from .geometry import Geometry
from .shape import Axis


@dataclass(frozen=True)
class Target:
    """The geometry before and after pruning."""

    before: Geometry
    after: Geometry

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that are cut in at least one layer; heads are chosen before channels."""
        before, after = self.before.shapes.values(), self.after.shapes.values()
        is_cut: dict[Axis, bool] = {
            "head": self.before.num_v_heads != self.after.num_v_heads,
            "key": [keys for keys, _ in before] != [keys for keys, _ in after],
            "value": [values for _, values in before] != [values for _, values in after],
        }
        return tuple(axis for axis in is_cut if is_cut[axis])

    @property
    def share(self) -> float:
        """The part of the state's bytes that is kept."""
        return self.after.state_numel / self.before.state_numel

    def __str__(self) -> str:
        """What is kept, as `parse_request` reads it."""
        parts = [f"{self.after.num_v_heads}heads"] if "head" in self.axes else []
        if self.after.widths:
            shapes = self.after.shapes.items()
            parts.append(",".join(f"{layer}={k}x{v}" for layer, (k, v) in shapes))
        elif self.axes != ("head",):
            parts.append(f"{self.after.head_k_dim}x{self.after.head_v_dim}")
        return ":".join(parts)
