"""A model whose output projections are never called: a fused kernel takes the weight."""

from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

from statetrim.portable.mixers import Mixer


def fuse_output_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the mixers of `statetrim.portable` read the weight of `o_proj` and not call it."""

    def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        q, k, v, _ = self._project(hidden_states, None, None)
        o, _ = self.run_recurrence(hidden_states, q, k, v, None, None)
        values = self.normalize_output(hidden_states, o).flatten(2)
        return functional.linear(values, self.o_proj.weight)

    monkeypatch.setattr(Mixer, "forward", forward)
