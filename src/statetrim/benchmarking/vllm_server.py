"""A vLLM server of our own on loopback, under a load with an end, read by its own counters."""

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ..errors import StatetrimError
from ..runtime.children import Process, child, last_error

MOST_REQUESTS = 4096
_HOST = "127.0.0.1"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # past any http_proxy
_SAMPLE_SECONDS = 0.1
_METRIC = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN)$", flags=re.MULTILINE)
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')


@dataclass(frozen=True)
class Load:
    """What the server is asked: `requests` at once, each of `length` tokens in all."""

    requests: int = 64
    length: int = 1024
    generated: int = 64  # of the length
    memory: int = 2**28  # bytes of cache
    seconds: float = 900.0  # for the start and for the load, each
    prefix_caching: bool = False
    cards: int = 1  # GPUs that the model is spread over

    def check(self) -> None:
        if not 1 <= self.requests <= MOST_REQUESTS:
            raise StatetrimError(
                f"requests must be between 1 and {MOST_REQUESTS}, not {self.requests}"
            )
        if not 1 <= self.generated < self.length:
            raise StatetrimError(
                f"of {self.length} tokens some are generated and some are not: {self.generated}"
            )


@dataclass
class Served:
    """What the server's counters said."""

    most_running: int = 0
    most_waiting: int = 0
    most_cache_use: float = 0.0
    blocks: int = 0
    preemptions: int = 0
    generated: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)  # lines about the cache


def serve_under_load(python: Path, model: Path, load: Load) -> Served:
    """Start a server for `model`, send the load, read /metrics meanwhile, stop the server."""
    load.check()
    with server(python, model, load) as (port, log):
        served = Served()
        stop = threading.Event()
        watcher = threading.Thread(target=_watch, args=(port, served, stop), daemon=True)
        watcher.start()
        began = time.monotonic()
        try:
            with ThreadPoolExecutor(load.requests) as pool:
                deadline = began + load.seconds
                tasks = [
                    pool.submit(_complete, port, seed, load, deadline)
                    for seed in range(load.requests)
                ]
                for task in tasks:
                    task.result()
        finally:
            stop.set()
            watcher.join()
        served.seconds = time.monotonic() - began
        counters = _metrics(port)
        served.preemptions = int(counters.get("vllm:num_preemptions_total", 0))
        served.generated = int(counters.get("vllm:generation_tokens_total", 0))
        served.log = _about_the_cache(log)
    return served


@contextmanager
def server(python: Path, model: Path, load: Load) -> Iterator[tuple[int, Path]]:
    """Within, vLLM answers on 127.0.0.1 at the yielded port; its log is in the yielded file."""
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
    with child(python, arguments, {"VLLM_NO_USAGE_STATS": "1"}) as (process, log):
        _wait_until_ready(process, port, log, load.seconds)
        yield port, log


def _wait_until_ready(process: Process, port: int, log: Path, most: float) -> None:
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StatetrimError(f"vLLM did not start: {last_error(log)}")
        try:
            with _DIRECT.open(f"http://{_HOST}:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise StatetrimError(f"vLLM was not ready after {most:.0f} seconds")


def _complete(port: int, seed: int, load: Load, deadline: float) -> None:
    """One request: a prompt of random tokens, so that no two share a prefix."""
    draw = Random(seed)
    prompt = [draw.randrange(1, 256) for _ in range(load.length - load.generated)]
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
    left = max(1.0, deadline - time.monotonic())
    try:
        with _DIRECT.open(request, timeout=left) as answer:
            usage = json.load(answer)["usage"]
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        raise StatetrimError(f"vLLM did not answer a request: {error}") from None
    if usage["completion_tokens"] != load.generated:
        raise StatetrimError(f"vLLM generated {usage['completion_tokens']} tokens of a request")


def _watch(port: int, served: Served, stop: threading.Event) -> None:
    while not stop.wait(_SAMPLE_SECONDS):
        try:
            now = _metrics(port)
        except (urllib.error.URLError, OSError):
            continue
        served.most_running = max(served.most_running, int(now.get("vllm:num_requests_running", 0)))
        served.most_waiting = max(served.most_waiting, int(now.get("vllm:num_requests_waiting", 0)))
        use = now.get("vllm:kv_cache_usage_perc", 0.0)
        served.most_cache_use = max(served.most_cache_use, use)
        served.blocks = int(now.get("blocks", served.blocks))


def _metrics(port: int) -> dict[str, float]:
    """vLLM's own counters and gauges; those with several labels are added up."""
    with _DIRECT.open(f"http://{_HOST}:{port}/metrics", timeout=10) as answer:
        text = answer.read(2**24).decode()
    found: dict[str, float] = {}
    for name, _, value in _METRIC.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    blocks = _BLOCKS.search(text)
    return found | ({"blocks": float(blocks.group(1))} if blocks else {})


def _about_the_cache(log: Path) -> list[str]:
    words = ("attention block size", "mamba page size", "KV cache size")
    lines = log.read_text(errors="replace").splitlines()
    return [line[line.index("]") + 2 :] for line in lines if any(w in line for w in words)]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_HOST, 0))
        address: Any = found.getsockname()
        return int(address[1])
