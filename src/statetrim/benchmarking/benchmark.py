"""Checkpoints -> Timings: mixer, prefill and decode in turns, memory, and the real cache's bytes.

On a GPU the settings default to those of the paper's table, batch 32 and 2,048 tokens.
"""

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..artifacts.timings import Timing, Timings, unique_names
from ..errors import StatetrimError
from ..maths.units import GIB, token_count
from ..progress import OnProgress, Progress, ShowProgress, showing
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..runtime.placement import Dtype, MaxMemory, Placement
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, all_opened, opened
from ..storage.output import saved
from ..version import __version__
from .peak_memory import peak_of
from .served import benchmark_served
from .stopwatch import Laps, Work, clock_name, laps
from .vllm_server import Load

MOST_BATCH = 4096
MOST_LENGTH = 2**20
MOST_ROUNDS = 1000
PAPER_BATCHES, PAPER_LENGTHS = (32,), (2048,)
CPU_BATCHES, CPU_LENGTHS = (1, 16, 64), (256,)
SERVED_LENGTH = 1024
DECODE_CYCLE = 16
"""A round decodes a multiple of so many tokens: `portable` writes its state once in as many."""


@dataclass
class _Runner:
    """A live model under the name it has in the timings."""

    name: str
    live: LiveModel

    def forward(self, ids: Tensor, cache: Any = None) -> Any:
        """The cache after `ids`; logits of the last token only, as in serving."""
        return self.live.step(ids, cache)[1]


def benchmark(
    models: ModelLike | Sequence[ModelLike],
    *,
    baseline: ModelLike,
    batches: Sequence[int] | None = None,
    lengths: Sequence[int | str] | None = None,
    rounds: int = 7,
    dtype: Dtype | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: MaxMemory | None = None,
    engine: str | None = None,
    engine_python: str | Path | None = None,
    requests: int = 64,
    memory_gib: float = 0.25,
    prefix_caching: bool = False,
    out: str | Path | None = None,
    progress: ShowProgress = True,
) -> Timings:
    """Compare the speed of `baseline` and `models` at every batch size and length, in turns.

    All models are in memory at once, so that other load on the machine affects them alike. With
    `engine` "vllm", a vLLM server from the environment of `engine_python` is started for each
    model. It gets as many concurrent `requests` of every length and `memory_gib` of cache, and the
    sequences it holds are counted. `dtype`, `device`, `device_map` and `max_memory` are those of
    `load`.
    """
    if engine not in (None, "vllm"):
        raise StatetrimError(f"--engine is 'vllm', or left out for this process, not {engine!r}")
    placement = Placement(device, device_map, max_memory, dtype)
    if not 0 < memory_gib <= 2**20:
        raise StatetrimError(f"--memory-gib must be a positive number of GiB, not {memory_gib:g}")
    checkpoints = [opened(baseline), *all_opened(models)]
    said = None if dtype is None else str(placement.torch_dtype).removeprefix("torch.")
    settings = [batches, lengths, rounds, said, engine, requests, memory_gib, prefix_caching]
    settings += [str(where) for where in (device, device_map) if where is not None]
    record = {
        "format": "statetrim benchmark",
        "statetrim": __version__,
        "models": [checkpoint.digest for checkpoint in checkpoints],
        "settings": str(settings),
    }

    def timed(directory: Path | None) -> Timings:
        if engine is None:
            with showing(progress, "loading") as report:
                return _in_turns(checkpoints, batches, lengths, rounds, placement, report)
        loads = [
            Load(
                requests=requests,
                length=token_count(length),
                memory=int(memory_gib * GIB),
                prefix_caching=prefix_caching,
                cards=placement.cards,
            )
            for length in lengths or (SERVED_LENGTH,)
        ]
        python = engine_python or sys.executable
        before, *after = checkpoints
        with showing(progress, "loading") as report:
            return benchmark_served(
                after, baseline=before, python=python, loads=loads, progress=report
            )

    return saved(out, record, timed, Timings.load)


def _in_turns(
    checkpoints: Sequence[Checkpoint],
    batches: Sequence[int] | None,
    lengths: Sequence[int | str] | None,
    rounds: int,
    placement: Placement,
    progress: OnProgress,
) -> Timings:
    """In this process, every model once a round."""
    on_gpu = placement.home.type == "cuda"
    batches = _checked(batches or (PAPER_BATCHES if on_gpu else CPU_BATCHES), MOST_BATCH, "batch")
    asked = map(token_count, lengths or (PAPER_LENGTHS if on_gpu else CPU_LENGTHS))
    lengths = _checked([*asked], MOST_LENGTH, "length")
    _checked([rounds], MOST_ROUNDS, "number of rounds")
    runners = [
        _Runner(checkpoint.name, load_live(checkpoint, placement)) for checkpoint in checkpoints
    ]
    for runner, name in zip(runners, unique_names([r.name for r in runners]), strict=True):
        runner.name = name
    settings = [(batch, length) for length in lengths for batch in batches]
    records: list[Timing] = []
    with torch.inference_mode():
        for done, (batch, length) in enumerate(settings):
            label = f"batch {batch}, {length} tokens"
            progress(Progress(done, len(settings), "settings", label))
            records += _sizes(runners, batch, length) if not done else []
            records += _times(runners, batch, length, rounds)
            records += _peaks(runners, batch, length)
    progress(Progress(len(settings), len(settings), "settings", "done"))
    names = [runner.name for runner in runners]
    return Timings(names, records, _lineage(runners, batches, lengths, rounds))


def _times(runners: list[_Runner], batch: int, length: int, rounds: int) -> Iterator[Timing]:
    """Whole model and single mixer; prefill of `length` tokens, and decoding after them."""
    prompts = {runner.name: runner.live.random_ids(batch, length) for runner in runners}
    works: dict[str, dict[str, Work]] = {
        "prefill": {r.name: _prefill(r, prompts[r.name]) for r in runners},
        "decode": {r.name: _decode(r, prompts[r.name]) for r in runners},
        "mixer prefill": {r.name: _mixer_prefill(r, prompts[r.name]) for r in runners},
        "mixer decode": {r.name: _mixer_decode(r, prompts[r.name]) for r in runners},
    }
    for metric, competitors in works.items():
        tokens = batch * (length if "prefill" in metric else 1)
        cycle = 1 if "prefill" in metric else DECODE_CYCLE
        found = laps(competitors, rounds=rounds, device=runners[0].live.device, cycle=cycle)
        yield from _records(found, metric, batch, length, tokens)


def _records(found: Laps, metric: str, batch: int, length: int, tokens: int) -> Iterator[Timing]:
    first = next(iter(found.seconds))
    for name in found.seconds:
        value, spread = found.rate(name, tokens)
        record = Timing(name, metric, batch, length, value, "tokens/s", spread)
        if name != first:
            ratio, ratio_spread = found.speedup(name)
            record = replace(record, ratio=ratio, ratio_spread=ratio_spread)
        yield record


def _prefill(runner: _Runner, ids: Tensor) -> Work:
    return lambda: runner.forward(ids)


def _decode(runner: _Runner, ids: Tensor) -> Work:
    """One token for every sequence; the cache grows by it, on both sides alike."""
    cache = runner.forward(ids)
    token = ids[:, -1:]
    return lambda: runner.forward(token, cache)


def _mixer_prefill(runner: _Runner, ids: Tensor) -> Work:
    call = _mixer_call(runner, lambda: runner.forward(ids))
    # A cache that the call would fill is left out: storing it is not the mixer's work.
    free = {name: None if _is_cache(value) else value for name, value in call.kwargs.items()}
    module, call = runner.live.mixers[call.layer], replace(call, kwargs=free)
    return lambda: call.repeat(module)


def _mixer_decode(runner: _Runner, ids: Tensor) -> Work:
    cache = runner.forward(ids)
    call = _mixer_call(runner, lambda: runner.forward(ids[:, -1:], cache))
    module = runner.live.mixers[call.layer]
    return lambda: call.repeat(module)


def _is_cache(value: object) -> bool:
    return hasattr(value, "layers") and not isinstance(value, nn.Module)


def _mixer_call(runner: _Runner, run: Work) -> MixerCall:
    """How the model calls the mixer of its last linear layer."""
    layer = runner.live.checkpoint.geometry.layers[-1]
    calls: list[MixerCall] = []
    with hook_mixers({layer: runner.live.mixers[layer]}, calls.append):
        run()
    return calls[-1]


def _sizes(runners: list[_Runner], batch: int, length: int) -> Iterator[Timing]:
    """What a sequence holds, counted on the live cache object; and how much a mixer computes."""
    from torch.utils.flop_counter import FlopCounterMode

    for runner in runners:
        ids = runner.live.random_ids(batch, length)
        held = _cache_bytes(runner.forward(ids))
        for metric, total in held.items():
            yield Timing(runner.name, metric, batch, length, total / batch, "bytes/sequence")
        work = _mixer_prefill(runner, ids)
        with FlopCounterMode(display=False) as counter:
            work()
        flops = counter.get_total_flops() / ids.numel()
        yield Timing(runner.name, "mixer prefill work", batch, length, flops, "FLOP/token")


def _cache_bytes(cache: Any) -> dict[str, int]:
    """Bytes of a cache object's tensors by what they hold, all sequences together.

    Its layers name them as transformers does, or in a dictionary as fla does.
    """
    kinds = {
        "state bytes": ("recurrent_state", "recurrent_states"),
        "convolution bytes": ("conv_state", "conv_states"),
        "key-value bytes": ("keys", "values", "indexer_keys", "attn_state"),
    }
    found = dict.fromkeys(kinds, 0)
    for layer in cache.layers:
        named = getattr(layer, "state", None)
        held = {**vars(layer), **(named if isinstance(named, dict) else {})}
        for metric, names in kinds.items():
            tensors = {id(x): x for name in names for x in tree_leaves(held.get(name))}
            found[metric] += sum(x.nbytes for x in tensors.values() if isinstance(x, Tensor))
    return found


def _peaks(runners: list[_Runner], batch: int, length: int) -> Iterator[Timing]:
    """Memory on top of the weights while a prompt is read and one token decoded."""
    for runner in runners:
        ids = runner.live.random_ids(batch, length)
        peak = peak_of(partial(_read_and_decode, runner, ids), runner.live.device)
        if peak is not None:
            yield Timing(runner.name, "peak memory", batch, length, peak, "bytes")


def _read_and_decode(runner: _Runner, ids: Tensor) -> None:
    _decode(runner, ids)()


def _checked(values: Sequence[int], most: int, what: str) -> tuple[int, ...]:
    for value in values:
        if not 1 <= value <= most:
            raise StatetrimError(f"a {what} must be between 1 and {most}, not {value}")
    return tuple(values)


def _lineage(
    runners: list[_Runner], batches: Sequence[int], lengths: Sequence[int], rounds: int
) -> dict[str, Any]:
    device = runners[0].live.device
    return {
        "statetrim": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        "batches": list(batches),
        "lengths": list(lengths),
        "rounds": rounds,
        "clock": clock_name(device),
        "models": {
            runner.name: {
                "model_type": runner.live.checkpoint.config["model_type"],
                "head_k_dim": runner.live.checkpoint.geometry.head_k_dim,
                "head_v_dim": runner.live.checkpoint.geometry.head_v_dim,
                "dtype": str(next(runner.live.module.parameters()).dtype).removeprefix("torch."),
                "runtime": runner.live.runtime.name,
            }
            for runner in runners
        },
    }
