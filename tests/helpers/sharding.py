"""Shards models while they are loaded, and compares them with unsharded ones."""

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
    live = load_live(
        path, Placement(device="cpu:0", layerwise=True)
    )  # the device name of the Trainer
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
    """One rank of several. Writes REPORT-RANK.json: for each model the largest differences of
    hidden states and head weights, and the number of unsharded parameters."""
    dist.init_process_group("gloo")
    differences = {path: compare_sharded(path) for path in models}
    Path(f"{report}-{os.environ['RANK']}.json").write_text(json.dumps(differences))
    dist.destroy_process_group()
