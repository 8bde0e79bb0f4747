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

from ..storage.atomic import finish, scratch_for
from ..storage.safetensors_file import write_tensors
from .live import LiveModel
from .mixers import MixerCall, hidden_of, hook_mixers


class Turn:
    """One decoder layer, with its weights in memory, and the batches that pass through it."""

    def __init__(self, walk: "LayerWalk", number: int) -> None:
        self.number, self.layer = number, walk.live.decoder_layers[number]
        self._walk = walk

    def run(self, steps: Iterable[int] | None = None) -> Iterator[int]:
        """Pass these batches through the layer, or all; tells of each when it is through."""
        for step in range(len(self._walk.batches)) if steps is None else steps:
            self._walk.pass_through(self, step)
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
        self.hidden: HiddenStates = InMemory() if directory is None else OnDisk(directory)

    @property
    def first(self) -> int:
        """The layer at which the walk begins: 0, unless one before it was killed."""
        return self.hidden.layer

    def turns(self, stop: int | None = None) -> Iterator[Turn]:
        """Every layer from `first` on, before `stop`. The caller keeps what it learned of a
        layer before he asks for the next one; then what went before is forgotten."""
        layers = self.live.decoder_layers
        with self.weights.paused(), ExitStack() as stack:
            for layer in layers[: self.first]:
                stack.callback(_hand_on(layer, self.hidden.values))
            for number in range(self.first, len(layers) if stop is None else stop):
                turn = Turn(self, number)
                self.weights.bring(turn.layer)
                yield turn
                self.weights.let_go(turn.layer)
                self.hidden.next_layer()
                stack.callback(_hand_on(turn.layer, self.hidden.values))

    def pass_through(self, turn: Turn, step: int) -> None:
        """By the model's own forward pass, which knows its masks and positions: the layers before
        only hand on what they are given, and those after are not reached."""
        given = self.hidden.read(step)
        with (
            torch.no_grad(),
            _given(turn.layer, given, self.live.device),
            _left(turn.layer) as end,
            suppress(end),
        ):
            self.live.hidden(self.batches[step])
        self.hidden.write(step, end.hidden.cpu(), end.values)


def mixer_calls(live: LiveModel, batches: Sequence[Tensor]) -> Iterator[MixerCall]:
    """How the model calls its mixers on these batches. When a call is told of, that mixer's weights
    are in memory; those on disk are read once for all batches."""
    calls: list[MixerCall] = []
    if live.weights is None:
        for batch in batches:
            with torch.inference_mode(), hook_mixers(live.mixers, calls.append):
                live.hidden(batch)
            yield from calls
            calls.clear()
        return
    for turn in LayerWalk(live, batches).turns(max(live.mixers) + 1):
        for step in range(len(batches)):
            with hook_mixers(live.mixers, calls.append):
                list(turn.run([step]))
            yield from calls
            calls.clear()


@contextmanager
def behind_the_layers(live: LiveModel, hidden: Tensor | None, values: int) -> Iterator[None]:
    """Within, a forward pass begins behind the last decoder layer, with what that once gave:
    `hidden`, as the first of `values`. Final norm and head are the model's own; no layer's weights
    are used."""
    layers = live.decoder_layers
    with ExitStack() as stack:
        if live.weights is not None:
            stack.enter_context(live.weights.paused())
        for layer in layers:
            stack.callback(_hand_on(layer, values))
        stack.enter_context(_given(layers[-1], hidden, live.device))
        yield


class HiddenStates:
    """Those of every batch before layer `layer`; `values` is how many a layer returns in a tuple,
    0 where it is a bare tensor."""

    layer = 0
    values = 0

    def read(self, step: int) -> Tensor | None:
        """[rows, time, hidden]; None before the first layer."""
        raise NotImplementedError

    def write(self, step: int, hidden: Tensor, values: int) -> None:
        """What the layer made of that batch."""
        raise NotImplementedError

    def next_layer(self) -> None:
        """All batches are through."""
        raise NotImplementedError


class InMemory(HiddenStates):
    def __init__(self) -> None:
        self._states: dict[int, Tensor] = {}

    def read(self, step: int) -> Tensor | None:
        return self._states.get(step)

    def write(self, step: int, hidden: Tensor, values: int) -> None:
        self._states[step], self.values = hidden, values

    def next_layer(self) -> None:
        self.layer += 1


class OnDisk(HiddenStates):
    """In `directory`: `hidden-N` for the layer N that comes next."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._growing = directory, None
        waiting = (path.name.partition("-")[2] for path in directory.glob("hidden-*[0-9]"))
        self.layer = max(map(int, waiting), default=0)
        if self.layer:
            with safe_open(self._before / "0.safetensors", framework="pt") as file:
                self.values = int(file.metadata()["values"])

    _growing: Path | None

    @property
    def _before(self) -> Path:
        return self._directory / f"hidden-{self.layer}"

    @property
    def _after(self) -> Path:
        return self._directory / f"hidden-{self.layer + 1}"

    def read(self, step: int) -> Tensor | None:
        if not self.layer:
            return None
        with safe_open(self._before / f"{step}.safetensors", framework="pt") as file:
            hidden: Tensor = file.get_tensor("hidden")
            return hidden

    def write(self, step: int, hidden: Tensor, values: int) -> None:
        self.values = values
        if self._growing is None:
            self._growing = scratch_for(self._after)
            self._growing.mkdir()
        about = {"values": str(values)}
        write_tensors(self._growing / f"{step}.safetensors", {"hidden": hidden.contiguous()}, about)

    def next_layer(self) -> None:
        assert self._growing is not None
        finish(self._growing, self._after)
        shutil.rmtree(self._before, ignore_errors=True)
        self._growing, self.layer = None, self.layer + 1


@contextmanager
def _given(layer: nn.Module, hidden: Tensor | None, device: torch.device) -> Iterator[None]:
    """Within, the layer is given `hidden` instead of what the one before it gives."""

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        assert hidden is not None
        here = hidden.to(device)
        return ((here, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": here})

    if hidden is None:
        yield
        return
    hook = layer.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _left(layer: nn.Module) -> Iterator[Any]:
    """Within, a forward pass ends behind this layer, by the exception that is yielded; it holds
    what the layer gave."""

    class Left(Exception):
        hidden: Tensor
        values: int

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        Left.hidden = hidden_of(result)
        Left.values = len(result) if isinstance(result, tuple) else 0
        raise Left

    hook = layer.register_forward_hook(leave)
    try:
        yield Left
    finally:
        hook.remove()


def _hand_on(layer: nn.Module, values: int) -> Callable[[], None]:
    """Make a layer that has had its turn return what it is given; undone by what is returned."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        return (hidden, *[None] * (values - 1)) if values else hidden

    before = layer.__dict__.get("forward")  # accelerate's, where the model is on several cards
    layer.forward = forward

    def undo() -> None:
        del layer.forward
        if before is not None:
            layer.forward = before

    return undo
