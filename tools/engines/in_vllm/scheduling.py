"""vLLM's scheduler and cache manager without a model: what they plan counts as computed."""

from __future__ import annotations

import itertools
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

ANSWER = 7  # the token that every step samples


class Served:
    """Requests one after the other, with an empty cache at first."""

    def __init__(self, vllm_config: Any, cache_config: Any) -> None:
        vllm_config.cache_config.num_gpu_blocks = cache_config.num_blocks
        block, hashed = kv_cache_utils.resolve_kv_cache_block_sizes(cache_config, vllm_config)
        kv_cache_utils.init_none_hash(sha256)
        self.hasher: Any = kv_cache_utils.get_request_block_hasher(
            hashed, sha256, vllm_config.num_hash_lookahead_tokens
        )
        self.scheduler = Scheduler(
            vllm_config,
            cache_config,
            StructuredOutputManager(vllm_config),
            block_size=block,
            hash_block_size=hashed,
        )
        self.names = map(str, itertools.count())

    def hash_half_of_a_block(self) -> None:
        """A planted fault: blocks that differ in their second half alone are taken for the same."""
        whole = kv_cache_utils.hash_block_tokens
        kv_cache_utils.hash_block_tokens = lambda hashed, before, tokens, *rest: whole(
            hashed, before, tokens[: len(tokens) // 2], *rest
        )

    def answer(self, prompt: list[int], new_tokens: int = 1) -> int:
        """Tokens of the prompt that were cached. Draft tokens are all refused."""
        sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        request = Request(next(self.names), prompt, sampling, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)
        cached = -1
        while self.scheduler.has_unfinished_requests():
            planned = self.scheduler.schedule()
            for new in planned.scheduled_new_reqs:
                cached = new.num_computed_tokens
            if not planned.num_scheduled_tokens:
                raise RuntimeError("a request does not fit into the cache")
            has_end = request.num_computed_tokens >= request.num_tokens
            output = ModelRunnerOutput(
                req_ids=[request.request_id],
                req_id_to_index={request.request_id: 0},
                sampled_token_ids=[[ANSWER]] if has_end else [[]],
            )
            self.scheduler.update_from_output(planned, output)
        return cached


def shortest_cached_prefix(vllm_config: Any, cache_config: Any, most: int) -> int:
    """The fewest shared tokens of which a third prompt finds any again; 0 if no prompt of `most`
    tokens does. Each prompt has as many tokens of its own after them."""

    def hits(shared: int) -> bool:
        served = Served(vllm_config, cache_config)
        cached = 0
        for own in (1, 2, 3):
            cached = served.answer([0] * shared + [own] * shared)
        return cached > 0

    low, high = 0, most  # without hits, with hits
    if not hits(most):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hits(middle) else (middle, high)
    return high
