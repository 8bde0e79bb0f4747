"""Checkpoint + Plan -> a cut, written shard by shard, with no model in memory.

Everything is computed and checked from config and headers before a byte is written. If value
channels are pruned, the output norm's weight is first multiplied into the output projection
(`_fold_norms`): all heads of a layer share it, but keep different channels. The result is written
to `OUT.partial` and renamed last; a rerun after a crash keeps the finished shards.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..artifacts.card.model_card import model_card
from ..artifacts.plan import Plan
from ..artifacts.record import header
from ..cut.geometry import Geometry
from ..errors import StatetrimError
from ..families.contract import Config, resized_config, with_state_dtype
from ..options import takes_options
from ..progress import Advance, counter, progress_reporter
from ..storage.atomic import discard, move_into_place, scratch_path
from ..storage.auxiliary_files import auxiliary_files, card_text, copy_files, is_newer
from ..storage.channel_rows import names_by_layer
from ..storage.checkpoint import Checkpoint, check_prunable, open_checkpoint, require_prunable
from ..storage.checkpoint_files import CONFIG, INDEX
from ..storage.json_file import write_json, write_text
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from ..storage.output import ARTIFACTS, CARD, open_output
from ..storage.quantized.rewrite import check_written, cut_quantized, edited_rows, is_exact
from ..storage.quantized.siblings import check_quantized_sibling
from ..storage.safetensors_file import (
    Edit,
    Shard,
    TensorEdit,
    TensorInfo,
    rewrite_shard,
    tensors_after,
)
from ..storage.space import check_space
from ..version import __version__
from .options import PruneOptions

RECORD = "prune.json"
_ORIGINAL_CARD = f"{ARTIFACTS}/source_README.md"


@dataclass(frozen=True, eq=False)
class Surgery:
    """What pruning will write, computed from config and headers alone."""

    model: Checkpoint
    plan: Plan
    geometry: Geometry  # of the cut
    config: Config  # of the cut
    edits: dict[str, TensorEdit]  # by the name of a tensor without quantisation
    auxiliary_files: dict[str, Path]  # to copy: name in the cut -> source

    def __repr__(self) -> str:
        before, after = self.model.geometry, self.geometry
        shapes = f"{before.describe_against(after)} -> {after.describe_against(before)}"
        return f"<Surgery: state {shapes}, {len(self.edits)} tensors cut>"

    @cached_property
    def shards(self) -> list[tuple[Shard, list[TensorInfo]]]:
        """Each shard of the original with the header entries of the shard to write."""
        return [(shard, tensors_after(shard, self.stored_edits)) for shard in self.model.shards]

    @cached_property
    def stored_edits(self) -> dict[str, Edit]:
        """The edits by stored name: a quantised weight is stored as several tensors."""
        edits: dict[str, Edit] = {}
        for name, edit in self.edits.items():
            if name in self.model.quantized:
                edits |= cut_quantized(self.model.quantized[name], edit, self.model)
            else:
                edits[name] = edit
        return edits

    @property
    def bytes_before(self) -> int:
        return sum(shard.nbytes for shard in self.model.shards)

    @property
    def bytes_after(self) -> int:
        return sum(tensor.nbytes for _, tensors in self.shards for tensor in tensors)

    @property
    def parameters_after(self) -> int:
        """As `Checkpoint.parameters` counts them: scales and packing do not matter."""
        total = 0
        for name, tensor in self.model.logical_tensors.items():
            edit = self.edits.get(name)
            total += prod(edit.result_shape(tensor.shape) if edit else tensor.shape)
        return total

    @property
    def record(self) -> dict[str, Any]:
        """The record that identifies the job: by the digests of the original and of the plan."""
        return {
            **header("prune"),
            "statetrim": __version__,
            "source": self.model.digest,
            "weights": self.model.digest,
            "plan": self.plan.digest,
        }


def prepare(model: ModelLike, plan: Plan | str | Path, *, uneven: bool = False) -> Surgery:
    """Check the plan, the config and every header against each other; write nothing.

    Raises StatetrimError if they do not fit, or, without `uneven`, if layers would differ in width.
    """
    model, plan = require_prunable(as_checkpoint(model)), load_if_path(Plan.load, plan)
    if not model.has_digest(plan.lineage.get("source")):
        check_quantized_sibling(model, plan.lineage)
    for axis in plan.axes:
        check_prunable(model, axis)
    new_geometry = plan.pruned_geometry(model.geometry)
    if new_geometry.widths and not uneven:
        raise StatetrimError(
            "the plan leaves layers of different widths, which no stock code loads; say --uneven "
            "(in Python: uneven=True) if that is meant"
        )
    config = resized_config(model.family, model.config, new_geometry)
    edits = {name: TensorEdit(masks) for name, masks in plan.kept_masks(model).items()}
    if "value" in plan.axes:
        edits |= _fold_norms(model, edits)
    for name in model.resplit_tensors:  # pruned or not, each is written with its own rows
        edits[name] = replace(edits.get(name, TensorEdit({})), replacement=model.tensor(name))
    for name in model.flattened_heads.keys() & edits.keys():
        edits[name] = replace(
            edits[name], replacement=model.tensor(name), split_heads=model.flattened_heads[name]
        )
    files = auxiliary_files(model)
    if CARD in files:
        files[_ORIGINAL_CARD] = files.pop(CARD)
    return Surgery(model, plan, new_geometry, config, edits, files)


def _fold_norms(model: Checkpoint, edits: dict[str, TensorEdit]) -> dict[str, TensorEdit]:
    """Edits that multiply each shared norm's weight into the output projection's columns, and set
    that weight to 1; each extends the tensor's entry in `edits`."""
    folded: dict[str, TensorEdit] = {}
    projections = names_by_layer(model.channel_rows, "o_proj")
    for layer, norm in names_by_layer(model.channel_rows, "shared_norm").items():
        folded[norm] = replace(edits[norm], fill_value=1.0)
        if layer in projections:
            name = projections[layer]
            channel_rows = model.channel_rows[name].channel_rows
            factors = torch.ones(channel_rows[0].size, dtype=torch.float64)
            for rows in channel_rows:
                factors[rows.rows] = model.tensor(norm).double()
            folded[name] = replace(edits[name], column_factors=factors)
    return folded


@takes_options(PruneOptions)
def prune(model: ModelLike, options: PruneOptions) -> Checkpoint:
    """Write the cut to `out` and open it.

    `uneven` allows a plan whose layers differ in width: only statetrim and vLLM with its plugin run
    the result, and stock code refuses it. `progress` counts the bytes of weights written. An
    interrupted run resumes from `OUT.partial`; if `out` is the finished result of this job, it is
    only opened. Raises StatetrimError if the plan does not fit, or if `out` is anything else.
    """
    surgery, dtype = prepare(model, options.plan, uneven=options.uneven), options.state_dtype
    record = surgery.record | {"state_dtype": dtype}
    if dtype is not None:
        surgery = replace(surgery, config=with_state_dtype(surgery.config, dtype))
    with (
        open_output(options.out, RECORD, record) as work,
        progress_reporter(options.progress, "pruning") as report,
    ):
        if not work.done:
            partial = work.path
            auxiliary_bytes = sum(path.stat().st_size for path in surgery.auxiliary_files.values())
            check_space(partial, surgery.bytes_after + auxiliary_bytes)
            _write_shards(surgery, partial, counter(report, surgery.bytes_after, "bytes"))
            _write_other_files(surgery, partial)
            result = require_prunable(open_checkpoint(partial, surgery.model.family))
            assert result.geometry == surgery.geometry
            assert set(result.tensors) == set(surgery.model.tensors)
            errors = _requantization_errors(surgery, result)
            if errors:
                write_json(partial / ARTIFACTS / RECORD, record | {"requantized": errors})
            work.publish()
    return open_checkpoint(options.out, surgery.model.family)


def _write_shards(surgery: Surgery, partial: Path, advance: Advance) -> None:
    """Write every shard that is not finished; a thread syncs one while the next is written."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        pending: Future[None] | None = None
        for shard, tensors in surgery.shards:
            target = partial / shard.path.name
            if target.exists() and not is_newer(shard.path, target):
                advance(sum(tensor.nbytes for tensor in tensors))
                continue
            scratch = scratch_path(target)
            try:
                with scratch.open("xb") as file:
                    rewrite_shard(shard, file, surgery.stored_edits, advance)
            except BaseException:
                discard(scratch)
                raise
            previous, pending = pending, executor.submit(move_into_place, scratch, target)
            if previous is not None:  # at most one shard waits, so that a failure is raised early
                previous.result()
        if pending is not None:
            pending.result()


def _write_other_files(surgery: Surgery, partial: Path) -> None:
    """Write index, tokenizer files, plan, card; config.json last, as nothing loads without it."""
    model, artifacts = surgery.model, partial / ARTIFACTS
    if model.index is not None:
        metadata = dict(model.index.get("metadata") or {})
        metadata["total_size"] = surgery.bytes_after
        if "total_parameters" in metadata:
            metadata["total_parameters"] = surgery.parameters_after
        write_json(partial / INDEX, model.index | {"metadata": metadata})
    copy_files(surgery.auxiliary_files, partial)
    surgery.plan.save(artifacts / "plan.json")
    original_card = card_text(surgery.auxiliary_files.get(_ORIGINAL_CARD))
    card = model_card(
        model, surgery.plan, surgery.geometry, surgery.parameters_after, original_card
    )
    write_text(partial / CARD, card)
    write_json(partial / CONFIG, surgery.config)


def _requantization_errors(surgery: Surgery, result: Checkpoint) -> dict[str, float]:
    """Name -> relative error of each weight that was quantised again, as it was written; refuses an
    error above what the format costs."""
    errors: dict[str, float] = {}
    for name, tensor in surgery.model.quantized.items():
        edit = surgery.edits.get(name)
        if edit is None:
            continue
        exact, wanted = is_exact(tensor, edit), edited_rows(tensor, edit, surgery.model)
        error = check_written(result.quantized[name], wanted, result, exact=exact)
        if not exact:
            errors[name] = error
    return errors
