"""The demo: train a tiny model, then run the real commands on it, one after the other."""

import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, chdir
from pathlib import Path

import torch

from ..progress import OnProgress
from ..storage.atomic import replacing
from ..storage.output import complete, output, refuse_existing
from ..version import __version__
from . import demo_model
from .demo_model import DOCUMENT

METHODS = ("rand", "l1", "drrqr")
KEEP = 16
DOCUMENTS = 2048  # more than the demo reads: enough for trim, to play with

QUIET = ("select", "prune")  # three times the same table would hide what matters
COMMANDS = (
    f"inspect MODEL --keep {KEEP}",
    f"calibrate MODEL --text text.jsonl --tokens {128 * DOCUMENT} --length {DOCUMENT} --for drrqr "
    f"-o statistics.safetensors",
    *(
        command
        for method in METHODS
        for command in (
            f"select MODEL --method {method} --keep {KEEP}"
            f"{' --statistics statistics.safetensors' if method == 'drrqr' else ''} "
            f"-o {method}.json",
            f"prune MODEL {method}.json -o {method}",
        )
    ),
    f"evaluate {' '.join(METHODS)} --baseline MODEL --tasks mqar -o scores.json",
    f"analyze drrqr --baseline MODEL --text text.jsonl --tokens {64 * DOCUMENT} "
    f"--length {DOCUMENT} --every 8 --burn-in 32 -o analysis.json",
    "report MODEL drrqr scores.json analysis.json -o report",
)


def run(
    out: Path,
    command: Callable[[list[str], bool], None],
    say: Callable[[str], None],
    training: AbstractContextManager[OnProgress],
) -> Path:
    """Everything into `out`, which appears when all is done; the page to open.

    `command` runs a line of the command line, quietly or not, `say` shows one, and `training`
    shows how far the training is.
    """
    refuse_existing(out)
    record = {"format": "statetrim demo", "statetrim": __version__}
    torch.set_num_threads(1)  # the matrices are so small that threads only wait for each other
    began = time.monotonic()
    with output(out, "demo.json", record) as work:
        say("# a model of 117 thousand parameters learns to recall 16 pairs, from nothing")
        model = work.path / "MODEL"
        if not complete(model):
            with replacing(model) as trained, training as progress:
                demo_model.train(trained, progress)
        demo_model.write_text(work.path / "text.jsonl", DOCUMENTS)
        with chdir(work.path):
            for line in COMMANDS:
                words = shlex.split(line)
                if "-o" not in words or not complete(Path(words[words.index("-o") + 1])):
                    say(f"$ statetrim {line}")
                    command(words, words[0] in QUIET)
        work.publish()
    say(f"# {time.monotonic() - began:.0f} seconds; open {out / 'report' / 'report.html'}")
    return out / "report" / "report.html"
