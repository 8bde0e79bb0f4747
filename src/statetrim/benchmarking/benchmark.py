"""Checkpoints -> Timings: speed of prefill, decode and one mixer, peak memory, bytes of the cache.

The defaults on a GPU are those of the paper's table: batch size 32 and 2,048 tokens. The models
take turns, so that noise affects all alike.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..artifacts.timings import Timing, Timings, unique_names
from ..maths.units import parse_token_count
from ..options import as_record, takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from ..runtime.loading import load_live
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints
from ..storage.output import run_and_save
from ..version import __version__
from .options import BenchmarkOptions

PAPER_BATCHES, PAPER_LENGTHS = (32,), (2048,)
CPU_BATCHES, CPU_LENGTHS = (1, 16, 64), (256,)
DECODE_CYCLE = 16
"""A round decodes a multiple of this many tokens: the portable kernel writes its state back once in
as many, so every round has the same number of writes."""
CACHE_ATTRIBUTES = {
    "state bytes": ("recurrent_state", "recurrent_states"),
    "convolution bytes": ("conv_state", "conv_states"),
    "key-value bytes": ("keys", "values", "indexer_keys", "attn_state"),
}
"""Metric -> names that transformers and fla give to such tensors in a layer of a cache."""

CPU_TIME = "CPU time of one thread"

Models = dict[str, LiveModel]
"""Loaded models by their names in the timings; the first is the baseline."""
Work = Callable[[], object]


@takes_options(BenchmarkOptions)
def benchmark(models: ModelLike | Sequence[ModelLike], options: BenchmarkOptions) -> Timings:
    """Compare the speed of `baseline` and `models` at every batch size and length.

    All models are in memory and take turns, so that other load on the machine affects all.
    `dtype`, `device`, `device_map` and `max_memory` are those of `load`. With `out` the timings are
    also written there; it must not exist.
    """
    checkpoints = [as_checkpoint(options.baseline), *as_checkpoints(models)]
    record = {
        "format": "statetrim benchmark",
        "statetrim": __version__,
        "models": [checkpoint.digest for checkpoint in checkpoints],
        "options": as_record(options),
    }

    def run_benchmark(directory: Path | None) -> Timings:
        with progress_reporter(options.progress, "loading") as report:
            return _time_models(checkpoints, options, report)

    return run_and_save(options.out, record, run_benchmark, Timings.load)


def _time_models(
    checkpoints: Sequence[Checkpoint], options: BenchmarkOptions, progress: OnProgress
) -> Timings:
    """Load all models and time them at every length and batch size, sizes at the first only."""
    on_gpu, rounds = options.input_device.type == "cuda", options.rounds
    batches = options.batches or (PAPER_BATCHES if on_gpu else CPU_BATCHES)
    lengths = options.lengths or (PAPER_LENGTHS if on_gpu else CPU_LENGTHS)
    token_counts = [parse_token_count(length) for length in lengths]
    names = unique_names([checkpoint.name for checkpoint in checkpoints])
    models: Models = {}
    for name, checkpoint in zip(names, checkpoints, strict=True):
        models[name] = load_live(checkpoint, options.placement)
    settings = list(product(token_counts, batches))
    records: list[Timing] = []
    with torch.inference_mode():
        for done, (length, batch) in enumerate(settings):
            label = f"batch {batch}, {length} tokens"
            progress(Progress(done, len(settings), "settings", label))
            if done == 0:
                records += _size_timings(models, batch, length)
            records += _speed_timings(models, batch, length, rounds)
            if on_gpu:
                records += _peak_memory_timings(models, batch, length)
    progress(Progress(len(settings), len(settings), "settings", "done"))
    return Timings(names, records, _lineage(models, batches, token_counts, rounds))


def _speed_timings(models: Models, batch: int, length: int, rounds: int) -> Iterator[Timing]:
    """Tokens per second of each model and of its last mixer, in prefill and in decode."""
    work_by_metric: dict[str, dict[str, Work]] = {
        "prefill": {}, "decode": {}, "mixer prefill": {}, "mixer decode": {},
    }  # fmt: skip
    for name, live in models.items():
        ids = live.random_ids(batch, length)
        work_by_metric["prefill"][name] = partial(_compute_cache, live, ids)
        work_by_metric["decode"][name] = _decode_work(live, ids)
        work_by_metric["mixer prefill"][name] = _last_mixer_prefill_work(live, ids)
        work_by_metric["mixer decode"][name] = _mixer_decode_work(live, ids)
    baseline = next(iter(models))
    for metric, competitors in work_by_metric.items():
        tokens = batch * (length if "prefill" in metric else 1)
        cycle = 1 if "prefill" in metric else DECODE_CYCLE
        device = models[baseline].device
        seconds = time_in_turns(competitors, rounds=rounds, device=device, cycle=cycle)
        for name in models:
            value, quartiles = median_and_quartiles([tokens / each for each in seconds[name]])
            record = Timing(name, metric, batch, length, value, "tokens/s", quartiles)
            if name != baseline:
                turns = zip(seconds[baseline], seconds[name], strict=True)
                ratio, ratio_quartiles = median_and_quartiles([old / new for old, new in turns])
                record = replace(record, ratio=ratio, ratio_spread=ratio_quartiles)
            yield record


def _compute_cache(live: LiveModel, ids: Tensor, cache: Any = None) -> Any:
    """The cache after `ids`; of the logits only those of the last token, as in serving."""
    return live.forward_with_cache(ids, cache)[1]


def _decode_work(live: LiveModel, ids: Tensor) -> Work:
    """A call that decodes one token per sequence after `ids`; the cache grows in all alike."""
    return partial(_compute_cache, live, ids[:, -1:], _compute_cache(live, ids))


def _last_mixer_prefill_work(live: LiveModel, ids: Tensor) -> Work:
    """The last mixer alone, without a cache, on its input in a prefill of `ids`."""
    call = _capture_mixer_call(live, partial(_compute_cache, live, ids))
    kwargs = dict(call.kwargs)
    for name, value in call.kwargs.items():
        if hasattr(value, "layers") and not isinstance(value, nn.Module):
            kwargs[name] = None  # the cache, which the call would fill, is not the mixer's work
    return partial(replace(call, kwargs=kwargs).repeat, live.mixers[call.layer])


def _mixer_decode_work(live: LiveModel, ids: Tensor) -> Work:
    """The last mixer alone, on its input for a token decoded after `ids`; the cache grows."""
    call = _capture_mixer_call(live, _decode_work(live, ids))
    return partial(call.repeat, live.mixers[call.layer])


def _capture_mixer_call(live: LiveModel, run: Work) -> MixerCall:
    """Call `run` and return the last call of the last linear layer's mixer during it."""
    layer = live.checkpoint.geometry.layers[-1]
    calls: list[MixerCall] = []
    with hook_mixers({layer: live.mixers[layer]}, calls.append):
        run()
    return calls[-1]


def _size_timings(models: Models, batch: int, length: int) -> Iterator[Timing]:
    """Bytes of cache per sequence after a prefill, and FLOP per token of the last mixer."""
    from torch.utils.flop_counter import FlopCounterMode

    for name, live in models.items():
        ids = live.random_ids(batch, length)
        for metric, nbytes in _cache_bytes(_compute_cache(live, ids)).items():
            yield Timing(name, metric, batch, length, nbytes / batch, "bytes/sequence")
        work = _last_mixer_prefill_work(live, ids)
        with FlopCounterMode(display=False) as counter:
            work()
        flops = counter.get_total_flops() / ids.numel()
        yield Timing(name, "mixer prefill work", batch, length, flops, "FLOP/token")


def _cache_bytes(cache: Any) -> dict[str, int]:
    """Bytes by metric of the tensors in a cache; one that occurs twice counts once."""
    nbytes_by_id: dict[str, dict[int, int]] = {metric: {} for metric in CACHE_ATTRIBUTES}
    for layer in cache.layers:
        fla_state = getattr(layer, "state", None)
        attributes = vars(layer) | (fla_state if isinstance(fla_state, dict) else {})
        for metric, names in CACHE_ATTRIBUTES.items():
            for leaf in tree_leaves([attributes.get(name) for name in names]):
                if isinstance(leaf, Tensor):
                    nbytes_by_id[metric][id(leaf)] = leaf.nbytes
    return {metric: sum(nbytes.values()) for metric, nbytes in nbytes_by_id.items()}


def _peak_memory_timings(models: Models, batch: int, length: int) -> Iterator[Timing]:
    """The peak of allocated GPU memory that a prefill and a decoded token add."""
    for name, live in models.items():
        ids = live.random_ids(batch, length)
        torch.cuda.synchronize(live.device)
        before = torch.cuda.memory_allocated(live.device)
        torch.cuda.reset_peak_memory_stats(live.device)
        _decode_work(live, ids)()
        torch.cuda.synchronize(live.device)
        peak = torch.cuda.max_memory_allocated(live.device) - before
        yield Timing(name, "peak memory", batch, length, peak, "bytes")


def _lineage(
    models: Models, batches: Sequence[int], lengths: Sequence[int], rounds: int
) -> dict[str, Any]:
    device = next(iter(models.values())).device
    device_name = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    described = {}
    for name, live in models.items():
        dtype = str(next(live.module.parameters()).dtype).removeprefix("torch.")
        geometry = live.checkpoint.geometry
        described[name] = {
            "model_type": live.checkpoint.model_type,
            "head_k_dim": geometry.head_k_dim,
            "head_v_dim": geometry.head_v_dim,
            "dtype": dtype,
            "runtime": live.runtime.name,
        }
    return {
        "statetrim": __version__,
        "torch": torch.__version__,
        "device": device_name,
        "batches": list(batches),
        "lengths": list(lengths),
        "rounds": rounds,
        "clock": clock_name(device),
        "models": described,
    }


def time_in_turns(
    competitors: Mapping[str, Work],
    *,
    rounds: int,
    device: torch.device,
    min_seconds: float = 0.02,
    cycle: int = 1,
    warm_up: int = 2,
) -> dict[str, list[float]]:
    """Seconds per call of every competitor in each round, in alternating order. Each is called for
    about `min_seconds` a round, at most about 1,000 times, and a multiple of `cycle`, for work
    whose calls differ periodically."""
    repeats = {}
    for name, work in competitors.items():
        for _ in range(warm_up):
            work()
        seconds_per_call = max(_seconds_per_call(work, 1, device), 1e-7)
        repeats[name] = cycle * max(1, round(min(1000, min_seconds / seconds_per_call) / cycle))
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for round_number in range(rounds):
        order = list(competitors)[:: 1 if round_number % 2 == 0 else -1]
        for name in order:
            seconds[name].append(_seconds_per_call(competitors[name], repeats[name], device))
    return seconds


def _seconds_per_call(work: Work, repeats: int, device: torch.device) -> float:
    """Mean seconds of `repeats` calls, by the clock that `clock_name` names."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event
        start_event, end_event = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        start_event.record()
        for _ in range(repeats):
            work()
        end_event.record()
        torch.cuda.synchronize(device)
        return float(start_event.elapsed_time(end_event)) / 1e3 / repeats
    clock = time.process_time if clock_name(device) == CPU_TIME else time.perf_counter
    start = clock()
    for _ in range(repeats):
        work()
    return (clock() - start) / repeats


def clock_name(device: torch.device) -> str:
    """CPU time with a single thread, which other programs on a busy machine do not affect."""
    if device.type == "cuda":
        return "CUDA events"
    return CPU_TIME if torch.get_num_threads() == 1 else "wall time"


def median_and_quartiles(values: list[float]) -> tuple[float, tuple[float, float]]:
    if len(values) == 1:
        return values[0], (values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return median, (low, high)
