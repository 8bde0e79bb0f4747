"""Find the shapes for which the Triton kernels of installed vLLM and SGLang compile.

    just engines DIRECTORY
    DIRECTORY/kernels/bin/python tools/compile_kernels.py OUT.json --engines vllm

Writes rows of the engine matrix. No GPU is needed: Triton compiles for a pretended one, the
engines' functions are called in serving order on small CPU tensors, and every launch stops when its
kernel is machine code. So a row says that a shape compiles, not that it is correct or fast; of
several autotuning configurations only the first is compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHAPES = (
    (128, 128), (96, 128), (64, 128), (48, 128), (32, 128), (16, 128),
    (96, 96), (80, 96), (64, 64), (48, 48), (32, 32),
)  # fmt: skip
ARCHITECTURES = {"Hopper": 90, "Ampere": 80, "Blackwell": 100}
OTHER_SHAPES = ((128, 128), (96, 128), (64, 128), (64, 64))  # on others than Hopper
FAMILIES = {
    "vllm": ["Qwen3-Next", "Qwen3.5"],
    "sglang-next": ["Qwen3-Next"],
    "sglang-3.5": ["Qwen3.5"],
}
KEY_HEADS, VALUE_HEADS, TOKENS = 2, 4, 70


def pretend_gpu(architecture: int) -> list[str]:
    """Make Triton compile for an absent GPU; returns a list that collects names of kernels."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    properties = {
        "max_shared_mem": 232448 if architecture >= 90 else 166912,
        "multiprocessor_count": 132,
        "warpSize": 32,
        "max_num_regs": 65536,
        "sm_clock_rate": 1,
        "mem_clock_rate": 1,
        "mem_bus_width": 1,
    }

    class Driver:
        utils = SimpleNamespace(get_device_properties=lambda device: properties)

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", architecture, 32)

        def get_active_torch_device(self) -> Any:
            return torch.device("cpu")

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_device_interface(self) -> Any:
            return torch.cuda

    triton.runtime.driver.set_active(Driver())
    compiled: list[str] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        if "cubin" not in kernel.asm:
            raise RuntimeError(f"{self.__name__} was not compiled to machine code")
        compiled.append(self.__name__)
        return kernel

    JITFunction.run = compile_only  # type: ignore[method-assign]
    autotune = triton.autotune
    triton.autotune = lambda configs, key, **options: autotune(configs[:1], key, **options)
    capability = (architecture // 10, architecture % 10)
    torch.cuda.get_device_capability = lambda device=None: capability  # type: ignore[assignment]
    torch.cuda.get_device_name = lambda device=None: "NVIDIA, by pretence"  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(  # type: ignore[assignment]
        **properties, name="NVIDIA, by pretence", major=capability[0], minor=capability[1],
        shared_memory_per_block_optin=properties["max_shared_mem"], total_memory=80 * 2**30,
        multi_processor_count=132,
    )  # fmt: skip
    torch.cuda._exchange_device = lambda device: -1  # type: ignore[attr-defined]
    torch.cuda._maybe_exchange_device = lambda device: -1  # type: ignore[attr-defined]
    torch.accelerator.device_index = contextlib.nullcontext  # type: ignore[assignment]
    torch.cuda.device = contextlib.nullcontext  # type: ignore[assignment,misc]
    return compiled


def vllm(keys: int, values: int) -> None:
    """Launch vLLM's kernels of prefill (post-convolution, chunks) and decode (both forms)."""
    import torch
    import triton
    import vllm.triton_utils
    import vllm.utils.torch_utils

    vllm.utils.torch_utils.PIN_MEMORY = False
    # Without a GPU vLLM has placeholders here, which its kernels would import.
    vllm.triton_utils.HAS_TRITON = True
    vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language
    vllm.triton_utils.tldevice = triton.language.extra.libdevice
    from vllm.third_party.flash_linear_attention import ops

    tensors = inputs(keys, values)
    gates = {name: tensors[name] for name in ("a", "b", "A_log", "dt_bias")}
    q, k, v, g, beta = ops.fused_post_conv_prep(
        conv_output=tensors["mixed_qkv"],
        **gates,
        num_k_heads=KEY_HEADS,
        head_k_dim=keys,
        head_v_dim=values,
    )
    ends = torch.tensor([0, TOKENS], dtype=torch.int32)
    ops.chunk_gated_delta_rule(
        *(x.unsqueeze(0) for x in (q, k, v, g, beta)),
        initial_state=tensors["state"][:1],
        output_final_state=True,
        cu_seqlens=ends,
        use_qk_l2norm_in_kernel=False,
    )
    packed_decode(ops.fused_recurrent_gated_delta_rule_packed_decode, tensors, keys)
    ops.fused_sigmoid_gating_delta_rule_update(
        **gates,
        q=q.unsqueeze(0),
        k=k.unsqueeze(0),
        v=v.unsqueeze(0),
        initial_state=tensors["state"],
        cu_seqlens=torch.arange(TOKENS + 1, dtype=torch.int32),
        ssm_state_indices=torch.zeros(TOKENS, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )


def sglang(keys: int, values: int, *, interleaved: bool) -> None:
    """Launch SGLang's kernels: split of the projection, chunked prefill, both forms of decode."""
    import torch
    from sglang.kernels.ops.attention import triton_gdn_fused_proj as projection
    from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule
    from sglang.kernels.ops.attention.fla.fused_recurrent import (
        fused_recurrent_gated_delta_rule_packed_decode,
    )
    from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
        fused_sigmoid_gating_delta_rule_update,
    )

    tensors = inputs(keys, values)
    channels = tensors["mixed_qkv"].shape[1]
    qkvz = torch.randn(TOKENS, channels + VALUE_HEADS * values, dtype=torch.bfloat16)
    ba = torch.randn(TOKENS, 2 * VALUE_HEADS, dtype=torch.bfloat16)
    if interleaved:
        split = projection.fused_qkvzba_split_reshape_cat
        split(qkvz, ba, KEY_HEADS, VALUE_HEADS, keys, values)
    else:
        eligible = "can_use_fused_qkvzba_causal_conv1d_update_contiguous"
        setattr(projection, eligible, lambda *tensors, **options: (True, ""))
        projection.fused_qkvzba_causal_conv1d_update_contiguous(
            qkvz,
            ba,
            torch.zeros(TOKENS, channels, 3, dtype=torch.bfloat16),
            torch.randn(channels, 4, dtype=torch.bfloat16),
            None,
            torch.arange(TOKENS, dtype=torch.int32),
            qkv_dim=channels,
            v_dim=VALUE_HEADS * values,
            num_v_heads=VALUE_HEADS,
            head_v_dim=values,
            activation="silu",
        )
    q, k, v = projection.fused_qkv_split_gdn_prefill(
        tensors["mixed_qkv"], KEY_HEADS, KEY_HEADS, VALUE_HEADS, keys, keys, values
    )
    g, beta = torch.randn(1, TOKENS, VALUE_HEADS), torch.rand(1, TOKENS, VALUE_HEADS)
    chunk_gated_delta_rule(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=tensors["state"],
        initial_state_indices=torch.zeros(1, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, TOKENS], dtype=torch.int32),
        head_first=False,
        use_qk_l2norm_in_kernel=True,
    )
    packed_decode(fused_recurrent_gated_delta_rule_packed_decode, tensors, keys)
    fused_sigmoid_gating_delta_rule_update(
        A_log=tensors["A_log"],
        dt_bias=tensors["dt_bias"],
        q=q,
        k=k,
        v=v,
        a=tensors["a"],
        b=tensors["b"],
        initial_state_source=tensors["state"],
        initial_state_indices=torch.zeros(TOKENS, dtype=torch.int32),
        cu_seqlens=torch.arange(TOKENS + 1, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
    )


def packed_decode(function: Any, tensors: dict[str, Any], keys: int) -> None:
    import torch

    values = tensors["state"].shape[-2]
    function(
        mixed_qkv=tensors["mixed_qkv"],
        **{name: tensors[name] for name in ("a", "b", "A_log", "dt_bias")},
        scale=keys**-0.5,
        initial_state=tensors["state"],
        out=torch.empty(TOKENS, 1, VALUE_HEADS, values, dtype=torch.bfloat16),
        ssm_state_indices=torch.zeros(TOKENS, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )


def inputs(keys: int, values: int) -> dict[str, Any]:
    import torch

    width = 2 * KEY_HEADS * keys + VALUE_HEADS * values
    return {
        "mixed_qkv": torch.randn(TOKENS, width, dtype=torch.bfloat16),
        "a": torch.randn(TOKENS, VALUE_HEADS, dtype=torch.bfloat16),
        "b": torch.randn(TOKENS, VALUE_HEADS, dtype=torch.bfloat16),
        "A_log": torch.randn(VALUE_HEADS),
        "dt_bias": torch.randn(VALUE_HEADS),
        "state": torch.zeros(TOKENS, VALUE_HEADS, values, keys),
    }


def compile_shapes(engine: str, architecture: int, shapes: list[list[int]]) -> None:
    """Compile in this process, and print a line of JSON per shape."""
    compiled = pretend_gpu(architecture)
    for keys, values in shapes:
        compiled.clear()
        error = ""
        try:
            if engine == "vllm":
                vllm(keys, values)
            else:
                sglang(keys, values, interleaved=engine == "sglang-next")
        except Exception as problem:
            error = root_cause(problem)
            traceback.print_exc()
        compilation = {"shape": [keys, values], "kernels": sorted(set(compiled)), "error": error}
        print("FOUND " + json.dumps(compilation), flush=True)


def compile_in_subprocess(
    engine: str, architecture: int, shapes: tuple[tuple[int, int], ...], cache: str
) -> list[dict[str, Any]]:
    """Use a fresh process: Triton and the engines are patched before they are imported."""
    task = {"engine": engine, "architecture": architecture, "shapes": shapes}
    done = subprocess.run(
        [sys.executable, __file__, "--attempt", json.dumps(task)],
        env={"PATH": "/usr/bin:/bin", "HOME": cache, "TRITON_CACHE_DIR": cache}
        | {"OMP_NUM_THREADS": "1", "VLLM_TARGET_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if len(lines) != len(shapes):
        raise SystemExit(f"{engine} for sm_{architecture} stopped:\n{done.stderr[-4000:]}")
    return [json.loads(line.removeprefix("FOUND ")) for line in lines]


def root_cause(problem: BaseException) -> str:
    while problem.__cause__ is not None:
        problem = problem.__cause__
    text = getattr(problem, "error_message", None) or str(problem)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    mentions = [line for line in lines if "Mismatched" in line or "must be" in line]
    return f"{type(problem).__name__}: {(mentions or lines or [''])[-1]}"[:200]


def default_outcome(engine: str, hardware: str, shape: list[int]) -> dict[str, str]:
    """Verdict on a shape that compiles, and the flag it needs if Triton is not the default."""
    if shape == [128, 128] or hardware == "Ampere":
        return {"verdict": "fast"}
    if engine == "vllm":  # on Blackwell it chooses by the keys alone
        needs_flag = hardware == "Hopper" or shape[0] == 128
        flag = {"flag": "--gdn-prefill-backend triton"} if needs_flag else {}
        return {"verdict": "fallback", **flag}
    if hardware == "Blackwell":  # with a bfloat16 state
        return {"verdict": "fallback", "flag": "--linear-attn-decode-backend triton"}
    return {"verdict": "fallback"}


def by_family(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The row; on Ampere vLLM decodes only Qwen3.5, at 128x128, with a fused kernel, so a cut
    there has two."""
    is_cut = row["engine"] == "vLLM" and row["verdict"] == "fast" and row["shape"] != ["128x128"]
    if not (is_cut and row["hardware"] == ["Ampere"]):
        return [row]
    return [
        row | {"families": ["Qwen3-Next"]},
        row | {"families": ["Qwen3.5"], "verdict": "fallback"},
    ]


def matrix_row(
    engine: str, hardware: str, compilation: dict[str, Any], triton: str
) -> dict[str, Any]:
    package = "vllm" if engine == "vllm" else "sglang"
    version = importlib.metadata.version(package)
    architecture = ARCHITECTURES[hardware]
    if compilation["error"]:
        outcome = {"verdict": "refused", "error": compilation["error"]}
        result = "does not compile"
    else:
        outcome = default_outcome(engine, hardware, compilation["shape"])
        result = f"compiles, {len(compilation['kernels'])} kernels"
    return {
        "engine": "vLLM" if engine == "vllm" else "SGLang",
        "versions": version,
        "hardware": [hardware],
        "families": FAMILIES[engine],
        "shape": ["x".join(map(str, compilation["shape"]))],
        **outcome,
        "source": f"{package} {version} {result} for sm_{architecture} with triton {triton}: "
        "tools/compile_kernels.py",
        "date": datetime.date.today().isoformat(),
        "evidence": "compiled",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--engines", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--attempt", type=json.loads, help="compile here (used internally)")
    arguments = parser.parse_args()
    if arguments.attempt is not None:
        compile_shapes(**arguments.attempt)
        return
    rows = []
    triton = importlib.metadata.version("triton")
    with tempfile.TemporaryDirectory() as cache:
        for engine in arguments.engines:
            for hardware, architecture in ARCHITECTURES.items():
                shapes = SHAPES if hardware == "Hopper" else OTHER_SHAPES
                for compilation in compile_in_subprocess(engine, architecture, shapes, cache):
                    rows += by_family(matrix_row(engine, hardware, compilation, triton))
                    print(engine, hardware, compilation, flush=True)
    arguments.out.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
