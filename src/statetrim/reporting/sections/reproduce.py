"""The commands that give the same plan and the same bytes again."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..commands import command_arguments, shell_quoted
from ..document import Block, Command, Missing, Text
from ..findings import Findings
from ..records import as_dicts, as_mapping, truncated_text

TITLE = "How to reproduce it"


def blocks(findings: Findings) -> Iterator[Block]:
    plan = findings.plan
    if plan is None:
        yield Missing("Without a plan, the steps cannot be shown.")
        return
    arguments = command_arguments(findings)
    calibration = as_mapping(plan.lineage.get("statistics"))
    methods = ",".join(m for m in (plan.method, plan.value_method) if m and m != "none")
    lines = _calibrate_commands(arguments.model, calibration, methods)
    options = ""
    if plan.method != "none":
        options += f" --keep {shell_quoted(plan.requested)} --method {shell_quoted(plan.method)}"
        options += _option_flags("--option", plan.options)
    if plan.requested_values is not None:
        options += f" --keep-values {shell_quoted(plan.requested_values)}"
        options += f" --value-method {shell_quoted(plan.value_method)}"
        options += _option_flags("--value-option", plan.value_options)
    statistics = " --statistics statistics.safetensors" if calibration else ""
    lines.append(
        f"statetrim select {arguments.model}{options} --seed {plan.seed}{statistics} -o plan.json"
    )
    lines.append(f"statetrim prune {arguments.model} plan.json -o SMALL")
    yield Text(
        f"The original checkpoint has the digest {truncated_text(plan.lineage.get('source'))}. The same "
        f"model, text and options give the same plan, and the same plan the same bytes."
    )
    yield Command(lines)


def _calibrate_commands(model: str, calibration: Mapping[str, Any], methods: str) -> list[str]:
    """A command for each text, which also generates the same sequences again."""
    runs: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for data in as_dicts(calibration.get("data")):
        if not _token_count(data):
            continue
        if "generated" not in data:
            runs.append((data, []))
        elif runs:
            runs[-1][1].append(data)
    lines = []
    for text, generated in runs:
        total = _token_count(text) + sum(map(_token_count, generated))
        # Half a token more, so that rounding the share down gives the same sequences.
        generated_shares = {
            source["generated"]: f"{(_token_count(source) + 0.5) / total:.9f}"
            for source in generated
        }
        shares = {"recall": "0", **generated_shares}
        lines.append(
            f"statetrim calibrate {model} --text {shell_quoted(text.get('text'))} --tokens {total} "
            f"--length {text['length']} --skip {shell_quoted(text.get('skip'))} "
            + "".join(f"--{shell_quoted(kind)} {share} " for kind, share in shares.items())
            + f"--batch-size {shell_quoted(calibration.get('batch_size'))} --for {shell_quoted(methods)} "
            f"-o statistics.safetensors"
        )
    return lines


def _token_count(data: Mapping[str, Any]) -> int:
    """Tokens of a source; 0 where the lineage does not say."""
    count, length = data.get("count"), data.get("length")
    if type(count) is not int or type(length) is not int:
        return 0
    return count * length if min(count, length) > 0 and max(count, length) < 2**31 else 0


def _option_flags(flag: str, options: Mapping[str, Any]) -> str:
    return "".join(
        f" {flag} {shell_quoted(f'{name}={_option_value(value)}')}"
        for name, value in options.items()
    )


def _option_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
