"""A loaded model, with the checkpoint it was loaded from, and hooks on the calls of its mixers."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import StatetrimError, errors_of
from ..families.contract import RuntimeName
from ..storage.checkpoint import Checkpoint
from .stored_weights import StoredWeights


@dataclass(frozen=True)
class Runtime:
    """The code that runs a model here, and why it was chosen."""

    name: RuntimeName
    reason: str


def find_decoder(module: Any) -> Any:
    """The decoder below the head of a causal LM; in a multimodal model that of its text model."""
    base = module.base_model
    return getattr(base, "language_model", base).base_model


@dataclass(frozen=True, eq=False)
class LiveModel:
    """A loaded causal LM. Inputs go to `device`; weights may be on other GPUs or on disk. Token ids
    are [rows, time], on any device."""

    module: Any
    checkpoint: Checkpoint
    device: torch.device
    runtime: Runtime
    weights: StoredWeights | None = None  # None: all in memory

    @cached_property
    def mixers(self) -> dict[int, nn.Module]:
        """Layer -> mixer, for every linear layer."""
        return find_mixers(self.module, self.checkpoint)

    @property
    def output_projections(self) -> dict[int, nn.Module]:
        """Layer -> output projection of its mixer; refuses a family that names none."""
        family, layers = self.checkpoint.family, self.checkpoint.geometry.layers
        channel_rows = self.checkpoint.channels(layers[0])
        name = next((entry.tensor for entry in channel_rows if entry.role == "o_proj"), None)
        if name is None:
            raise StatetrimError(
                f"family {type(family).__name__} does not say where values are read out"
            )
        module_name = name.removesuffix(".weight")
        return {layer: mixer.get_submodule(module_name) for layer, mixer in self.mixers.items()}

    @property
    def decoder_layers(self) -> nn.ModuleList:
        """Every decoder layer, linear or not, in order."""
        layers: nn.ModuleList = find_decoder(self.module).layers
        return layers

    @property
    def model_with_head(self) -> Any:
        """The model that has the head: this one, or the text model inside it."""
        output_embeddings = self.module.get_output_embeddings()
        return self.module.language_model if output_embeddings is None else self.module

    @property
    def lm_head(self) -> Any:
        """The module that turns final hidden states into logits."""
        return self.model_with_head.get_output_embeddings()

    @property
    def vocab_size(self) -> int:
        """Number of token ids that have an embedding."""
        return int(self.module.get_input_embeddings().weight.shape[0])

    def random_ids(self, rows: int, time: int) -> Tensor:
        """Random token ids [rows, time], equal on every call."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.vocab_size, (rows, time), generator=generator)
        return ids.to(self.device)

    def check_ids(self, ids: Tensor) -> None:
        """Refuse token ids without an embedding, which come from another model's tokenizer."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise StatetrimError(
                f"the text has token {int(ids.max())}, and {self.checkpoint.path} has embeddings "
                f"of {self.vocab_size} tokens; its tokenizer belongs to another model"
            )

    def hidden_states(self, ids: Tensor) -> Tensor:
        """Hidden states [rows, time, hidden] after the final norm; the head is not run."""
        self.check_ids(ids)
        decoder = find_decoder(self.module)
        with self._one_sentence_errors():
            outputs = decoder(input_ids=ids.to(self.device), use_cache=False)
        hidden_states: Tensor = outputs.last_hidden_state
        return hidden_states

    def logits(self, ids: Tensor) -> Tensor:
        """Logits [rows, time, vocabulary] of the model's own forward pass, in its dtype, with
        gradients unless the caller turns them off."""
        self.check_ids(ids)
        with self._one_sentence_errors():
            logits: Tensor = self.module(input_ids=ids.to(self.device), use_cache=False).logits
        return logits

    def _one_sentence_errors(self) -> AbstractContextManager[None]:
        kinds = (TypeError, AttributeError, ValueError, OverflowError, RuntimeError)
        hint = "; its config may be wrong"
        return errors_of(f"{self.checkpoint.path} loads but does not run", hint, kinds)

    def forward_with_cache(
        self, ids: Tensor, cache: Any = None, keep: int = 1
    ) -> tuple[Tensor, Any]:
        """Run ids [rows, time], which follow the tokens in `cache`, the one that an earlier call
        returned (None: empty). Returns the logits [rows, keep, vocabulary] of the last `keep`
        tokens, and the updated cache; ids and errors are not checked."""
        cache_name = self.checkpoint.family.cache_argument(self.checkpoint.config)
        cache_argument = {} if cache is None else {cache_name: cache}
        outputs = self.module(
            input_ids=ids.to(self.device), use_cache=True, logits_to_keep=keep, **cache_argument
        )
        logits = outputs.logits[:, -keep:]  # MiniCPM-V returns those of all tokens
        return logits, outputs[cache_name]


def find_mixers(module: nn.Module, checkpoint: Checkpoint) -> dict[int, nn.Module]:
    """Layer -> mixer, for every linear layer; refuses a model that lacks one."""
    mixer_names = {
        template.partition("{layer}.")[2] for template in checkpoint.family.mixer_prefixes
    }
    pattern = re.compile(rf"(?:.*\.)?layers\.(\d+)\.(?:{'|'.join(map(re.escape, mixer_names))})")
    mixers: dict[int, nn.Module] = {}
    for name, submodule in module.named_modules():
        match = pattern.fullmatch(name)
        if match and int(match.group(1)) in checkpoint.geometry.layers:
            mixers[int(match.group(1))] = submodule
    missing = sorted(set(checkpoint.geometry.layers) - set(mixers))
    if missing:
        raise StatetrimError(f"the live model has no mixer for layers {missing[:5]}")
    return mixers


@dataclass(frozen=True, eq=False)
class MixerCall:
    """Arguments and output of one call of a mixer."""

    layer: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor  # [batch, time, hidden]

    def repeat(self, mixer: nn.Module) -> Tensor:
        """Call `mixer` with these arguments, moved to its device; returns its output [batch, time,
        hidden] there. A mixer on `meta`, which loads its weights when called, gets them unmoved."""
        device = next(mixer.parameters()).device
        loaded_on_call = device.type == "meta"
        if loaded_on_call or device == self.output.device:
            return output_hidden_states(mixer(*self.args, **self.kwargs))
        args, kwargs = tree_map(
            lambda x: x.to(device) if isinstance(x, Tensor) else x, (self.args, dict(self.kwargs))
        )
        return output_hidden_states(mixer(*args, **kwargs))


@contextmanager
def hook_mixers(
    modules: Mapping[int, nn.Module], on_call: Callable[[MixerCall], None]
) -> Iterator[None]:
    """Within, every call of these mixers is passed to `on_call` when it returns."""

    def report(layer: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        on_call(MixerCall(layer, args, kwargs, output_hidden_states(output)))

    with ExitStack() as stack:
        for layer, module in modules.items():
            hook = functools.partial(report, layer)
            stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield


def output_hidden_states(output: Any) -> Tensor:
    """The hidden states in a module's output: a bare tensor, or the first of a tuple."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
