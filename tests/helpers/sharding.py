"""Split models that lie on disk, and compare with whole ones."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

import statetrim as st
from statetrim.recovery.fsdp import Sharder, gather_full, is_shard
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement


@torch.no_grad()
def compare_sharded(path: str) -> dict[str, float]:
    ids = torch.arange(12).unsqueeze(0) % 50 + 1
    live = load_live(path, Placement("cpu:0", layerwise=True))  # as the Trainer names it
    plain, split = st.load(path), live.module.requires_grad_(False)
    Sharder(live.device).shard_model(live)
    expected, actual = (m.base_model(input_ids=ids, use_cache=False)[0] for m in (plain, split))
    heads = [gather_full(m.get_output_embeddings().weight) for m in (plain, split)]
    return {
        "hidden": float((actual - expected).abs().max() / expected.abs().max()),
        "head": float((heads[1] - heads[0]).abs().max()),
        "whole": sum(not is_shard(p) for p in split.parameters()),
        "tied": plain.get_output_embeddings().weight is plain.get_input_embeddings().weight,
    }


def compare(report: Path, models: Iterable[str]) -> None:
    """One of several processes. Writes REPORT-RANK.json: for each model the largest difference of
    hidden states and of the head, and how many parameters are no shard."""
    dist.init_process_group("gloo")
    differences = {path: compare_sharded(path) for path in models}
    Path(f"{report}-{os.environ['RANK']}.json").write_text(json.dumps(differences))
    dist.destroy_process_group()
