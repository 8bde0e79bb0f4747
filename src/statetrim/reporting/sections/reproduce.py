"""The commands that make an equal plan and an equal cut again."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...artifacts.steps import DataSource, data_sources
from ..commands import command_arguments, shell_quoted
from ..document import Block, Command, Missing, Text
from ..findings import Findings, as_mapping, truncated_text

TITLE = "How to reproduce it"
STATISTICS = "statistics.safetensors"


def blocks(findings: Findings) -> Iterator[Block]:
    """Commands for calibrate, select, prune and refit with the recorded options; those of a trained
    cut run `trim` again."""
    plan = findings.plan
    if plan is None:
        yield Missing("Without a plan, the steps cannot be shown.")
        return
    model = command_arguments(findings).model
    calibration = as_mapping(plan.lineage.get("statistics"))
    methods = [plan.method, plan.value_method or "none", plan.head_method or "none"]
    calibrated = ",".join(name for name in methods if name != "none")
    lines = _calibrate_commands(model, calibration, STATISTICS, calibrated)
    options = f" --to {shell_quoted(plan.to)}"
    for flag, method in zip(("--method", "--value-method", "--head-method"), methods, strict=True):
        if method != "none":
            options += f" {flag} {shell_quoted(method)}"
    options += _option_flags("--option", plan.options)
    options += _option_flags("--value-option", plan.value_options)
    statistics = f" --statistics {STATISTICS}" if calibration else ""
    lines.append(f"statetrim select {model}{options} --seed {plan.seed}{statistics} -o plan.json")
    fitted = as_mapping(findings.refit.statistics) if findings.refit else {}
    pruned = "PRUNED" if fitted else "SMALL"
    uneven = " --uneven" if "=" in plan.to else ""
    lines.append(f"statetrim prune {model} plan.json{uneven} -o {pruned}")
    if fitted and plan.kept_heads:  # kept heads are unchanged, so the original's statistics hold
        lines.append(f"statetrim refit {pruned} --statistics {STATISTICS} -o SMALL")
    elif fitted:
        lines += _calibrate_commands(f"{pruned} --original {model}", fitted, "fit.safetensors")
        lines.append(f"statetrim refit {pruned} --statistics fit.safetensors -o SMALL")
    if findings.recover is not None and findings.trim is not None and findings.cut is not None:
        cut = command_arguments(findings).cut
        lines = [f"statetrim recipe {cut} > recipe.yaml"]
        lines.append("statetrim trim --recipe recipe.yaml -o SMALL")
    digest = truncated_text(plan.lineage.get("source"))
    yield Text(
        f"The original checkpoint has the digest {digest}. The same model, text and options give "
        f"the same bytes."
    )
    yield Command(lines)


def _calibrate_commands(
    model: str, calibration: Mapping[str, Any], out: str, methods: str = ""
) -> list[str]:
    """A command per text, and one that merges several into `out`; generated sequences belong to the
    text that they follow. Sources without valid sizes are left out."""
    runs: list[tuple[DataSource, list[DataSource]]] = []
    for source in data_sources(calibration):
        if source.generated is None:
            runs.append((source, []))
        elif runs:
            runs[-1][1].append(source)
    commands, files = [], []
    for number, (text, generated) in enumerate(runs, start=1):
        total = text.tokens + sum(source.tokens for source in generated)
        shares = {"recall": "0"}
        for source in generated:
            # Half a token more, so that calibrate, which rounds down, generates as many sequences.
            shares[str(source.generated)] = f"{(source.tokens + 0.5) / total:.9f}"
            shares["seed"] = str(source.seed)
        command = (
            f"statetrim calibrate {model} --text {shell_quoted(text.text)} --tokens {total} "
            f"--length {text.length} --skip {text.skip} "
        )
        for kind, share in shares.items():
            command += f"--{shell_quoted(kind)} {share} "
        batch_size = shell_quoted(calibration.get("batch_size"))
        command += f"--batch-size {batch_size} "
        command += f"--for {shell_quoted(methods)} " if methods else ""
        files.append(out if len(runs) == 1 else f"{number}-{out}")
        commands.append(f"{command}-o {files[-1]}")
    if len(runs) > 1:
        commands.append(f"statetrim merge {' '.join(files)} -o {out}")
    return commands


def _option_flags(flag: str, options: Mapping[str, Any]) -> str:
    """The options of a method, each as " FLAG NAME=VALUE"."""
    flags = ""
    for name, value in options.items():
        value_text = str(value).lower() if isinstance(value, bool) else str(value)
        flags += f" {flag} {shell_quoted(f'{name}={value_text}')}"
    return flags
