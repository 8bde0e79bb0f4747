"""A model that runs, with the checkpoint it was loaded from."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import StatetrimError, is_out_of_memory
from ..families.contract import RuntimeName
from ..storage.checkpoint import Checkpoint
from .mixers import find_mixers
from .stored_weights import StoredWeights


@dataclass(frozen=True)
class Runtime:
    """Which code runs a model here, and why that one."""

    name: RuntimeName
    reason: str


def decoder_of(module: Any) -> Any:
    """The text model below the head of a causal LM, also where towers for other inputs stand beside
    it."""
    base = module.base_model
    decoder = getattr(base, "language_model", base).base_model
    return decoder if hasattr(decoder, "layers") else decoder.model  # MoM names no base


@dataclass(frozen=True, eq=False)
class LiveModel:
    """A causal LM of transformers, fla or portable, and what is asked of it.

    `device` is where inputs go; weights may be elsewhere, on disk or on other cards. Token ids are
    [rows, time], on any device.
    """

    module: Any
    checkpoint: Checkpoint
    device: torch.device
    runtime: Runtime
    weights: StoredWeights | None = None  # where they are on disk until they are needed

    @cached_property
    def mixers(self) -> dict[int, nn.Module]:
        """The mixer of every linear-attention layer."""
        return find_mixers(self.module, self.checkpoint)

    @property
    def output_projections(self) -> dict[int, nn.Module]:
        """The output projection of every mixer, by the family's claims."""
        family, layers = self.checkpoint.family, self.checkpoint.geometry.layers
        claims = self.checkpoint.channels(layers[0])
        name = next((claim.tensor for claim in claims if claim.role == "o_proj"), None)
        if name is None:
            raise StatetrimError(
                f"family {type(family).__name__} does not say where values are read out"
            )
        leaf = name.removesuffix(".weight")
        return {layer: mixer.get_submodule(leaf) for layer, mixer in self.mixers.items()}

    @property
    def decoder_layers(self) -> nn.ModuleList:
        """Every decoder layer, linear or not, in order."""
        layers: nn.ModuleList = decoder_of(self.module).layers
        return layers

    @property
    def headed(self) -> Any:
        """The model that has the head: this one, or the text model inside it."""
        own = self.module.get_output_embeddings()
        return self.module.language_model if own is None else self.module

    @property
    def head(self) -> Any:
        """What turns hidden states into logits."""
        return self.headed.get_output_embeddings()

    @property
    def vocabulary(self) -> int:
        """Token ids that have an embedding."""
        return int(self.module.get_input_embeddings().weight.shape[0])

    def random_ids(self, rows: int, time: int) -> Tensor:
        """The same on every call."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.vocabulary, (rows, time), generator=generator)
        return ids.to(self.device)

    def check_ids(self, ids: Tensor) -> None:
        """Refuse tokens that have no embedding: of a tokenizer that is not the model's."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            raise StatetrimError(
                f"the text has token {int(ids.max())}, and {self.checkpoint.path} has embeddings "
                f"of {self.vocabulary} tokens; its tokenizer belongs to another model"
            )

    def hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states [rows, time, hidden], without the head."""
        self.check_ids(ids)
        decoder = decoder_of(self.module)
        with self._explained():
            answer = decoder(input_ids=ids.to(self.device), use_cache=False)
        states: Tensor = answer.last_hidden_state
        return states

    def logits(self, ids: Tensor) -> Tensor:
        """[rows, time, vocabulary], as the model's own forward pass gives them."""
        self.check_ids(ids)
        with self._explained():
            logits: Tensor = self.module(input_ids=ids.to(self.device), use_cache=False).logits
        return logits

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A field of a config that loads may still be none that the model can compute with."""
        try:
            yield
        except StatetrimError:
            raise
        except (TypeError, AttributeError, ValueError, OverflowError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0][:200]
            raise StatetrimError(
                f"{self.checkpoint.path} loads but does not run: {reason}; its config may be wrong"
            ) from error

    def step(self, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Logits [rows, 1, vocabulary] of the last token, and the cache after it; `cache` is what
        a step before gave."""
        name = self.checkpoint.family.cache_argument(self.checkpoint.config)
        past = {} if cache is None else {name: cache}
        answer = self.module(
            input_ids=ids.to(self.device), use_cache=True, logits_to_keep=1, **past
        )
        return answer.logits[:, -1:], answer[name]  # MiniCPM-V gives all of them
