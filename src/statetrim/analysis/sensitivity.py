"""Checkpoint + Plans + text -> Sensitivity: the loss when a plan prunes a single layer.

No cut is written: the channels that a plan prunes are masked in the kernels of one layer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.sensitivity import LayerCut, Sensitivity
from ..cut.shape import CHANNEL_AXES, ChannelAxis, Kept
from ..errors import StatetrimError
from ..progress import progress_reporter
from ..runtime.corpus import as_corpus
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.loading import load_live
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.output import run_and_save
from ..version import __version__
from .experiment import SO_FAR, Experiment
from .options import SensitivityOptions


def sensitivity(
    model: Checkpoint, plans: Sequence[Plan], options: SensitivityOptions
) -> Sensitivity:
    """Measure the loss of pruning each layer alone, for each of `plans` and each axis it prunes.

    There is an evaluation of the original and one per layer, plan and axis. With weights on disk,
    each evaluation reads them once. With `out` intermediate results are in `OUT.partial`, from
    which the same call resumes after an interruption; StatetrimError is raised if `out` exists.
    """
    variants = list(_variants(require_prunable(model), plans))
    tokens, corpus = options.windows * options.length, as_corpus(options.text, model)
    data = corpus.read(tokens=tokens, length=options.length, skip=options.skip)
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "dtype": options.dtype_text,
        "data": data.lineage,
        "rows": options.rows,
        "plans": [plan.digest for plan in plans],
    }

    def measure(directory: Path | None) -> Sensitivity:
        live = load_live(model, options.placement)
        experiment = Experiment(live, data, options.rows, options.batch_size)
        changes = []
        for layer, axis, table in variants:
            kept: dict[int, Kept] = {layer: {axis: table}}
            changes.append(hook_kernels(live, lambda call: None, kept=kept, layers=[layer]))
        with progress_reporter(options.progress, "cutting each layer alone") as report:
            samples = experiment.all_samples(changes, directory, report)
        cuts = []
        for (layer, axis, table), measured in zip(variants, samples, strict=True):
            cuts.append(LayerCut(layer, axis, table.shape[1], measured))
        widths: dict[ChannelAxis, int] = {x: model.geometry.width(x) for x in CHANNEL_AXES}
        return Sensitivity(experiment.samples(), cuts, widths, lineage)

    record = {"format": "statetrim sensitivity job", **lineage}
    return run_and_save(options.out, record, measure, Sensitivity.load, temporary_patterns=[SO_FAR])


def _variants(
    model: Checkpoint, plans: Sequence[Plan]
) -> Iterator[tuple[int, ChannelAxis, Tensor]]:
    """Every layer and axis that a plan prunes, with the kept channels; refuses none, and equal
    widths of one layer and axis."""
    seen: set[tuple[int, ChannelAxis, int]] = set()
    for plan in plans:
        source = plan.lineage.get("source")
        if source is not None and not model.has_digest(source):
            raise StatetrimError("a plan was made for another model; select channels of this one")
        for axis, axis_plan in plan.axes.items():
            if axis == "head":
                raise StatetrimError("a plan removes heads; only channels are cut layer by layer")
            for layer, kept in axis_plan.kept.items():
                keep = kept.shape[1]
                if keep == model.geometry.for_layer(layer).width(axis):
                    continue
                if (layer, axis, keep) in seen:
                    raise StatetrimError(
                        f"two plans keep {keep} {axis} channels; give each width once"
                    )
                seen.add((layer, axis, keep))
                yield layer, axis, kept
    if not seen:
        raise StatetrimError("no plan cuts anything, so there is nothing to compare")
