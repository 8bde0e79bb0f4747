"""Bytes and losses of a model's stored states, by the code they are stored in."""

from dataclasses import dataclass, field
from typing import Any

from ..maths.formatting import Table
from .record import Artifact


@dataclass(frozen=True)
class CodeResult:
    """One code: what a copy of a sequence's states takes, and what reading on from it loses."""

    code: str
    share: float  # of the float32 bytes
    state_bytes: float  # per sequence
    loss: tuple[float, float, float]  # nats per token: mean, and both ends of its interval
    encode_ms: float  # per sequence
    decode_ms: float
    convolution_bytes: float = 0.0  # per sequence; 0 where they are stored as they are


@dataclass(frozen=True)
class Snapshots(Artifact):
    """The frontier of bytes and loss, and how the low rank of states is distributed."""

    KIND = "snapshots"

    codes: list[CodeResult]
    tolerance: float  # of `ranks` and `lengths`
    ranks: dict[int, list[float]]  # layer -> mean rank of each head; 0: another code was cheaper
    lengths: dict[int, float]  # tokens read -> share of the float32 bytes
    lineage: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Snapshots of {len(self.codes)} codes, {len(self.ranks)} layers>"

    def table(self) -> Table:
        """A row per code."""
        rows = []
        for result in self.codes:
            mean, low, high = result.loss
            rows.append(
                (
                    result.code,
                    f"{result.state_bytes / 1024:,.1f}",
                    f"{100 * result.share:.1f} %",
                    f"{mean:+.4f} ({low:+.4f} to {high:+.4f})",
                    f"{result.encode_ms:.1f}",
                    f"{result.decode_ms:.1f}",
                )
            )
        columns = ("code", "KiB", "of float32", "loss, nats per token", "encode, ms", "decode, ms")
        return Table("Stored states", columns, rows)
