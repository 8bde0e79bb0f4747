"""Import this before anything else of vLLM: its Triton kernels then run in Triton's interpreter.

Without a GPU vLLM has no platform. Its layers are then as on a GPU, and ask only for the device.
"""

import os

import triton_on_cpu

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or vLLM leaves out Triton where it finds no GPU
triton_on_cpu.install()

import torch  # noqa: E402
import vllm.utils.torch_utils  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

vllm.utils.torch_utils.PIN_MEMORY = False
CPU = torch.device("cpu")
type(current_platform).current_device = staticmethod(lambda: CPU)


def ready() -> None:
    """Call it when all modules with kernels are imported."""
    triton_on_cpu.mend_modules(
        "vllm.third_party.flash_linear_attention",
        "vllm.model_executor.layers.mamba",
        "vllm.v1.worker.mamba_utils",
    )
