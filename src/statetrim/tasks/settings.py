"""The settings of a task in words."""

import re

_PAIRS = re.compile(r"pairs_(\d+)(?:_in_(\d+))?")


def setting_text(task: str, metric: str) -> str:
    """A setting of a task, for people, such as "63 pairs" for `pairs_63` of mqar; other metrics by
    their name."""
    match = _PAIRS.fullmatch(metric) if task == "mqar" else None
    if match is None:
        return metric
    return f"{match[1]} pairs" + (f", {match[2]} tokens apart" if match[2] else "")
