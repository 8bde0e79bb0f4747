"""Run a model layer by layer: all batches pass through one decoder layer before the next.

Every weight is read once, however many batches there are, and only one layer's weights are in
memory. Between two layers the hidden states are kept in main memory or on disk; from disk, a walk
that was killed resumes with the layer it was in.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ..progress import Advance
from ..storage.atomic import move_into_place, scratch_path
from ..storage.safetensors_file import write_tensors_in_place
from .live import LiveModel, MixerCall, hook_mixers, output_hidden_states


class LayerWalk:
    """Runs batches of ids [rows, time] through a model that was loaded `layerwise`. Hidden states
    are kept in `directory`, or in main memory without one."""

    def __init__(
        self, live: LiveModel, batches: Sequence[Tensor], directory: Path | None = None
    ) -> None:
        assert live.weights is not None, "a walk is for models whose weights are on disk"
        self.live, self.batches, self.weights = live, batches, live.weights
        self.hidden_store = HiddenStore() if directory is None else DiskHiddenStore(directory)

    @property
    def layer(self) -> int:
        """The layer that runs, or runs next: before a walk 0, or where it resumes a killed one."""
        return self.hidden_store.layer

    def layers(self, end: int | None = None) -> Iterator[int]:
        """Load every layer from `layer` to before `end`, and yield its number. Run all batches, and
        save the results, before advancing: then it is unloaded and its inputs are deleted."""
        decoder_layers = self.live.decoder_layers
        with self.weights.paused(), ExitStack() as stack:
            for layer in decoder_layers[: self.layer]:
                stack.enter_context(_as_identity(layer, self.hidden_store.tuple_size))
            for layer in decoder_layers[self.layer : end]:
                self.weights.load(layer)
                yield self.layer
                self.weights.unload(layer)
                self.hidden_store.next_layer()
                stack.enter_context(_as_identity(layer, self.hidden_store.tuple_size))

    def run_batch(self, step: int) -> None:
        """Run one batch through the layer and store the output, by the model's own forward pass,
        which computes masks and positions: earlier layers are identities, and it stops here."""
        layer, hidden = self.live.decoder_layers[self.layer], self.hidden_store.read(step)
        with torch.no_grad(), _replace_input(layer, hidden, self.live.device):
            output = _run_until(layer, self.live, self.batches[step])
        self.hidden_store.write(step, output)


def mixer_calls(live: LiveModel, batches: Sequence[Tensor]) -> Iterator[MixerCall]:
    """Every call of the model's mixers on these batches: batch by batch, or layer by layer if
    weights are on disk, which are read once for all batches. While a call is yielded, its mixer's
    weights are in memory."""
    calls: list[MixerCall] = []
    if live.weights is None:
        for batch in batches:
            with torch.inference_mode(), hook_mixers(live.mixers, calls.append):
                live.hidden_states(batch)
            yield from calls
            calls.clear()
        return
    walk = LayerWalk(live, batches)
    for _ in walk.layers(max(live.mixers) + 1):
        for step in range(len(batches)):
            with hook_mixers(live.mixers, calls.append):
                walk.run_batch(step)
            yield from calls
            calls.clear()


def run_hooked(
    live: LiveModel,
    batches: Sequence[Tensor],
    hooks: Callable[[Sequence[int]], AbstractContextManager[None]],
    layers: Sequence[int],
    advance: Advance,
) -> None:
    """Run all batches up to the last of `layers` or further, within `hooks` of these layers; if
    weights are on disk layer by layer, within `hooks` of one layer, or of none, after the other."""
    if live.weights is None:
        with hooks(layers), torch.inference_mode():
            for batch in batches:
                live.hidden_states(batch)
                advance(batch.numel())
        return
    walk = LayerWalk(live, batches)
    for number in walk.layers(max(layers) + 1):
        with hooks([number] if number in layers else []):
            for step, batch in enumerate(batches):
                walk.run_batch(step)
                if number == max(layers):
                    advance(batch.numel())


@contextmanager
def from_final_hidden(live: LiveModel, store: "HiddenStore", step: int) -> Iterator[None]:
    """Within, a forward pass skips the decoder layers: the last returns what `store` has for batch
    `step`, and only final norm and head are computed."""
    layers = live.decoder_layers
    with ExitStack() as stack:
        if live.weights is not None:
            stack.enter_context(live.weights.paused())
        for layer in layers:
            stack.enter_context(_as_identity(layer, store.tuple_size))
        stack.enter_context(_replace_input(layers[-1], store.read(step), live.device))
        yield


class HiddenStore:
    """The input of layer `layer` for every batch, in main memory; `tuple_size` is the length of the
    tuple that a layer returns, 0 if it returns a bare tensor."""

    layer = 0
    tuple_size = 0

    def __init__(self) -> None:
        self._states: dict[int, Tensor] = {}

    def read(self, step: int) -> Tensor | None:
        """The layer's input [rows, time, hidden] for batch `step`; None before the first layer."""
        return self._states.get(step)

    def write(self, step: int, output: Any) -> None:
        """Store the layer's output for batch `step`: hidden states [rows, time, hidden], or a tuple
        that begins with them."""
        self.tuple_size = len(output) if isinstance(output, tuple) else 0
        self._states[step] = output_hidden_states(output).cpu()

    def next_layer(self) -> None:
        """The outputs of this layer become the inputs of the next; the old inputs are deleted."""
        self.layer += 1


class DiskHiddenStore(HiddenStore):
    """Hidden states in `directory/hidden-N`, the inputs of layer N, which is the next to run."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._partial: Path | None = None
        for path in directory.glob("hidden-*[0-9]"):
            self.layer = max(self.layer, int(path.name.partition("-")[2]))
        if self.layer:
            with safe_open(self._input_directory / "0.safetensors", framework="pt") as file:
                self.tuple_size = int(file.metadata()["values"])

    @property
    def _input_directory(self) -> Path:
        return self._directory / f"hidden-{self.layer}"

    @property
    def _output_directory(self) -> Path:
        return self._directory / f"hidden-{self.layer + 1}"

    def read(self, step: int) -> Tensor | None:
        if not self.layer:
            return None
        hidden: Tensor = load_file(self._input_directory / f"{step}.safetensors")["hidden"]
        return hidden

    def write(self, step: int, output: Any) -> None:
        super().write(step, output)
        if self._partial is None:
            self._partial = scratch_path(self._output_directory)
            self._partial.mkdir()
        path, metadata = self._partial / f"{step}.safetensors", {"values": str(self.tuple_size)}
        write_tensors_in_place(path, {"hidden": self._states.pop(step).contiguous()}, metadata)

    def next_layer(self) -> None:
        assert self._partial is not None
        move_into_place(self._partial, self._output_directory)
        shutil.rmtree(self._input_directory, ignore_errors=True)
        self._partial, self.layer = None, self.layer + 1


def _replace_input(
    layer: nn.Module, hidden: Tensor | None, device: torch.device
) -> AbstractContextManager[object]:
    """Within, the layer's input is `hidden`, if it is not None."""
    if hidden is None:
        return nullcontext()
    moved = hidden.to(device)

    def replace(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return ((moved, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": moved})

    return layer.register_forward_pre_hook(replace, with_kwargs=True)


class _LayerDone(Exception):
    """Stops a forward pass after a layer; carries the layer's output."""

    def __init__(self, output: Any) -> None:
        self.output = output


def _run_until(layer: nn.Module, live: LiveModel, ids: Tensor) -> Any:
    """What `layer` returns in a forward pass of the model, which is stopped there."""

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        raise _LayerDone(output)

    try:
        with layer.register_forward_hook(stop):
            live.hidden_states(ids)
    except _LayerDone as done:
        return done.output
    raise AssertionError("the forward pass did not reach the layer")


@contextmanager
def _as_identity(layer: nn.Module, tuple_size: int) -> Iterator[None]:
    """Within, the layer returns its input, in a tuple of `tuple_size` unless that is 0."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *[None] * (tuple_size - 1)) if tuple_size else hidden

    # accelerate sets its own where the model is on several GPUs.
    previous_forward = layer.__dict__.get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
        if previous_forward is not None:
            layer.forward = previous_forward
