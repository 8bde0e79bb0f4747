"""What to try before a cut: flags of the engines, what each gives, and what it costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...cut.geometry import Geometry
from ...families.mamba2 import Mamba2
from ...storage.checkpoint import Checkpoint
from ..options import ServingOptions
from .arithmetic import Fit, Settings
from .compare import capacity, is_refused, settings_for


@dataclass(frozen=True)
class Flag:
    """A flag of an engine as a change of the settings, and its cost as far as it is known."""

    engine: str
    flag: str
    change: Mapping[str, float]  # fields of `Settings`
    cost: str
    source: str
    needs: str = ""  # "speculation", "state in float32", "Mamba-2" or "Gated DeltaNet"


BFLOAT16_COST = "small in our runs and grows with length: results/precision.md"
FLAGS = (
    Flag("vllm", "--mamba-ssm-cache-dtype bfloat16", {"state_bytes": 2}, BFLOAT16_COST,
         "vLLM 0.32.0: config/cache.py", "state in float32"),
    Flag("vllm", "--kv-cache-dtype fp8", {"kv_bytes": 1}, "not measured here",
         "vLLM 0.32.0: config/cache.py"),
    Flag("vllm", "--no-enable-prefix-caching", {"prefix_caching": False},
         "repeated prefixes are computed again", "vLLM 0.32.0: v1/kv_cache_interface.py"),
    Flag("vllm", "--use-replayssm", {"replay": True},
         "same outputs; with speculation it turns the prefix cache off",
         "vLLM 0.32.0: config/vllm.py", "Mamba-2 and speculation"),
    Flag("vllm", "fewer draft tokens (1)", {"speculative": 1}, "slower decoding",
         "vLLM 0.32.0: v1/kv_cache_interface.py", "speculation"),
    Flag("sglang", "--mamba-ssm-dtype bfloat16", {"state_bytes": 2}, BFLOAT16_COST,
         "SGLang 0.5.23: configs/mamba_utils.py", "state in float32"),
    Flag("sglang", "--kv-cache-dtype fp8_e4m3", {"kv_bytes": 1}, "not measured here",
         "SGLang 0.5.23: mem_cache/kv_cache_dtype.py"),
    Flag("sglang", "--mamba-full-memory-ratio, the best for this context", {"state_ratio": 0},
         "none; the prefix cache has less room", "SGLang 0.5.23: kv_cache_configurator.py"),
    Flag("sglang", "--mamba-radix-cache-strategy extra_buffer_lazy", {"slots": 4},
         "none known", "SGLang 0.5.23: mem_cache/allocation_sizing.py"),
    Flag("sglang", "--mamba-radix-cache-strategy no_buffer", {"slots": 3},
         "no overlap of scheduling and computing", "SGLang 0.5.23: arg_groups/overrides.py"),
    Flag("sglang", "--enable-linear-replayssm-spec", {"replay": True},
         "same outputs; decoding 1.87 to 1.96x as fast by its authors (#28451)",
         "SGLang 0.5.23: kv_cache_configurator.py", "Gated DeltaNet and speculation"),
    Flag("sglang", "--enable-int8-mamba-checkpoint", {},
         "twice as many cached prefixes, not more requests; quality not measured (#28185)",
         "SGLang 0.5.23: mem_cache/mamba_checkpoint_pool.py"),
    Flag("llamacpp", "-ctk q8_0 -ctv q8_0", {"kv_bytes": 34 / 32}, "not measured here",
         "llama.cpp 2026-10: common/arg.cpp"),
    Flag("llamacpp", "--ctx-checkpoints 8", {"checkpoints": 8},
         "longer prompts are computed again after an edit; saves host memory only",
         "llama.cpp 2026-10: common/common.h"),
    Flag("mlx", "--prompt-cache-size 2", {},
         "two prompts are remembered, not ten; their memory comes on top of these sequences",
         "MLX-LM 0.32.2: server.py"),
)  # fmt: skip
"""In the order in which they cost least. vLLM #55196 reports that an int8 state of Gated DeltaNet
drops GSM8K from 81 to 41 and error feedback restores it, so short tests of int8 are too rosy."""


@dataclass(frozen=True)
class Gain:
    """What a flag gives for this model: alone, and with the cut."""

    flag: str
    fit: Fit
    cut_fit: Fit | None
    cost: str
    source: str


def gains(model: Checkpoint, after: Geometry | None, serving: ServingOptions) -> list[Gain]:
    """What each flag of the engine that applies gives, for the original and for a cut that the
    engine serves."""
    if after is not None and is_refused(model, after, serving.engine):
        after = None
    settings, is_mamba2 = settings_for(model, serving), isinstance(model.family, Mamba2)
    by_flag = []
    for flag in FLAGS:
        if flag.engine == serving.engine and applies(flag, settings, is_mamba2):
            changed = replace(settings, **flag.change)  # type: ignore[arg-type]
            fit = capacity(model, model.geometry, changed, serving.engine)
            cut = None if after is None else capacity(model, after, changed, serving.engine)
            by_flag.append(Gain(flag.flag, fit, cut, flag.cost, flag.source))
    return by_flag


def applies(flag: Flag, settings: Settings, is_mamba2: bool) -> bool:
    """Whether the flag changes anything in these settings."""
    if "speculation" in flag.needs and not settings.speculative:
        return False
    if "speculative" in flag.change and settings.speculative < 2:
        return False
    if "Mamba-2" in flag.needs and not is_mamba2:
        return False
    if "Gated DeltaNet" in flag.needs and is_mamba2:
        return False
    return all(getattr(settings, name) != value for name, value in flag.change.items())
