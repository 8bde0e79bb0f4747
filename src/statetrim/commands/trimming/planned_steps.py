"""What a person sees before `trim` runs: steps, and shapes."""

from collections.abc import Sequence
from dataclasses import asdict

from ...artifacts.decision import BY_LAYER, Decision
from ...artifacts.state_sizes import state_json, state_text, tensor_parallel_text, weight_bytes
from ...cut.geometry import Geometry
from ...judging.decision_table import HEADER, decision_rows
from ...maths.formatting import bytes_text
from ...pipelines.estimate import Step
from ...pipelines.job import Job
from ...pipelines.shape_choice import points_of_cuts, points_without_cut, predicts_shapes
from ...serving.matrix import ServedBy, unserved_text
from .. import terminal


def show_steps(
    job: Job, steps: Sequence[Step], output: str, *, dry_run: bool, as_json: bool
) -> None:
    """Print steps and shapes: to standard error before a run, to standard output if it is dry."""
    download_bytes = 0 if job.model.downloaded else weight_bytes(job.model)
    if as_json:
        terminal.print_json(
            {
                "output": output,
                **state_json(job.model.geometry, job.after),
                "state_share": state_share(job, job.largest_state),
                "candidates": [str(target) for target in job.candidates],
                "streams_weights": job.streams_weights,
                "download_bytes": download_bytes,
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    _show_costs(f"trim {job.model.name} -> {output}", steps, to_stderr=not dry_run)
    if job.candidates:
        _show_candidates(job, to_stderr=not dry_run)
    else:
        _show_shape(job)
    if job.streams_weights:
        terminal.note("weights are streamed from disk, because memory is short")
    if download_bytes:
        size = bytes_text(download_bytes)
        terminal.note(f"{size} of weights are not here yet; the run downloads them first")


def state_share(job: Job, kept: Geometry) -> dict[str, float | str | None]:
    """The requested and the kept fraction of the state's bytes, and why less is kept, for JSON."""
    share = kept.state_numel / job.model.geometry.state_numel
    return {"asked": job.requested_share, "kept": share, "why": job.shortfall}


def _show_costs(title: str, steps: Sequence[Step], *, to_stderr: bool) -> None:
    """Print what each step takes, and last the run: its sums, and its peak of memory."""

    def cells(tokens: int, memory: int, disk: int) -> tuple[str, ...]:
        sizes = (f"~{bytes_text(nbytes)}" if nbytes else "" for nbytes in (memory, disk))
        return f"{tokens:,}" if tokens else "", *sizes

    tokens, disk = sum(step.tokens for step in steps), sum(step.disk for step in steps)
    rows = [(step.name, step.does, *cells(step.tokens, step.memory, step.disk)) for step in steps]
    rows.append(("all", "", *cells(tokens, max(step.memory for step in steps), disk)))
    header = ("step", "what", "tokens", "memory", "disk")
    terminal.print_table(title, header, rows, left=(0, 1), to_stderr=to_stderr)


def _show_shape(job: Job) -> None:
    before, after = job.model.geometry, job.after
    terminal.note(state_text(before, after))
    if "head" in job.target.axes:
        kept, all_heads = after.describe_against(before), before.describe_against(after)
        terminal.note(f"the state is cut from {all_heads} to {kept}")
        terminal.note(tensor_parallel_text(before, after))
        if after.num_k_heads < before.num_k_heads:
            terminal.warn(
                f"warning: this removes {before.num_k_heads - after.num_k_heads} of "
                f"{before.num_k_heads} key heads with all their value heads, which lost more than "
                "channels of the same size in every measurement; a multiple of the key heads keeps "
                "all of them, and --to 0.5 compares both"
            )
        return
    answers = ServedBy.of(job.model.model_type, after)
    if after.widths:
        terminal.warn(
            "warning: stock libraries and engines refuse layers of different widths; "
            f"{answers.texts[0]}"
        )
        return
    shape = after.widest
    if str(shape) != str(job.options.request):
        terminal.note(f"the state is cut from {before.widest} to {shape} (keys x values)")
    if answers.refused and not job.options.for_:
        terminal.warn(
            f"warning: {shape} is refused by {', '.join(answers.refused)}; "
            f"--to {job.target.share:.2g} compares all shapes of at most this size, and --for "
            "ENGINE allows only those that it serves"
        )


def _show_candidates(job: Job, *, to_stderr: bool) -> None:
    serving = job.options.counted_in
    points = [*points_without_cut(job), *points_of_cuts(job)]
    cells = decision_rows(Decision(points=points), {})
    refused = [""] * len(points_without_cut(job))
    for engines in job.candidates.values():
        refused.append(", ".join(engines) or "none known")
    rows = [(*row[:4], by) for row, by in zip(cells, refused, strict=True)]
    if job.options.by_layer:
        rows.append((BY_LAYER, "", "", "", "all without a plugin"))
    predicted = "all are predicted, the best three measured"
    terminal.print_table(
        f"Cuts to compare: {predicted if predicts_shapes(job) else 'all are measured'}, one is "
        f"kept; {serving.counted}",
        (*HEADER[:4], "refused by"),
        rows,
        left=(0, 4),
        to_stderr=to_stderr,
    )
    if unserved := unserved_text(job.model.model_type, serving.counted_by):
        terminal.note(unserved)
