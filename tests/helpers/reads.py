"""Records which tensors of a checkpoint are read."""

import builtins
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import statetrim as st


@contextmanager
def record_tensor_reads(model: st.Checkpoint) -> Iterator[list[str]]:
    """Collects the names of the tensors that are read, from the byte ranges read of the shards.
    Memory mapping, which would bypass this, fails while active."""
    tensor_at = {
        (str(shard.path), info.start, info.nbytes): name
        for name, (shard, info) in model.tensors.items()
    }
    names: list[str] = []
    opened = io.open

    class Counted(io.BufferedReader):
        def readinto(self, buffer: Any) -> int:
            names.append(tensor_at[self.raw.name, self.tell(), len(buffer)])  # type: ignore[attr-defined]
            return super().readinto(buffer)

    def watched(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if str(file).endswith(".safetensors") and mode == "rb":
            return Counted(io.FileIO(str(file)))
        return opened(file, mode, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", watched)
        patch.setattr(builtins, "open", watched)
        patch.setattr("transformers.modeling_utils.safe_open", None)
        yield names
