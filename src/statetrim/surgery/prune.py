"""Checkpoint + Plan -> a smaller checkpoint, shard by shard, with no model in memory.

All is worked out and checked from the headers before a byte is written. Where values are cut, the
output norm's weight, which all heads of a layer share while they keep different channels, moves
into the output projection first (`_folded`). The result grows in `OUT.partial` and takes its name
last; a rerun after a crash keeps the shards that were finished.
"""

import hashlib
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..artifacts.card.model_card import model_card
from ..artifacts.header import header
from ..artifacts.plan import Plan
from ..errors import StatetrimError
from ..families.contract import Config, resized_config
from ..geometry import Geometry
from ..maths.units import MIB
from ..progress import Advance, ShowProgress, counter, progress_reporter
from ..storage.atomic import discard, move_into_place, scratch_path
from ..storage.auxiliary_files import auxiliary_files, copy_files, is_newer
from ..storage.checkpoint import (
    Checkpoint,
    check_heads_removable,
    check_values_prunable,
    open_checkpoint,
    require_prunable,
)
from ..storage.file_names import CONFIG, INDEX
from ..storage.json_file import write_json, write_text
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from ..storage.output import ARTIFACTS, CARD, open_output
from ..storage.safetensors_file import Shard, TensorEdit, TensorInfo, rewrite_shard, tensors_after
from ..storage.space import check_space
from ..version import __version__

RECORD = "prune.json"
_ORIGINAL_CARD = f"{ARTIFACTS}/source_README.md"


@dataclass(frozen=True, eq=False)
class Surgery:
    """Everything a prune will do, worked out from config and headers alone."""

    model: Checkpoint
    plan: Plan
    geometry: Geometry  # after the cut
    config: Config  # after the cut
    edits: dict[str, TensorEdit]

    def __repr__(self) -> str:
        before, after = self.model.geometry, self.geometry
        shapes = f"{before.describe_against(after)} -> {after.describe_against(before)}"
        return f"<Surgery: state {shapes}, {len(self.edits)} tensors cut>"

    @cached_property
    def shards(self) -> list[tuple[Shard, list[TensorInfo]]]:
        """Each source shard with its tensors as they will be written."""
        return [(shard, tensors_after(shard, self.edits)) for shard in self.model.shards]

    @cached_property
    def auxiliary_files(self) -> dict[str, Path]:
        """Files other than weights that are copied: where to, from where."""
        files = auxiliary_files(self.model)
        return {_ORIGINAL_CARD if name == CARD else name: path for name, path in files.items()}

    @property
    def bytes_before(self) -> int:
        return sum(t.nbytes for shard in self.model.shards for t in shard.tensors)

    @property
    def bytes_after(self) -> int:
        return sum(tensor.nbytes for _, tensors in self.shards for tensor in tensors)

    @property
    def parameters_after(self) -> int:
        return sum(prod(tensor.shape) for _, tensors in self.shards for tensor in tensors)

    @property
    def record(self) -> dict[str, Any]:
        """What identifies the job: the same source and plan give the same record."""
        kept_by_layer = [self.plan.kept_in_layer(layer) for layer in self.geometry.layers]
        kept_lists: list[Any] = [
            {axis: table.tolist() for axis, table in sorted(layer_kept.items())}
            for layer_kept in kept_by_layer
        ]
        if self.plan.kept_heads is not None:
            kept_lists += [self.plan.kept_heads[layer].tolist() for layer in self.geometry.layers]
        return {
            **header("prune"),
            "statetrim": __version__,
            "source": self.model.digest,
            "weights": self.model.digest,
            "plan": hashlib.sha256(json.dumps(kept_lists).encode()).hexdigest(),
        }


def prepare(model: ModelLike, plan: Plan | str | Path, *, uneven: bool = False) -> Surgery:
    """Check the plan, the config and every header against each other; write nothing."""
    model, plan = require_prunable(as_checkpoint(model)), load_if_path(Plan.load, plan)
    if not model.has_digest(plan.lineage.get("source")):
        raise StatetrimError(
            "the plan was made for another model (its 'source' is not this checkpoint's); "
            "make one for this model with: statetrim select"
        )
    if plan.kept_values is not None:
        check_values_prunable(model)
    if plan.kept_heads is not None:
        check_heads_removable(model)
    new_geometry = plan.pruned_geometry(model.geometry)
    if new_geometry.widths and not uneven:
        raise StatetrimError(
            "the plan leaves layers of different widths, which no stock code loads; say --uneven "
            "(in Python: uneven=True) if that is meant"
        )
    config = resized_config(model.family, model.config, new_geometry)
    rows_by_tensor = model.channel_rows if plan.kept_heads is None else model.head_rows
    edits = {
        name: TensorEdit(masks)
        for name, layer_rows in rows_by_tensor.items()
        if (masks := plan.kept_masks(layer_rows.layer, layer_rows.channel_rows, model.geometry))
    }
    if plan.kept_values is not None:
        edits |= _fold_norms(model, edits)
    for name in model.resplit_tensors:  # each gets its own rows again, cut or not
        edits[name] = replace(edits.get(name, TensorEdit({})), replacement=model.tensor(name))
    for name in model.flattened_heads.keys() & edits.keys():
        edits[name] = replace(
            edits[name], replacement=model.tensor(name), split_heads=model.flattened_heads[name]
        )
    surgery = Surgery(model, plan, new_geometry, config, edits)
    surgery.auxiliary_files  # noqa: B018  (refuses links that lead out, before anything is written)
    return surgery


def _fold_norms(model: Checkpoint, edits: dict[str, TensorEdit]) -> dict[str, TensorEdit]:
    """The cuts of every shared norm and output projection, with the one folded into the other."""
    norms = {
        layer_rows.layer: name
        for name, layer_rows in model.channel_rows.items()
        if layer_rows.channel_rows[0].role == "shared_norm"
    }
    folded = {name: replace(edits[name], fill_value=1.0) for name in norms.values()}
    for name, layer_rows in model.channel_rows.items():
        if layer_rows.channel_rows[0].role == "o_proj" and layer_rows.layer in norms:
            factors = torch.ones(layer_rows.channel_rows[0].size, dtype=torch.float64)
            for rows in layer_rows.channel_rows:
                factors[rows.rows] = model.tensor(norms[layer_rows.layer]).double()
            folded[name] = replace(edits[name], column_factors=factors)
    return folded


def prune(
    model: ModelLike,
    plan: Plan | str | Path,
    out: str | Path,
    *,
    uneven: bool = False,
    progress: ShowProgress = True,
) -> Checkpoint:
    """Write the smaller checkpoint to `out` and open it.

    `uneven` allows a plan whose layers differ in width: only statetrim and vLLM with its plugin run
    the result, and stock code refuses it. `progress` counts the bytes of weights written.
    """
    surgery = prepare(model, plan, uneven=uneven)
    with (
        open_output(out, RECORD, surgery.record) as work,
        progress_reporter(progress, "pruning") as report,
    ):
        if not work.done:
            partial = work.path
            auxiliary_bytes = sum(path.stat().st_size for path in surgery.auxiliary_files.values())
            check_space(partial, surgery.bytes_after + auxiliary_bytes)
            _write_shards(surgery, partial, counter(report, surgery.bytes_after, "bytes"))
            _write_other_files(surgery, partial)
            _check_result(surgery, partial)
            work.publish()
    return open_checkpoint(out, surgery.model.family)


def _write_shards(surgery: Surgery, partial: Path, advance: Advance) -> None:
    """Write every shard not yet there; a shard has its final name only when it is on the disk.

    One thread syncs a finished shard while the next is written.
    """
    with ThreadPoolExecutor(max_workers=1) as executor:
        pending: list[Future[None]] = []
        for shard, tensors in surgery.shards:
            target = partial / shard.path.name
            if target.exists() and not is_newer(shard.path, target):
                advance(sum(tensor.nbytes for tensor in tensors))
                continue
            scratch = scratch_path(target)
            try:
                with scratch.open("xb") as file:
                    rewrite_shard(shard, file, surgery.edits, advance)
            except BaseException:
                discard(scratch)
                raise
            pending.append(executor.submit(move_into_place, scratch, target))
            while len(pending) > 1:  # at most one shard waits, so a failure surfaces early
                pending.pop(0).result()
        for future in pending:
            future.result()


def _write_other_files(surgery: Surgery, partial: Path) -> None:
    """Index, tokenizer and the like, plan and card; config.json last: without it nothing loads."""
    model, artifacts = surgery.model, partial / ARTIFACTS
    if model.index is not None:
        metadata = dict(model.index.get("metadata") or {})
        metadata["total_size"] = surgery.bytes_after
        if "total_parameters" in metadata:
            metadata["total_parameters"] = surgery.parameters_after
        write_json(partial / INDEX, model.index | {"metadata": metadata})
    copy_files(surgery.auxiliary_files, partial)
    surgery.plan.save(artifacts / "plan.json")
    card = model_card(
        model, surgery.plan, surgery.geometry, surgery.parameters_after, _original_card(surgery)
    )
    write_text(partial / CARD, card)
    write_json(partial / CONFIG, surgery.config)


def _original_card(surgery: Surgery) -> str:
    """The beginning of the original's card; empty where there is none."""
    if _ORIGINAL_CARD not in surgery.auxiliary_files:
        return ""
    with surgery.auxiliary_files[_ORIGINAL_CARD].open(errors="replace") as card:
        return card.read(MIB)


def _check_result(surgery: Surgery, partial: Path) -> None:
    """Read the result back as any reader would; a mismatch here is a defect of ours."""
    result = require_prunable(open_checkpoint(partial, surgery.model.family))
    assert result.geometry == surgery.geometry
    assert set(result.tensors) == set(surgery.model.tensors)
