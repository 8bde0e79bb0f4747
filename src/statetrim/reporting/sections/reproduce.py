"""The commands that give the same plan and the same bytes again."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..document import Block, Command, Missing, Text
from ..findings import Findings
from ..names import names, quoted
from ..records import brief, dicts, mapping

TITLE = "How to reproduce it"


def blocks(found: Findings) -> Iterator[Block]:
    plan = found.plan
    if plan is None:
        yield Missing("Without a plan there is nothing to say how it came about.")
        return
    words = names(found)
    calibrated = mapping(plan.lineage.get("statistics"))
    lines = []
    methods = ",".join(m for m in (plan.method, plan.value_method) if m and m != "none")
    for data in dicts(calibrated.get("data")):
        count, length = data.get("count"), data.get("length")
        if type(count) is int and type(length) is int and max(count, length) < 2**63:
            lines.append(
                f"statetrim calibrate {words.model} --text {quoted(data.get('text'))} --tokens "
                f"{count * length} --length {length} --skip {quoted(data.get('skip'))} "
                f"--batch-size {quoted(calibrated.get('batch_size'))} --for {quoted(methods)} "
                f"-o statistics.safetensors"
            )
    choice = ""
    if plan.method != "none":
        choice += f" --keep {quoted(plan.requested)} --method {quoted(plan.method)}"
        choice += _options("--option", plan.options)
    if plan.requested_values is not None:
        choice += f" --keep-values {quoted(plan.requested_values)}"
        choice += f" --value-method {quoted(plan.value_method)}"
        choice += _options("--value-option", plan.value_options)
    statistics = " --statistics statistics.safetensors" if calibrated else ""
    lines.append(
        f"statetrim select {words.model}{choice} --seed {plan.seed}{statistics} -o plan.json"
    )
    lines.append(f"statetrim prune {words.model} plan.json -o SMALL")
    yield Text(
        f"The original checkpoint has the digest {brief(plan.lineage.get('source'))}. The same "
        f"model, text and options give the same plan, and the same plan the same bytes."
    )
    yield Command(lines)


def _options(flag: str, options: Mapping[str, Any]) -> str:
    return "".join(
        f" {flag} {quoted(f'{name}={_option(value)}')}" for name, value in options.items()
    )


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
