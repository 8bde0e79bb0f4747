"""llama.cpp."""

from dataclasses import replace

from ..capacity.arithmetic import CacheModel, Fit, Settings, arrays_of_sequences, copy_bytes
from .engine import Engine, Flag


def llamacpp(model: CacheModel, settings: Settings) -> Fit:
    """A slot has rows of state and convolution, always in float32, one more for each draft token,
    and cells for its context, a multiple of 256.

    src/llama-memory-recurrent.cpp and llama-hparams.cpp; tools/server/server-context.cpp keeps up
    to 32 checkpoints of a slot in host memory (--ctx-checkpoints), each with one row. They are made
    where a user's message starts and shortly before the end of a prompt, at any token (read at
    commit b21e4de of 2026-08-22).
    """
    float32 = replace(settings, state_bytes=4.0, conv_bytes=4.0)
    fit = arrays_of_sequences(model, float32, 1 + settings.speculative)
    copied = copy_bytes(model, float32, model.conv_width - 1)
    host = copied * settings.checkpoints if settings.prefix_caching else 0
    return replace(fit, stored_bytes=copied, block_bytes=copied, host_bytes=host)


ENGINE = Engine(
    key="llamacpp",
    name="llama.cpp",
    packages=("xllamacpp",),  # has the version of its llama.cpp: year.month.build
    version="2026-10",
    command="python convert_hf_to_gguf.py {model} --outfile model.gguf{no_mtp} && "
    "llama-server -m model.gguf",
    fit=llamacpp,
    kv_dtypes={"auto": 2.0, "q8_0": 34 / 32},  # with a scale for every 32 numbers
    flags=(
        Flag("-ctk q8_0 -ctv q8_0", {"kv_bytes": 34 / 32}, "not measured here", "common/arg.cpp"),
        Flag("--ctx-checkpoints 8", {"checkpoints": 8},
             "longer prompts are computed again after an edit; saves host memory only",
             "common/common.h"),
    ),
    driver="ask_llamacpp",
    error_pattern=r"error loading model: (.+)",
)  # fmt: skip
