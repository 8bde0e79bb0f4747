"""Checkpoints -> Timings: how many sequences a vLLM server holds, by its own metrics.

The server runs on the loopback address.
"""

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from ..artifacts.timings import Timing, Timings, unique_names
from ..errors import StatetrimError
from ..progress import OnProgress, Progress
from ..runtime.child_process import Process, last_error, python_process
from ..storage.checkpoint import Checkpoint, require_prunable
from ..version import __version__

MAX_REQUESTS = 4096
_HOST = "127.0.0.1"
_OPENER_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SAMPLE_SECONDS = 0.1
_METRIC = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN)$", flags=re.MULTILINE)
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')
_CACHE_SIZES = re.compile("attention block size|mamba page size|KV cache size")


@dataclass(frozen=True)
class ServerLoad:
    """Concurrent requests, each of `length` tokens, prompt and generated tokens together."""

    requests: int = 64
    length: int = 1024
    generated: int = 64  # tokens of the length
    memory: int = 2**28  # bytes of cache
    seconds: float = 900.0  # time limit for the start, and again for the requests
    prefix_caching: bool = False
    cards: int = 1  # GPUs that the model is spread over

    def check(self) -> None:
        """Refuse numbers of requests or tokens that cannot be served."""
        if not 1 <= self.requests <= MAX_REQUESTS:
            raise StatetrimError(
                f"requests must be between 1 and {MAX_REQUESTS}, not {self.requests}"
            )
        if not 1 <= self.generated < self.length:
            raise StatetrimError(
                f"a request of {self.length} tokens cannot generate {self.generated} of them: at "
                "least one token is generated, and at least one is the prompt"
            )


Metrics = dict[str, tuple[float, str]]
"""Name -> value and unit."""


def serve_under_load(python: Path, model: Path, load: ServerLoad) -> tuple[Metrics, list[str]]:
    """Start a server for `model`, send the load, sample /metrics meanwhile, and stop the server.

    Returns its metrics (tokens/s are generated tokens over the time of the whole load), and the
    lines of its log about its cache. Raises StatetrimError if the load is invalid, the server does
    not start, or a request fails.
    """
    load.check()
    with server(python, model, load) as (port, log):
        peaks: dict[str, float] = {}
        stop = threading.Event()
        sampler = threading.Thread(target=_sample_metrics, args=(port, peaks, stop), daemon=True)
        sampler.start()
        start = time.monotonic()
        try:
            with ThreadPoolExecutor(load.requests) as pool:
                deadline = start + load.seconds
                futures = [
                    pool.submit(_send_request, port, seed, load, deadline)
                    for seed in range(load.requests)
                ]
                for future in futures:
                    future.result()
        finally:
            stop.set()
            sampler.join()
        seconds = time.monotonic() - start
        totals = _read_metrics(port)
        metrics: Metrics = {
            "concurrent sequences": (peaks.get("vllm:num_requests_running", 0), "sequences"),
            "cache blocks": (peaks.get("blocks", 0), "blocks"),
            "cache use": (peaks.get("vllm:kv_cache_usage_perc", 0.0), "share"),
            "preemptions": (totals.get("vllm:num_preemptions_total", 0), "requests"),
            "served decode": (totals.get("vllm:generation_tokens_total", 0) / seconds, "tokens/s"),
        }
        return metrics, _cache_log_lines(log)


@contextmanager
def server(python: Path, model: Path, load: ServerLoad) -> Iterator[tuple[int, Path]]:
    """Within, a vLLM server runs on 127.0.0.1; yields its port and log file once it is ready.

    Raises StatetrimError if it is not ready in `load.seconds`. It is terminated on exit.
    """
    port = _free_port()
    arguments = [
        "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model.resolve()), "--served-model-name", "model",
        "--host", _HOST, "--port", str(port), "--dtype", "bfloat16", "--enforce-eager",
        "--max-model-len", str(load.length), "--max-num-seqs", str(load.requests),
        "--kv-cache-memory-bytes", str(load.memory), "--load-format", "safetensors",
        "--enable-prefix-caching" if load.prefix_caching else "--no-enable-prefix-caching",
        "--tensor-parallel-size", str(load.cards),
    ]  # fmt: skip
    with python_process(python, arguments, {"VLLM_NO_USAGE_STATS": "1"}) as (process, log):
        _wait_until_ready(process, port, log, load.seconds)
        yield port, log


def _wait_until_ready(process: Process, port: int, log: Path, timeout: float) -> None:
    """Poll /health until it answers; refuses a process that ends, or takes too long."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StatetrimError(f"vLLM did not start: {last_error(log)}")
        try:
            with _OPENER_WITHOUT_PROXY.open(f"http://{_HOST}:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise StatetrimError(f"vLLM was not ready after {timeout:.0f} seconds")


def _send_request(port: int, seed: int, load: ServerLoad, deadline: float) -> None:
    """Send one request and wait for its answer; the prompt is random tokens drawn by `seed`, so
    that no two share a prefix.

    `deadline` is a time of `time.monotonic`. Raises StatetrimError without an answer by then, for
    an invalid one, and for another number of tokens than requested.
    """
    rng = Random(seed)
    prompt = [rng.randrange(1, 256) for _ in range(load.length - load.generated)]
    body = {
        "model": "model",
        "prompt": prompt,
        "max_tokens": load.generated,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://{_HOST}:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    timeout = max(1.0, deadline - time.monotonic())
    try:
        with _OPENER_WITHOUT_PROXY.open(request, timeout=timeout) as response:
            usage = json.load(response)["usage"]
    except (OSError, ValueError, KeyError) as error:
        raise StatetrimError(f"vLLM did not answer a request: {error}") from None
    if usage["completion_tokens"] != load.generated:
        raise StatetrimError(f"vLLM generated {usage['completion_tokens']} tokens of a request")


def _sample_metrics(port: int, peaks: dict[str, float], stop: threading.Event) -> None:
    """Update the largest values in `peaks` every 0.1 s until `stop` is set; failed reads are
    skipped."""
    while not stop.wait(_SAMPLE_SECONDS):
        with suppress(OSError):
            for name, value in _read_metrics(port).items():
                peaks[name] = max(peaks.get(name, 0.0), value)


def _read_metrics(port: int) -> dict[str, float]:
    """Metric -> vLLM's counter or gauge, summed over labels, and "blocks", the number of cache
    blocks, if reported. Raises OSError if the server does not answer."""
    with _OPENER_WITHOUT_PROXY.open(f"http://{_HOST}:{port}/metrics", timeout=10) as response:
        text = response.read(2**24).decode()
    totals: dict[str, float] = {}
    for name, _, value in _METRIC.findall(text):
        totals[name] = totals.get(name, 0.0) + float(value)
    if blocks := _BLOCKS.search(text):
        totals["blocks"] = float(blocks.group(1))
    return totals


def _cache_log_lines(log: Path) -> list[str]:
    """Lines of a server's log that state sizes of its cache, without their prefix in brackets."""
    lines = []
    for line in log.read_text(errors="replace").splitlines():
        if _CACHE_SIZES.search(line):
            prefix, bracket, text = line.partition("] ")
            lines.append(text if bracket else prefix)
    return lines


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        address: Any = listener.getsockname()
        return int(address[1])


def benchmark_vllm(
    checkpoints: Sequence[Checkpoint],
    python: Path,
    loads: Sequence[ServerLoad],
    progress: OnProgress,
) -> Timings:
    """Start a vLLM server for each load and model, one at a time, and return its metrics; the first
    model is the baseline.

    `python` is the executable of the environment in which vLLM is installed. Raises StatetrimError
    if a model cannot be pruned, or if a server does not start or does not answer.
    """
    for checkpoint in checkpoints:
        require_prunable(checkpoint)
    names = unique_names([checkpoint.name for checkpoint in checkpoints])
    records: list[Timing] = []
    logs: dict[str, list[str]] = {}
    for load in loads:
        baseline_metrics: Metrics = {}
        for name, checkpoint in zip(names, checkpoints, strict=True):
            label = f"{name}, {load.length} tokens"
            progress(Progress(len(logs), len(loads) * len(checkpoints), "settings", label))
            metrics, logs[label] = serve_under_load(python, checkpoint.path, load)
            for metric, (value, unit) in metrics.items():
                before, _ = baseline_metrics.get(metric, (0.0, unit))
                ratio = value / before if before else None
                record = Timing(name, metric, load.requests, load.length, value, unit, ratio=ratio)
                records.append(record)
            baseline_metrics = baseline_metrics or metrics
    lineage = {
        "statetrim": __version__,
        "engine": "vllm",
        "loads": [asdict(load) for load in loads],
        "log": logs,
        "models": dict(zip(names, map(model_lineage, checkpoints), strict=True)),
    }
    return Timings(names, records, lineage)


def model_lineage(model: Checkpoint) -> dict[str, Any]:
    """What timings state of a model."""
    return {
        "model_type": model.config["model_type"],
        "head_k_dim": model.geometry.head_k_dim,
        "head_v_dim": model.geometry.head_v_dim,
    }
