"""All commands, in the order of the help page."""

COMMANDS: dict[str, tuple[str, str]] = {
    "trim": (
        "trimming.trim",
        "Cut a model, check it, measure what was lost, and report: everything in one command.",
    ),
    "inspect": (
        "measures.inspect",
        "Show a model's recurrent state, its size after a cut, which engines serve that shape, and "
        "how many sequences fit.",
    ),
    "calibrate": (
        "steps.calibrate",
        "Run text through a model and collect the statistics that selection needs.",
    ),
    "select": ("steps.select", "Choose which channels or heads to keep, and write them to a plan."),
    "prune": ("steps.prune", "Write the smaller checkpoint that a plan describes, shard by shard."),
    "refit": (
        "steps.prune",
        "Fit the output projections of a pruned checkpoint to the original's layer outputs.",
    ),
    "evaluate": (
        "measures.evaluate",
        "Score models and their original on the same samples, and report what was lost.",
    ),
    "analyze": (
        "measures.analyze",
        "Measure the effective rank of every state, or how much each layer loses when it is cut "
        "alone.",
    ),
    "recover": (
        "steps.recover",
        "Distil the original model into a pruned one, and write an ordinary checkpoint.",
    ),
    "verify": (
        "measures.verify",
        "Run cut models and their original in an engine, and compare its output with transformers.",
    ),
    "benchmark": ("measures.benchmark", "Compare the speed of models on this machine."),
    "snapshot": (
        "measures.snapshot",
        "Measure stored states: bytes against loss, by the code they are stored in.",
    ),
    "report": (
        "measures.report",
        "Write one page that shows what was cut, what it saves and what it costs.",
    ),
    "recipe": (
        "trimming.trim",
        "Print the options that produced a result, as a recipe for trim --recipe.",
    ),
    "doctor": (
        "doctor",
        "Show versions, devices, kernels and engines, which of them will be used, and any "
        "problems.",
    ),
    "demo": (
        "demo",
        "Cut a small model four ways on this machine, and show what each cut loses and whether "
        "to ship it.",
    ),
}
"""Name -> its module, which defines a function of this name, and what its help says."""
