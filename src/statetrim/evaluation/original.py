"""What the original gave on each task, which its cuts are compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..artifacts.scores import Score
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.logits import FinalHiddenStates
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint


@dataclass(eq=False)
class OriginalResults:
    """The original's scores, and its final hidden states of each task's sequences, kept to compare
    cuts with; both by task and first sample. Several evaluations of the same tasks and samples may
    share them."""

    checkpoint: Checkpoint
    placement: Placement
    scores: dict[tuple[str, int], list[Score]] = field(default_factory=dict)
    states: dict[tuple[str, int], FinalHiddenStates] = field(default_factory=dict)

    def read(
        self,
        key: tuple[str, int],
        batches: list[Tensor],
        live: LiveModel | None = None,
        report: Callable[[int], None] = lambda batch: None,
    ) -> FinalHiddenStates:
        """The states of a task's sequences, computed on the first call: by `live`, or by a model
        that is loaded for it and unloaded again."""
        if key not in self.states:
            loaded = live or load_live(self.checkpoint, self.placement)
            self.states[key] = FinalHiddenStates(loaded, batches, report)
            if live is None:
                self.unload()
        return self.states[key]

    def unload(self) -> None:
        """Free the decoder layers; the head stays, to compute logits."""
        for states in self.states.values():
            states.unload_layers()
