"""Walk the decoder layers of a model once: all batches pass through one layer before the next.

So every weight is read once, however much text there is, and only one layer's weights are in
memory. Hidden states wait between two layers, in main memory or on disk; on disk, a walk that was
killed resumes with the layer it was in.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..storage.atomic import move_into_place, scratch_path
from ..storage.safetensors_file import write_tensors
from .live import LiveModel
from .mixers import MixerCall, hook_mixers, output_hidden_states


class LayerPass:
    """One decoder layer, with its weights in memory, and the batches that pass through it."""

    def __init__(self, walk: "LayerWalk", number: int) -> None:
        self.number, self.layer = number, walk.live.decoder_layers[number]
        self._walk = walk

    def run(self, steps: Iterable[int] | None = None) -> Iterator[int]:
        """Pass these batches through the layer, or all; tells of each when it is through."""
        for step in range(len(self._walk.batches)) if steps is None else steps:
            self._walk.run_batch(self, step)
            yield step


class LayerWalk:
    """A model and all the batches it reads; `directory` keeps hidden states, where there is one.

    The model is loaded `layerwise`. Within `turns` its layers are brought one after the other.
    """

    def __init__(
        self, live: LiveModel, batches: Sequence[Tensor], directory: Path | None = None
    ) -> None:
        assert live.weights is not None, "a walk is for models whose weights are on disk"
        self.live, self.batches, self.weights = live, batches, live.weights
        self.hidden_store: HiddenStore = (
            MemoryHiddenStore() if directory is None else DiskHiddenStore(directory)
        )

    @property
    def first_layer(self) -> int:
        """The layer at which the walk begins: 0, unless one before it was killed."""
        return self.hidden_store.layer

    def layers(self, end: int | None = None) -> Iterator[LayerPass]:
        """Every layer from `first` on, before `stop`. The caller keeps what it learned of a
        layer before he asks for the next one; then what went before is forgotten."""
        decoder_layers = self.live.decoder_layers
        with self.weights.paused(), ExitStack() as stack:
            for layer in decoder_layers[: self.first_layer]:
                stack.callback(_make_identity(layer, self.hidden_store.tuple_size))
            for number in range(self.first_layer, len(decoder_layers) if end is None else end):
                layer_pass = LayerPass(self, number)
                self.weights.load(layer_pass.layer)
                yield layer_pass
                self.weights.unload(layer_pass.layer)
                self.hidden_store.next_layer()
                stack.callback(_make_identity(layer_pass.layer, self.hidden_store.tuple_size))

    def run_batch(self, layer_pass: LayerPass, step: int) -> None:
        """By the model's own forward pass, which knows its masks and positions: the layers before
        only hand on what they are given, and those after are not reached."""
        hidden = self.hidden_store.read(step)
        with (
            torch.no_grad(),
            _replace_input(layer_pass.layer, hidden, self.live.device),
            _stop_after(layer_pass.layer) as end,
            suppress(end),
        ):
            self.live.hidden_states(self.batches[step])
        self.hidden_store.write(step, end.hidden.cpu(), end.values)


def mixer_calls(live: LiveModel, batches: Sequence[Tensor]) -> Iterator[MixerCall]:
    """How the model calls its mixers on these batches. When a call is told of, that mixer's weights
    are in memory; those on disk are read once for all batches."""
    calls: list[MixerCall] = []
    if live.weights is None:
        for batch in batches:
            with torch.inference_mode(), hook_mixers(live.mixers, calls.append):
                live.hidden_states(batch)
            yield from calls
            calls.clear()
        return
    for layer_pass in LayerWalk(live, batches).layers(max(live.mixers) + 1):
        for step in range(len(batches)):
            with hook_mixers(live.mixers, calls.append):
                list(layer_pass.run([step]))
            yield from calls
            calls.clear()


@contextmanager
def from_final_hidden(live: LiveModel, hidden: Tensor | None, tuple_size: int) -> Iterator[None]:
    """Within, a forward pass begins behind the last decoder layer, with what that once gave:
    `hidden`, as the first of `values`. Final norm and head are the model's own; no layer's weights
    are used."""
    layers = live.decoder_layers
    with ExitStack() as stack:
        if live.weights is not None:
            stack.enter_context(live.weights.paused())
        for layer in layers:
            stack.callback(_make_identity(layer, tuple_size))
        stack.enter_context(_replace_input(layers[-1], hidden, live.device))
        yield


class HiddenStore:
    """Those of every batch before layer `layer`; `values` is how many a layer returns in a tuple,
    0 where it is a bare tensor."""

    layer = 0
    tuple_size = 0

    def read(self, step: int) -> Tensor | None:
        """[rows, time, hidden]; None before the first layer."""
        raise NotImplementedError

    def write(self, step: int, hidden: Tensor, tuple_size: int) -> None:
        """What the layer made of that batch."""
        raise NotImplementedError

    def next_layer(self) -> None:
        """All batches are through."""
        raise NotImplementedError


class MemoryHiddenStore(HiddenStore):
    def __init__(self) -> None:
        self._states: dict[int, Tensor] = {}

    def read(self, step: int) -> Tensor | None:
        return self._states.get(step)

    def write(self, step: int, hidden: Tensor, tuple_size: int) -> None:
        self._states[step], self.tuple_size = hidden, tuple_size

    def next_layer(self) -> None:
        self.layer += 1


class DiskHiddenStore(HiddenStore):
    """In `directory`: `hidden-N` for the layer N that comes next."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._partial = directory, None
        layer_numbers = (path.name.partition("-")[2] for path in directory.glob("hidden-*[0-9]"))
        self.layer = max(map(int, layer_numbers), default=0)
        if self.layer:
            with safe_open(self._input_directory / "0.safetensors", framework="pt") as file:
                self.tuple_size = int(file.metadata()["values"])

    _partial: Path | None

    @property
    def _input_directory(self) -> Path:
        return self._directory / f"hidden-{self.layer}"

    @property
    def _output_directory(self) -> Path:
        return self._directory / f"hidden-{self.layer + 1}"

    def read(self, step: int) -> Tensor | None:
        if not self.layer:
            return None
        with safe_open(self._input_directory / f"{step}.safetensors", framework="pt") as file:
            hidden: Tensor = file.get_tensor("hidden")
            return hidden

    def write(self, step: int, hidden: Tensor, tuple_size: int) -> None:
        self.tuple_size = tuple_size
        if self._partial is None:
            self._partial = scratch_path(self._output_directory)
            self._partial.mkdir()
        metadata = {"values": str(tuple_size)}
        write_tensors(
            self._partial / f"{step}.safetensors", {"hidden": hidden.contiguous()}, metadata
        )

    def next_layer(self) -> None:
        assert self._partial is not None
        move_into_place(self._partial, self._output_directory)
        shutil.rmtree(self._input_directory, ignore_errors=True)
        self._partial, self.layer = None, self.layer + 1


@contextmanager
def _replace_input(layer: nn.Module, hidden: Tensor | None, device: torch.device) -> Iterator[None]:
    """Within, the layer is given `hidden` instead of what the one before it gives."""

    def replace(module: nn.Module, args: Any, kwargs: Any) -> Any:
        assert hidden is not None
        moved = hidden.to(device)
        return ((moved, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": moved})

    if hidden is None:
        yield
        return
    hook = layer.register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _stop_after(layer: nn.Module) -> Iterator[Any]:
    """Within, a forward pass ends behind this layer, by the exception that is yielded; it holds
    what the layer gave."""

    class Left(Exception):
        hidden: Tensor
        values: int

    def stop(module: nn.Module, args: Any, output: Any) -> None:
        Left.hidden = output_hidden_states(output)
        Left.values = len(output) if isinstance(output, tuple) else 0
        raise Left

    hook = layer.register_forward_hook(stop)
    try:
        yield Left
    finally:
        hook.remove()


def _make_identity(layer: nn.Module, tuple_size: int) -> Callable[[], None]:
    """Make a layer that has had its turn return what it is given; undone by what is returned."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *[None] * (tuple_size - 1)) if tuple_size else hidden

    previous_forward = layer.__dict__.get(
        "forward"
    )  # accelerate's, where the model is on several cards
    layer.forward = forward

    def undo() -> None:
        del layer.forward
        if previous_forward is not None:
            layer.forward = previous_forward

    return undo
