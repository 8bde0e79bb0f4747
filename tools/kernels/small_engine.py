"""An engine for tests: vLLM's scheduler, cache and linear-attention layers with our plugin, around
the softmax layers, experts and embeddings of transformers.

vLLM decides which tokens of which requests to compute, allocates blocks, finds cached prefixes,
preempts, copies states between blocks and computes the linear layers, with its own code and its
Triton kernels in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import statetrim_vllm
import torch
import vllm_on_cpu
from torch import Tensor
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core import kv_cache_planning, kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.utils import allocate_kv_cache, bind_kv_cache_to_layers

import statetrim as st

CPU = vllm_on_cpu.CPU
CONTEXT = 512  # tokens
STATE = (torch.bfloat16, torch.float32)  # convolution and recurrence


class _ModelConfig(SimpleNamespace):
    """vLLM's ModelConfig, as far as it is set: it is not a model that uses anything else."""

    def __getattr__(self, name: str) -> None:
        return None


@dataclass
class Running:
    """A request as the worker knows it."""

    ids: list[int]
    block_ids: tuple[list[int], ...]  # by cache group
    num_computed_tokens: int
    prompt: int  # tokens
    logits: dict[int, Tensor] = field(default_factory=dict)  # by position


class Softmax(AttentionLayerBase):
    """The cache of a softmax layer of transformers, in vLLM's blocks."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.kv_cache: Any = None
        self.request: Running | None = None
        self.group = 0

    def get_attn_backend(self) -> Any:
        raise NotImplementedError

    def get_kv_cache_spec(self, vllm_config: Any) -> FullAttentionSpec:
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=self.config.num_key_value_heads,
            head_size=self.config.head_dim,
            dtype=torch.float32,
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        self.kv_cache = kv_cache.view(torch.float32)  # blocks x heads x tokens x keys and values

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """As a cache of transformers: store the new tokens, return those of the whole sequence."""
        request = self.request
        assert request is not None
        blocks, size = request.block_ids[self.group], self.kv_cache.shape[2]
        start, new = request.num_computed_tokens, keys.shape[2]
        for at in range(new):
            position = start + at
            token = torch.cat([keys[0, :, at], values[0, :, at]], dim=-1)
            self.kv_cache[blocks[position // size], :, position % size] = token
        pages = [self.kv_cache[block] for block in blocks]
        tokens = torch.cat(pages, dim=1)[:, : start + new]
        return tuple(part.unsqueeze(0) for part in tokens.chunk(2, dim=-1))  # type: ignore[return-value]


class Engine:
    """One rank. `budget` tokens are computed in a step; `blocks` are in the cache."""

    def __init__(
        self, model: Path, *, blocks: int, budget: int = 64, rank: int = 0, ranks: int = 1
    ):
        self.model = st.load(model).eval()
        self.config = self.model.config.get_text_config()
        self.vllm_config = self._vllm_config(budget, ranks)
        self.layers: dict[str, Any] = self.vllm_config.compilation_config.static_forward_context
        statetrim_vllm.register()
        self._decoders = self.model.get_decoder().layers
        self._linear: dict[int, Any] = {}
        with set_current_vllm_config(self.vllm_config):
            for index, kind in enumerate(self.config.layer_types):
                self._build(index, kind)
        vllm_on_cpu.ready()
        self._make_cache(blocks)
        self._make_scheduler()
        self.requests: dict[str, Running] = {}
        self.preempted: set[str] = set()
        self.cached_tokens: dict[str, int] = {}

    def _vllm_config(self, budget: int, ranks: int) -> Any:
        config = VllmConfig(
            device_config=DeviceConfig(device="cpu"),
            cache_config=CacheConfig(
                block_size=16,
                enable_prefix_caching=True,
                mamba_cache_mode="align",
                mamba_ssm_cache_dtype="float32",
            ),
            scheduler_config=SchedulerConfig(
                max_model_len=CONTEXT,
                is_encoder_decoder=False,
                max_num_batched_tokens=budget,
                max_num_seqs=8,
                enable_chunked_prefill=True,
                async_scheduling=False,
            ),
        )
        config.model_config = _ModelConfig(
            hf_config=self.config,
            hf_text_config=self.config,
            dtype=torch.bfloat16,
            max_model_len=CONTEXT,
            runner_type="generate",
            is_hybrid=True,
            skip_tokenizer_init=True,
        )
        config.parallel_config.tensor_parallel_size = ranks
        config.scheduler_config.disable_hybrid_kv_cache_manager = False
        self._align(config)
        return config

    def _align(self, config: Any) -> None:
        """The block size that vLLM's platform sets, so that a block of softmax keys and values is
        as large as a page of states."""
        from statetrim_vllm.specs import Pages
        from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

        pages = Pages.of(config)
        shapes = (
            pages.shapes
            if pages
            else Qwen3NextForCausalLM.get_mamba_state_shape_from_config(config)
        )
        state = MambaSpec(shapes=shapes, dtypes=STATE, block_size=-1)
        token = Softmax(self.config).get_kv_cache_spec(config).page_size_bytes // 16
        block = 16 * -(-state.page_size_bytes // (16 * token))
        config.cache_config.block_size = config.cache_config.mamba_block_size = block
        config.cache_config.mamba_page_size_padded = block * token

    def _build(self, index: int, kind: str) -> None:
        prefix = f"model.layers.{index}"
        if kind != "linear_attention":
            self.layers[f"{prefix}.self_attn"] = Softmax(self.config)
            return
        interleaved = self.config.model_type == "qwen3_next"
        with set_default_torch_dtype(torch.bfloat16):
            layer = QwenGatedDeltaNetAttention(
                self.config, self.vllm_config, f"{prefix}.linear_attn", interleaved
            )
        load_weights(layer, self._decoders[index].linear_attn)
        self._linear[index] = layer

    def _make_cache(self, blocks: int) -> None:
        specs = {
            name: spec
            for name, layer in self.layers.items()
            if (spec := layer.get_kv_cache_spec(self.vllm_config)) is not None
        }
        cache = self.vllm_config.cache_config
        cache.num_gpu_blocks = cache.num_gpu_blocks_override = blocks
        cache.kv_cache_layout = "LBHNC"
        groups = kv_cache_planning.get_kv_cache_groups(self.vllm_config, specs)
        self.cache_config = kv_cache_planning.get_kv_cache_config_from_groups(
            self.vllm_config, groups, 2**40
        )
        views = allocate_kv_cache(self.cache_config, CPU, cache.get_resolved_kv_cache_layout())
        bind_kv_cache_to_layers(views, self.layers)
        self.builders = {}
        for number, group in enumerate(groups):
            if isinstance(group.kv_cache_spec, MambaSpec):
                self.builders[number] = GDNAttentionMetadataBuilder(
                    group.kv_cache_spec, group.layer_names, self.vllm_config, CPU
                )
            else:
                for name in group.layer_names:
                    self.layers[name].group = number
        copies = MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()
        self.copy_funcs = {MambaAttentionBackendEnum.GDN_ATTN: copies}
        self.copy_buffers = mamba_utils.MambaCopyBuffers.create(
            8,
            self.cache_config,
            self.copy_funcs,
            lambda *shape, dtype: CpuGpuBuffer(*shape, dtype=dtype, device=CPU, pin_memory=False),
        )
        self.state_blocks: dict[str, int] = {}

    def startup(self, memory: int) -> tuple[int, float]:
        """Blocks and maximum concurrency that vLLM reports at its start, with so many bytes of
        cache."""
        self.vllm_config.cache_config.num_gpu_blocks_override = None
        config = kv_cache_planning.get_kv_cache_config_from_groups(
            self.vllm_config, self.cache_config.kv_cache_groups, memory
        )
        concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(
            self.vllm_config, config
        )
        return config.num_blocks, concurrency

    def _make_scheduler(self) -> None:
        block = self.vllm_config.cache_config.block_size
        self.scheduler = Scheduler(
            self.vllm_config, self.cache_config, StructuredOutputManager(self.vllm_config), block
        )
        kv_cache_utils.init_none_hash(sha256)
        self.hasher = kv_cache_utils.get_request_block_hasher(block, sha256)

    def add(self, name: str, ids: list[int], new_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=new_tokens, ignore_eos=True, temperature=0)
        self.scheduler.add_request(
            Request(name, list(ids), sampling, None, block_hasher=self.hasher)
        )

    def run(self) -> dict[str, Running]:
        """Steps until all requests are finished. Raises RuntimeError if the cache is too small for
        one of them."""
        finished: dict[str, Running] = {}
        is_idle = False
        while self.scheduler.has_unfinished_requests():
            planned = self.scheduler.schedule()
            self._update(planned)
            # A request that preempts itself leaves a step without tokens, and resumes in the next.
            was_idle, is_idle = is_idle, not planned.num_scheduled_tokens
            if was_idle and is_idle:
                raise RuntimeError("a request does not fit into the cache")
            sampled = {} if is_idle else self._step(planned)
            names = list(sampled)
            self.scheduler.update_from_output(
                planned,
                ModelRunnerOutput(
                    req_ids=names,
                    req_id_to_index={name: i for i, name in enumerate(names)},
                    sampled_token_ids=[sampled[name] for name in names],
                ),
            )
            finished |= self.requests
        return finished

    def _update(self, planned: Any) -> None:
        self.preempted |= planned.preempted_req_ids or set()
        for new in planned.scheduled_new_reqs:
            self.cached_tokens[new.req_id] = new.num_computed_tokens
            self.requests[new.req_id] = Running(
                list(new.prompt_token_ids),
                new.block_ids,
                new.num_computed_tokens,
                len(new.prompt_token_ids),
            )
        cached = planned.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            request = self.requests[name]
            request.num_computed_tokens = cached.num_computed_tokens[i]
            blocks = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                request.block_ids = blocks
            elif blocks is not None:
                for own, more in zip(request.block_ids, blocks, strict=True):
                    own.extend(more)

    @torch.inference_mode()
    def _step(self, planned: Any) -> dict[str, list[int]]:
        """Compute the planned tokens; the next token of each request that is at its end."""
        counts = planned.num_scheduled_tokens
        names = sorted(
            counts, key=lambda n: counts[n] > 1 or self.requests[n].num_computed_tokens == 0
        )  # decodes first, as vLLM orders a batch
        batch = [self.requests[name] for name in names]
        mamba_utils.preprocess_mamba(
            planned,
            self.cache_config,
            self.vllm_config.cache_config,
            self.state_blocks,
            SimpleNamespace(req_ids=names, num_accepted_tokens_cpu=[1] * len(names)),
            self.requests,
            self.layers,
            self.copy_funcs,
            self.copy_buffers,
        )
        lengths = [counts[name] for name in names]
        metadata = self._metadata(batch, lengths)
        hidden = [
            torch.tensor(request.ids[request.num_computed_tokens :][:length])
            for request, length in zip(batch, lengths, strict=True)
        ]
        with set_forward_context(metadata, self.vllm_config, num_tokens=sum(lengths)):
            outputs = self._forward(batch, hidden)
        sampled = {}
        for name, request, length, logits in zip(names, batch, lengths, outputs, strict=True):
            start = request.num_computed_tokens
            request.logits |= {start + i: logits[i] for i in range(length)}
            sampled[name] = []
            if start + length == len(request.ids):
                sampled[name] = [int(logits[-1].argmax())]
                request.ids += sampled[name]
        return sampled

    def _metadata(self, batch: list[Running], lengths: list[int]) -> dict[str, Any]:
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        computed = torch.tensor([request.num_computed_tokens for request in batch])
        totals = (computed + torch.tensor(lengths)).int()
        by_layer = {}
        for number, builder in self.builders.items():
            width = max(len(request.block_ids[number]) for request in batch)
            table = torch.zeros(len(batch), width, dtype=torch.int32)
            for row, request in zip(table, batch, strict=True):
                blocks = request.block_ids[number]
                row[: len(blocks)] = torch.tensor(blocks)
            common = CommonAttentionMetadata(
                query_start_loc=starts,
                query_start_loc_cpu=starts,
                seq_lens=totals,
                num_reqs=len(batch),
                num_actual_tokens=sum(lengths),
                max_query_len=max(lengths),
                max_seq_len=int(totals.max()),
                block_table_tensor=table,
                slot_mapping=torch.zeros(sum(lengths), dtype=torch.int64),
                is_prefilling=torch.tensor([r.num_computed_tokens < r.prompt for r in batch]),
                seq_lens_cpu_upper_bound=totals,
            )
            metadata = builder.build(0, common)
            for name in self.cache_config.kv_cache_groups[number].layer_names:
                by_layer[name] = metadata
        return by_layer

    def _forward(self, batch: list[Running], ids: list[Tensor]) -> list[Tensor]:
        decoder = self.model.get_decoder()
        hidden = [decoder.embed_tokens(tokens.unsqueeze(0)) for tokens in ids]
        lengths = [len(tokens) for tokens in ids]
        for index, layer in enumerate(self._decoders):
            normed = [layer.input_layernorm(x) for x in hidden]
            if index in self._linear:
                packed = torch.cat([x[0] for x in normed]).bfloat16()
                mixed = self._linear[index](packed).float().split(lengths)
                mixed = [x.unsqueeze(0) for x in mixed]
            else:
                mixed = [
                    self._softmax(index, layer.self_attn, request, x)
                    for request, x in zip(batch, normed, strict=True)
                ]
            hidden = [x + y for x, y in zip(hidden, mixed, strict=True)]
            fed = [layer.mlp(layer.post_attention_layernorm(x)) for x in hidden]
            fed = [x[0] if isinstance(x, tuple) else x for x in fed]
            hidden = [x + y for x, y in zip(hidden, fed, strict=True)]
        return [self.model.lm_head(decoder.norm(x))[0] for x in hidden]

    def _softmax(self, index: int, attention: Any, request: Running, x: Tensor) -> Tensor:
        cache = self.layers[f"model.layers.{index}.self_attn"]
        cache.request = request
        start, new = request.num_computed_tokens, x.shape[1]
        positions = torch.arange(start, start + new).unsqueeze(0)
        mask = torch.arange(start + new) <= positions[0, :, None]
        embedded = self.model.get_decoder().rotary_emb(x, positions)
        return attention(
            x,
            position_embeddings=embedded,
            attention_mask=torch.where(mask, 0.0, float("-inf"))[None, None],
            past_key_values=cache,
        )[0]


def load_weights(layer: Any, mixer: Any) -> None:
    """Give vLLM's layer the weights of transformers' mixer, by vLLM's loaders."""
    if hasattr(mixer, "in_proj_qkvz"):
        projections = [("in_proj_qkvz", "in_proj_qkvz", ()), ("in_proj_ba", "in_proj_ba", ())]
    else:
        projections = [
            ("in_proj_qkvz", "in_proj_qkv", ((0, 1, 2),)),
            ("in_proj_qkvz", "in_proj_z", (3,)),
            ("in_proj_ba", "in_proj_b", (0,)),
            ("in_proj_ba", "in_proj_a", (1,)),
        ]
    for own, name, shard in projections:
        weight = getattr(layer, own).weight
        weight.weight_loader(weight, getattr(mixer, name).weight.data, *shard)
    for name in ("conv1d.weight", "out_proj.weight", "A_log", "dt_bias", "norm.weight"):
        parameter, tensor = layer.get_parameter(name), mixer.get_parameter(name).data
        loader = getattr(parameter, "weight_loader", None)
        if loader is None:
            parameter.data.copy_(tensor)
        else:
            loader(parameter, tensor)


def join_ranks(rank: int, ranks: int, rendezvous: Path) -> None:
    """vLLM's process groups, by gloo."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        init_distributed_environment(ranks, rank, f"file://{rendezvous}", rank, "gloo")
        initialize_model_parallel(ranks)
