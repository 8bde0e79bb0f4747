"""The portable models against the equations, against fla, and in different modes of running."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from helpers import tiny
from helpers.cases import load_cases
from helpers.fla_worker import run
from helpers.forker import Forker
from helpers.recurrences import step_by_step
from statetrim import portable
from statetrim.portable.layers import ShortConvolution
from statetrim.recovery.adapters import checkpoint_activations
from statetrim.tasks.recall import associations


class NaiveModel:
    """Reads one token of every sequence at a time; shares no code with any library's layers."""

    def __init__(self, config: Any, tensors: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, {name: x.double() for name, x in tensors.items()}
        self.states: dict[int, Tensor] = {}  # layer -> [batch, heads, keys, values]

    def logits(self, ids: Tensor) -> Tensor:
        """[batch, time, vocabulary] of ids [batch, time]."""
        x = self.weights["model.embeddings.weight"][ids]
        for layer in range(self.config.num_hidden_layers):
            block = {
                name.removeprefix(f"model.layers.{layer}."): weight
                for name, weight in self.weights.items()
                if name.startswith(f"model.layers.{layer}.")
            }
            x = x + self._mixed(layer, block, self._norm(x, block["attn_norm.weight"]))
            y = self._norm(x, block["mlp_norm.weight"])
            gate, up = (y @ block[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ block["mlp.down_proj.weight"].T
        head = self.weights.get("lm_head.weight", self.weights["model.embeddings.weight"])
        logits: Tensor = self._norm(x, self.weights["model.norm.weight"]) @ head.T
        return logits

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        scale: Tensor = (x.square().mean(-1, keepdim=True) + self.config.norm_eps).rsqrt()
        return x * scale * weight

    def _mixed(self, layer: int, block: Mapping[str, Tensor], x: Tensor) -> Tensor:
        heads, (batch, time, _) = self.config.num_heads, x.shape
        q, k, v = (self._convolved(block, name, x).view(batch, time, heads, -1) for name in "qkv")
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        beta = (x @ block["attn.b_proj.weight"].T).sigmoid()
        log_decay = None
        if "attn.A_log" in block:
            step = F.softplus(x @ block["attn.a_proj.weight"].T + block["attn.dt_bias"])
            log_decay = -block["attn.A_log"].exp() * step
        output, states = step_by_step(q, k, v, g=log_decay, beta=beta)
        self.states[layer] = states[:, -1]
        y = self._norm(output, block["attn.o_norm.weight"])
        if "attn.g_proj.weight" in block:
            y = y * F.silu(x @ block["attn.g_proj.weight"].T).view_as(y)
        return y.flatten(2) @ block["attn.o_proj.weight"].T

    def _convolved(self, block: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        """The projection after its short convolution and SiLU."""
        filters = block[f"attn.{name}_conv1d.weight"].squeeze(1)  # [channels, width]
        projected = F.pad(x @ block[f"attn.{name}_proj.weight"].T, (0, 0, filters.shape[1] - 1, 0))
        windows = projected.unfold(1, filters.shape[1], 1)  # [batch, time, channels, width]
        return F.silu((windows * filters).sum(-1))


ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
REFERENCE_MODELS = ("tiny-delta_net", "tiny-gated_deltanet6")
needs_fla = pytest.mark.skipif(not tiny.FLA_INSTALLED, reason="fla needs triton to be imported")

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {"head_dim": 8, "num_v_heads": 4, "expand_v": 1.5}
CLASSES: dict[str, tuple[Any, Any]] = {
    "delta_net": (portable.DeltaNetConfig, portable.DeltaNetForCausalLM),
    "gated_deltanet": (portable.GatedDeltaNetConfig, portable.GatedDeltaNetForCausalLM),
    "kda": (portable.KDAConfig, portable.KDAForCausalLM),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "delta_net": {},
    "delta_net wide": {
        "use_gate": True, "allow_neg_eigval": True, "expand_k": 0.5, "tie_word_embeddings": True,
    },
    "delta_net sum": {
        "qk_norm": "sum", "qk_activation": "elu", "use_beta": False, "use_short_conv": False,
    },
    "gated_deltanet": GROUPED,
    "gated_deltanet plain": {
        "head_dim": 8, "expand_v": 2.0, "use_gate": False, "allow_neg_eigval": True,
    },
    "kda": GROUPED,
    "kda bounded": {"head_dim": 8, "safe_gate": True, "lower_bound": -5.0},
}  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def small_model(variant: str, seed: int = 0, **changes: Any) -> Any:
    """A random model with activations of order one, so that differences would show."""
    config, causal_lm = CLASSES[variant.split()[0]]
    torch.manual_seed(seed)
    model = causal_lm(config(**{**SMALL, **VARIANTS[variant], **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3 if "conv1d" in name else 0.2)
            elif "conv1d.bias" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(rows: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(64, (rows, time), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return {
        name: AutoModelForCausalLM.from_pretrained(
            MODELS / name, output_loading_info=True, dtype=torch.float32
        )
        for name in REFERENCE_MODELS
    }


# Reference checkpoints


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_reference_checkpoint_computes_what_the_equations_say(name: str, reference: Any) -> None:
    model, report = reference[name]
    assert not any(report.values())
    ids = torch.randint(4096, (2, 70), generator=torch.Generator().manual_seed(0))
    naive = NaiveModel(model.config, load_file(MODELS / name / "model.safetensors"))
    with torch.no_grad():
        out = model.eval()(ids)
    assert (out.logits - naive.logits(ids)).abs().max() < 1e-4
    states = torch.stack([layer.recurrent_state for layer in out.past_key_values.layers])
    assert (states - torch.stack([*naive.states.values()])).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("pairs, stated", [(8, 0.996), (16, 0.986), (32, 0.954), (63, 0.700)])
def test_reference_checkpoint_reproduces_its_stated_recall(
    pairs: int, stated: float, reference: Any
) -> None:
    """The stated values come from 32 other sequences, so the tolerance is half a percent plus two
    standard errors."""
    model, _ = reference["tiny-delta_net"]
    ids, positions = associations(4096, pairs, rows=64)
    with torch.no_grad():
        predicted = model.eval()(ids, use_cache=False).logits[:, positions].argmax(-1)
    recall = (predicted == ids[:, positions + 1]).float().mean().item()
    spread = (stated * (1 - stated) / (32 * pairs)) ** 0.5
    assert recall == pytest.approx(stated, abs=0.005 * stated + 2 * spread)


# Checkpoints exchanged with fla


@pytest.fixture(scope="module")
def through_fla(tmp_path_factory: pytest.TempPathFactory, fla_forker: Forker) -> Path:
    """Checkpoints `NAME/ours` of the portable models, loaded by fla and saved again as
    `NAME/theirs`, with fla's loading report."""
    folder = tmp_path_factory.mktemp("through_fla")
    for name in VARIANTS:
        small_model(name).save_pretrained(folder / name / "ours")
    run(fla_forker, "pass_through", folder)
    return folder


@needs_fla
@every_variant
def test_checkpoints_pass_to_fla_and_back(variant: str, through_fla: Path) -> None:
    folder, model = through_fla / variant, small_model(variant)
    report = json.loads((folder / "report.json").read_text())
    assert report["class"].startswith("fla.")
    assert report["problems"] == {}
    portable_tensors, fla_tensors = (
        load_file(folder / x / "model.safetensors") for x in ("ours", "theirs")
    )
    assert portable_tensors.keys() == fla_tensors.keys()
    assert all(torch.equal(portable_tensors[name], fla_tensors[name]) for name in portable_tensors)

    reloaded, problems = type(model).from_pretrained(folder / "theirs", output_loading_info=True)
    assert not any(problems.values())
    ids = tokens(2, 20)
    with torch.no_grad():
        assert torch.equal(reloaded.eval()(ids).logits, model(ids).logits)


@needs_fla
@pytest.mark.parametrize("variant", CLASSES)
def test_config_fields_and_defaults_are_those_of_fla(variant: str, through_fla: Path) -> None:
    fla_defaults = json.loads((through_fla / variant / "defaults.json").read_text())
    assert json.loads(CLASSES[variant][0]().to_json_string(use_diff=False)) == fla_defaults


# One model, run in different ways


@every_variant
@pytest.mark.parametrize("pieces", [1, [1, 40, 2, 27]], ids=["tokens", "pieces"])
def test_prefill_equals_reading_in_pieces(variant: str, pieces: Any) -> None:
    model, ids = small_model(variant), tokens(2, 70)
    with torch.no_grad():
        prefill = model(ids)
        cache, steps = None, []
        for piece in ids.split(pieces, 1):
            out = model(piece, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    assert prefill.logits.std() > 0.1
    assert (torch.cat(steps, 1) - prefill.logits).abs().max() < 1e-4
    for layer, decoded_layer in zip(prefill.past_key_values.layers, cache.layers, strict=True):
        assert (layer.recurrent_state - decoded_layer.recurrent_state).abs().max() < 1e-4
        for conv_state, decoded_conv_state in zip(
            layer.conv_state, decoded_layer.conv_state, strict=True
        ):
            assert (conv_state - decoded_conv_state).abs().max() < 1e-4


def test_a_decoded_convolution_adds_up_in_float32() -> None:
    """In bfloat16 each product would be rounded before it is added."""
    torch.manual_seed(0)
    conv = ShortConvolution(256, 4, bias=True, activation=None).bfloat16()
    x, past = torch.randn(8, 1, 256).bfloat16(), torch.randn(8, 256, 4).bfloat16()
    with torch.no_grad():
        output, _ = conv(x, cache=past)
        inputs = torch.cat([past[..., 1:], x.mT], -1).double()
        exact = (inputs * conv.weight[:, 0].double()).sum(-1) + conv.bias.double()
    assert (output[:, 0] == exact.bfloat16()).double().mean() > 0.99


@every_variant
def test_a_cache_does_not_keep_the_prompt_alive(variant: str) -> None:
    """The cache's tensors are not views of larger ones."""
    model = small_model(variant)
    with torch.no_grad():
        cache = model(tokens(2, 70), use_cache=True).past_key_values
    for layer in cache.layers:
        for tensor in (layer.recurrent_state, *layer.conv_state):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


@settings(max_examples=25, deadline=None)
@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    mask=st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=4).filter(
        lambda rows: all(any(row) for row in rows)
    ),
    conv_bias=st.booleans(),
)
def test_masked_tokens_do_not_exist(variant: str, mask: list[list[bool]], conv_bias: bool) -> None:
    """Wherever the padding is, logits and the continued state are those without padding."""
    model = small_model(variant, conv_bias=conv_bias)
    real = torch.tensor(mask)
    ids, following = tokens(len(mask), 12), tokens(len(mask), 1, seed=1)
    with torch.no_grad():
        out = model(ids, attention_mask=real.long(), use_cache=True)
        after = model(following, past_key_values=out.past_key_values, use_cache=True).logits
        for row in range(len(mask)):
            kept = ids[row : row + 1, real[row]]
            alone = model(torch.cat([kept, following[row : row + 1]], 1), use_cache=False).logits[0]
            assert (out.logits[row, real[row]] - alone[:-1]).abs().max() < 1e-4
            assert (after[row, 0] - alone[-1]).abs().max() < 1e-4


@every_variant
def test_packed_sequences_do_not_see_each_other(variant: str) -> None:
    model, lengths = small_model(variant), [5, 1, 70, 8]
    sequences = [tokens(1, n, seed=n) for n in lengths]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        packed = model(torch.cat(sequences, 1), cu_seqlens=bounds, use_cache=False).logits
        alone = torch.cat([model(sequence, use_cache=False).logits for sequence in sequences], 1)
    assert (packed - alone).abs().max() < 1e-4


@every_variant
def test_half_precision_model_keeps_a_float32_state(variant: str) -> None:
    model = small_model(variant).to(torch.bfloat16)
    with torch.no_grad():
        out = model(tokens(1, 6))
        out = model(tokens(1, 1), past_key_values=out.past_key_values, use_cache=True)
    assert out.logits.dtype == torch.bfloat16
    layer = out.past_key_values.layers[0]
    assert layer.recurrent_state.dtype == torch.float32
    assert all(x.dtype == torch.bfloat16 for x in layer.conv_state)


@every_variant
def test_training_reaches_every_parameter(variant: str) -> None:
    model, ids = small_model(variant).train(), tokens(2, 70)
    loss = model(ids, labels=ids).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(x.isfinite().all() and x.any() for x in gradients.values())
    logits = model(ids, use_cache=False).logits
    by_hand = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-6)
    model.zero_grad()
    checkpoint_activations(model)
    model(ids, labels=ids).loss.backward()
    for name, p in model.named_parameters():
        assert torch.allclose(p.grad, gradients[name], atol=1e-6)


# What the rest of statetrim relies on


@pytest.mark.parametrize("variant, changes, field", load_cases("portable"))
def test_what_is_not_supported_is_named(variant: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        small_model(variant, **changes)
