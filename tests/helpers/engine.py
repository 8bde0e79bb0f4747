"""Stand-ins for an engine, whose models are run by transformers.

`write_stand_in` writes an environment with a minimal MLX-LM on top of torch, for the real driver in
its own process. `InProcess` answers in this process, for tests that only need the answers.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.runtime.placement import Placement
from statetrim.storage.checkpoint import open_checkpoint
from statetrim.verification.engine import DriverAnswer, DriverRequest, EngineError

_FIRST = """
import os, time
from pathlib import Path
Path({pids!r}, str(os.getpid())).touch()
if {mode!r} == "hangs":
    time.sleep(600)
"""
_CORE = """
import torch

array, float32, bfloat16 = torch.tensor, torch.float32, torch.bfloat16
torch.Tensor.astype = lambda self, dtype: self.to(dtype)

def max(x, axis): return x.amax(axis)
def argmax(x, axis=-1): return x.argmax(axis)
def logsumexp(x, axis): return x.logsumexp(axis)
def default_device(): return "stand-in"
"""
_LOAD = """
import sys
import time
sys.modules["fla"] = sys.modules["causal_conv1d"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Model:
    def __init__(self, path):
        self.live = AutoModelForCausalLM.from_pretrained(path).eval()
        self.width = self.live.config.linear_key_head_dim

    def set_dtype(self, dtype):
        self.live.to(dtype)

    @torch.inference_mode()
    def __call__(self, ids, cache=None):
        found = self.live(input_ids=ids, past_key_values=cache and cache.get("kept"))
        if cache is not None:
            cache["kept"] = found.past_key_values
        return found.logits

def load(path, **options):
    model = Model(path)
    if {mode!r} == "refuses narrow heads" and model.width < 12:
        raise ValueError("heads of 12 or more only")
    return model, AutoTokenizer.from_pretrained(path)
"""


def write_stand_in(folder: Path, mode: str = "") -> tuple[Path, Path]:
    """Returns a Python interpreter with a minimal MLX-LM, and the folder in which each of its
    processes leaves a file named by its process id."""
    pids = folder / "pids"
    for name in ("pids", "mlx", "mlx_lm/models", "mlx-0.dist-info", "mlx_lm-0.dist-info"):
        (folder / name).mkdir(parents=True)
    (folder / "mlx" / "__init__.py").write_text(_FIRST.format(mode=mode, pids=str(pids)))
    (folder / "mlx" / "core.py").write_text(_CORE)
    (folder / "mlx_lm" / "__init__.py").write_text(_LOAD.format(mode=mode))
    (folder / "mlx_lm" / "models" / "__init__.py").touch()
    cache = "def make_prompt_cache(model): return {'kept': None, 'new': True}\n"
    (folder / "mlx_lm" / "models" / "cache.py").write_text(cache)
    for name in ("mlx", "mlx_lm"):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n"
        (folder / f"{name}-0.dist-info" / "METADATA").write_text(metadata)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python, pids


def have_ended(*folders: Path) -> bool:
    """Whether all processes whose ids are names in the folders end soon; a zombie has ended."""
    stats = [Path("/proc", pid.name, "stat") for folder in folders for pid in folder.iterdir()]
    return wait_until(lambda: all(map(has_ended, stats)), 10)


def has_ended(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(") ")[2][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # also while it is read
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    """Whether the condition is true within this time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@dataclass
class InProcess:
    """Replaces the function that asks an engine. `mode` selects a fault; `requested_models` records
    the models it was asked for."""

    mode: str = ""
    requested_models: list[str] = field(default_factory=list)

    @torch.inference_mode()
    def __call__(
        self, engine: str, python: Path, request: DriverRequest, seconds: float
    ) -> DriverAnswer:
        model = open_checkpoint(request.model)
        narrow = model.geometry.head_k_dim < 12
        self.requested_models.append(model.path.name)
        if narrow and self.mode == "refuses narrow heads":
            raise EngineError("ValueError: heads of 12 or more only")
        live = load_live(model, Placement(dtype=getattr(torch, request.dtype))).module
        wrong_share = {"noise": 1.0, "worse for narrow heads": 0.04 * narrow}.get(self.mode, 0.0)
        noise = torch.Generator().manual_seed(0)

        def logits(ids: Sequence[int]) -> Tensor:
            correct = live(input_ids=torch.tensor([ids])).logits[0].float()
            wrong = torch.rand(len(ids), 1, generator=noise) < wrong_share
            return torch.where(wrong, torch.randn(correct.shape, generator=noise) * 9, correct)

        best = [logits(ids)[:-1].log_softmax(-1).max(-1) for ids in request.sequences]
        continuations = [list(prompt) for prompt in request.prompts]
        for ids in continuations:
            for _ in range(request.generate):
                ids.append(int(logits(ids)[-1].argmax()))
        tokenizer = load_tokenizer(model)
        return DriverAnswer(
            engine="stand-in",
            encoded=[tokenizer(t, add_special_tokens=False)["input_ids"] for t in request.texts],
            choices=[prediction.indices.tolist() for prediction in best],
            log_probabilities=[prediction.values.tolist() for prediction in best],
            continuations=[ids[-request.generate :] for ids in continuations],
        )
