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
from ..maths.units import GIB, parse_token_count
from ..progress import OnProgress, Progress, ShowProgress, progress_reporter
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..runtime.placement import Dtype, MaxMemory, Placement
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints
from ..storage.output import run_and_save
from ..version import __version__
from .peak_memory import measure_peak_memory
from .stopwatch import RoundTimes, Work, clock_name, time_in_turns
from .vllm_benchmark import benchmark_vllm
from .vllm_server import ServerLoad

MAX_BATCH = 4096
MAX_LENGTH = 2**20
MAX_ROUNDS = 1000
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

    def compute_cache(self, ids: Tensor, cache: Any = None) -> Any:
        """The cache after `ids`; logits of the last token only, as in serving."""
        return self.live.forward_with_cache(ids, cache)[1]


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
    checkpoints = [as_checkpoint(baseline), *as_checkpoints(models)]
    dtype_name = None if dtype is None else str(placement.torch_dtype).removeprefix("torch.")
    settings = [batches, lengths, rounds, dtype_name, engine, requests, memory_gib, prefix_caching]
    settings += [str(location) for location in (device, device_map) if location is not None]
    record = {
        "format": "statetrim benchmark",
        "statetrim": __version__,
        "models": [checkpoint.digest for checkpoint in checkpoints],
        "settings": str(settings),
    }

    def run_benchmark(directory: Path | None) -> Timings:
        if engine is None:
            with progress_reporter(progress, "loading") as report:
                return _benchmark_in_process(
                    checkpoints, batches, lengths, rounds, placement, report
                )
        loads = [
            ServerLoad(
                requests=requests,
                length=parse_token_count(length),
                memory=int(memory_gib * GIB),
                prefix_caching=prefix_caching,
                cards=placement.num_gpus,
            )
            for length in lengths or (SERVED_LENGTH,)
        ]
        python = engine_python or sys.executable
        before, *after = checkpoints
        with progress_reporter(progress, "loading") as report:
            return benchmark_vllm(
                after, baseline=before, python=python, loads=loads, progress=report
            )

    return run_and_save(out, record, run_benchmark, Timings.load)


def _benchmark_in_process(
    checkpoints: Sequence[Checkpoint],
    batches: Sequence[int] | None,
    lengths: Sequence[int | str] | None,
    rounds: int,
    placement: Placement,
    progress: OnProgress,
) -> Timings:
    """In this process, every model once a round."""
    on_gpu = placement.input_device.type == "cuda"
    batches = _check_range(
        batches or (PAPER_BATCHES if on_gpu else CPU_BATCHES), MAX_BATCH, "batch"
    )
    token_counts = map(parse_token_count, lengths or (PAPER_LENGTHS if on_gpu else CPU_LENGTHS))
    lengths = _check_range([*token_counts], MAX_LENGTH, "length")
    _check_range([rounds], MAX_ROUNDS, "number of rounds")
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
            records += _size_timings(runners, batch, length) if not done else []
            records += _speed_timings(runners, batch, length, rounds)
            records += _peak_memory_timings(runners, batch, length)
    progress(Progress(len(settings), len(settings), "settings", "done"))
    names = [runner.name for runner in runners]
    return Timings(names, records, _lineage(runners, batches, lengths, rounds))


def _speed_timings(
    runners: list[_Runner], batch: int, length: int, rounds: int
) -> Iterator[Timing]:
    """Whole model and single mixer; prefill of `length` tokens, and decoding after them."""
    prompts = {runner.name: runner.live.random_ids(batch, length) for runner in runners}
    work_by_metric: dict[str, dict[str, Work]] = {
        "prefill": {r.name: _prefill_work(r, prompts[r.name]) for r in runners},
        "decode": {r.name: _decode_work(r, prompts[r.name]) for r in runners},
        "mixer prefill": {r.name: _mixer_prefill_work(r, prompts[r.name]) for r in runners},
        "mixer decode": {r.name: _mixer_decode_work(r, prompts[r.name]) for r in runners},
    }
    for metric, competitors in work_by_metric.items():
        tokens = batch * (length if "prefill" in metric else 1)
        cycle = 1 if "prefill" in metric else DECODE_CYCLE
        times = time_in_turns(
            competitors, rounds=rounds, device=runners[0].live.device, cycle=cycle
        )
        yield from _timings_of_rounds(times, metric, batch, length, tokens)


def _timings_of_rounds(
    times: RoundTimes, metric: str, batch: int, length: int, tokens: int
) -> Iterator[Timing]:
    baseline = next(iter(times.seconds))
    for name in times.seconds:
        value, quartiles = times.rate(name, tokens)
        record = Timing(name, metric, batch, length, value, "tokens/s", quartiles)
        if name != baseline:
            ratio, ratio_quartiles = times.speedup(name)
            record = replace(record, ratio=ratio, ratio_spread=ratio_quartiles)
        yield record


def _prefill_work(runner: _Runner, ids: Tensor) -> Work:
    return lambda: runner.compute_cache(ids)


def _decode_work(runner: _Runner, ids: Tensor) -> Work:
    """One token for every sequence; the cache grows by it, on both sides alike."""
    cache = runner.compute_cache(ids)
    token = ids[:, -1:]
    return lambda: runner.compute_cache(token, cache)


def _mixer_prefill_work(runner: _Runner, ids: Tensor) -> Work:
    call = _capture_mixer_call(runner, lambda: runner.compute_cache(ids))
    # A cache that the call would fill is left out: storing it is not the mixer's work.
    kwargs = {name: None if _is_cache(value) else value for name, value in call.kwargs.items()}
    module, call = runner.live.mixers[call.layer], replace(call, kwargs=kwargs)
    return lambda: call.repeat(module)


def _mixer_decode_work(runner: _Runner, ids: Tensor) -> Work:
    cache = runner.compute_cache(ids)
    call = _capture_mixer_call(runner, lambda: runner.compute_cache(ids[:, -1:], cache))
    module = runner.live.mixers[call.layer]
    return lambda: call.repeat(module)


def _is_cache(value: object) -> bool:
    return hasattr(value, "layers") and not isinstance(value, nn.Module)


def _capture_mixer_call(runner: _Runner, run: Work) -> MixerCall:
    """How the model calls the mixer of its last linear layer."""
    layer = runner.live.checkpoint.geometry.layers[-1]
    calls: list[MixerCall] = []
    with hook_mixers({layer: runner.live.mixers[layer]}, calls.append):
        run()
    return calls[-1]


def _size_timings(runners: list[_Runner], batch: int, length: int) -> Iterator[Timing]:
    """What a sequence holds, counted on the live cache object; and how much a mixer computes."""
    from torch.utils.flop_counter import FlopCounterMode

    for runner in runners:
        ids = runner.live.random_ids(batch, length)
        nbytes_by_metric = _cache_bytes(runner.compute_cache(ids))
        for metric, total in nbytes_by_metric.items():
            yield Timing(runner.name, metric, batch, length, total / batch, "bytes/sequence")
        work = _mixer_prefill_work(runner, ids)
        with FlopCounterMode(display=False) as counter:
            work()
        flops = counter.get_total_flops() / ids.numel()
        yield Timing(runner.name, "mixer prefill work", batch, length, flops, "FLOP/token")


def _cache_bytes(cache: Any) -> dict[str, int]:
    """Bytes of a cache object's tensors by what they hold, all sequences together.

    Its layers name them as transformers does, or in a dictionary as fla does.
    """
    names_by_metric = {
        "state bytes": ("recurrent_state", "recurrent_states"),
        "convolution bytes": ("conv_state", "conv_states"),
        "key-value bytes": ("keys", "values", "indexer_keys", "attn_state"),
    }
    nbytes_by_metric = dict.fromkeys(names_by_metric, 0)
    for layer in cache.layers:
        fla_state = getattr(layer, "state", None)
        attributes = {**vars(layer), **(fla_state if isinstance(fla_state, dict) else {})}
        for metric, names in names_by_metric.items():
            tensors = {id(x): x for name in names for x in tree_leaves(attributes.get(name))}
            nbytes_by_metric[metric] += sum(
                x.nbytes for x in tensors.values() if isinstance(x, Tensor)
            )
    return nbytes_by_metric


def _peak_memory_timings(runners: list[_Runner], batch: int, length: int) -> Iterator[Timing]:
    """Memory on top of the weights while a prompt is read and one token decoded."""
    for runner in runners:
        ids = runner.live.random_ids(batch, length)
        peak = measure_peak_memory(partial(_prefill_and_decode, runner, ids), runner.live.device)
        if peak is not None:
            yield Timing(runner.name, "peak memory", batch, length, peak, "bytes")


def _prefill_and_decode(runner: _Runner, ids: Tensor) -> None:
    _decode_work(runner, ids)()


def _check_range(values: Sequence[int], maximum: int, name: str) -> tuple[int, ...]:
    for value in values:
        if not 1 <= value <= maximum:
            raise StatetrimError(f"a {name} must be between 1 and {maximum}, not {value}")
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
