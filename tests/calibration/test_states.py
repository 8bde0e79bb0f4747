"""What the states say, `ghost` and `head_rank`, against the models' own kernels."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.masking import recorded_calls
from statetrim.artifacts.statistics import LayerStatistics
from statetrim.methods.contract import HeadEvidence
from statetrim.methods.head_rank import select as by_rank
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import find_mixers
from statetrim.runtime.loading import load

LENGTH = 40  # not a multiple of the 16 tokens between two states
SAMPLED = [15, 31, 39]


def calibrate(model: st.Checkpoint, text: Path, *methods: str) -> st.Statistics:
    settings: Any = {"tokens": 4 * LENGTH, "length": LENGTH, "recall": 0.0, "progress": False}
    return st.calibrate(model, text, methods=methods, **settings)


@torch.inference_mode()
def kernel_calls(model: st.Checkpoint, text: Path) -> list[tuple[Any, dict[str, Any]]]:
    """Every kernel with its arguments, queries and keys normalized as the kernel would."""
    live = load(model)
    code = sys.modules[type(next(iter(find_mixers(live, model).values()))).__module__]
    with recorded_calls(code) as calls:
        live(input_ids=Corpus(text, model).read(tokens=4 * LENGTH, length=LENGTH).ids.long())
    for _, arguments in calls:
        if arguments.get("use_qk_l2norm_in_kernel"):
            arguments["use_qk_l2norm_in_kernel"] = False
            for side in ("query", "key"):
                rows = arguments[side]
                arguments[side] = rows / (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return calls


@torch.inference_mode()
def outputs(kernel: Any, arguments: dict[str, Any]) -> Tensor:
    result = kernel(**arguments)
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output.double()


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "bamba"])
def test_ghost_scores_the_error_of_the_output_when_a_channel_is_not_read(
    model_type: str, checkpoint: Any, text: Path
) -> None:
    """The oracle is the model's kernel with one channel of the query set to zero."""
    model = st.open(checkpoint(model_type))
    statistics = calibrate(model, text, "ghost")
    geometry = model.geometry
    plan = st.select(model, "ghost", "50%x100%", statistics=statistics, progress=False)
    calls = kernel_calls(model, text)
    for layer, (kernel, arguments) in zip(geometry.layers, calls, strict=True):
        side = "query" if "query" in arguments else "C"
        whole, errors = outputs(kernel, arguments), []
        for channel in range(geometry.head_k_dim):
            query = arguments[side].clone()
            query[..., channel] = 0
            change = (whole - outputs(kernel, arguments | {side: query}))[:, SAMPLED]
            by_head = change.square().sum((0, 1, 3)).reshape(geometry.num_k_heads, -1)
            errors.append(by_head.sum(1))
        scale = geometry.head_k_dim if model.family.scales_queries else 1
        expected = scale * torch.stack(errors, dim=1)
        torch.testing.assert_close(
            statistics.layers[layer]["state_read"], expected, rtol=1e-3, atol=1e-9
        )
        for head, kept in enumerate(plan.axes["key"].kept[layer].tolist()):
            largest = np.argsort(-expected[head].numpy())[: len(kept)]
            assert kept == sorted(largest.tolist())


def test_ranks_and_norms_are_those_of_the_kernels_final_states(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    statistics = calibrate(model, text, "head_rank")
    calls = kernel_calls(model, text)
    for layer, (kernel, arguments) in zip(model.geometry.layers, calls, strict=True):
        with torch.inference_mode():
            states = kernel(**arguments | {"output_final_state": True})[1].double().numpy()
        singular = np.linalg.svd(states, compute_uv=False)  # [sequences, heads, rank]
        share = (singular > 1e-4 * singular[..., :1]).mean(-1)
        sums = statistics.layers[layer]["state_ranks"]
        assert sums is not None
        expected = [np.full(len(sums), len(states)), share.sum(0), singular.sum((0, 2))]
        np.testing.assert_allclose(sums, np.stack(expected, 1), rtol=1e-4)
    keep = model.geometry.num_v_heads // 2
    plan = st.select(model, to=f"{keep}heads", method="head_rank", statistics=statistics)
    assert plan.axes["head"].method == "head_rank"


def test_heads_of_high_rank_and_norm_go() -> None:
    """By hand: half of the mean rank plus half of the norm over the largest norm is 0.55 and 0.75
    in the first group, 0.65 and 0.75 in the second. Ranks alone would keep head 1 of the first,
    norms alone head 1 of the second."""
    sums = torch.tensor([[4, 3.6, 8], [4, 2, 40], [4, 1.2, 40], [4, 4, 20]], dtype=torch.float64)
    evidence = HeadEvidence(
        torch.zeros(2, 2, 3, 5, dtype=torch.float64),
        generator=torch.Generator(),
        statistics=LayerStatistics(64, {"state_ranks": sums}),
    )
    assert by_rank(evidence, 1).tolist() == [[0], [0]]
