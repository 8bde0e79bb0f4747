"""The demo: train a tiny model, then run the real commands on it, one after the other."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir
from pathlib import Path

import torch

from ..artifacts.scores import Scores
from ..defaults import KEY_METHOD
from ..progress import OnProgress
from ..serving.deployment import ship_verdicts
from ..storage.atomic import replacing
from ..storage.output import complete, output, refuse_existing
from ..version import __version__
from . import demo_model
from .demo_model import DOCUMENT, MOST_PAIRS

METHODS = {
    "rand": "channels chosen at random",
    "l1": "by their weights",
    KEY_METHOD: "by activations on text and on recall sequences",
}
CHOSEN = KEY_METHOD
KEEP = 16
DOCUMENTS = 2048  # more than the demo reads: enough for trim, to play with
TRIM = "trim MODEL --state 0.5 --text text.jsonl --tokens 32k -o SMALL"


QUIET = ("select", "prune")  # three times the same table would hide what matters
COMMANDS = (
    f"inspect MODEL --keep {KEEP}",
    f"calibrate MODEL --text text.jsonl --tokens {128 * DOCUMENT} --length {DOCUMENT} "
    f"--for {CHOSEN} -o statistics.safetensors",
    *(
        command
        for method in METHODS
        for command in (
            f"select MODEL --method {method} --keep {KEEP}"
            f"{' --statistics statistics.safetensors' if method == CHOSEN else ''} "
            f"-o {method}.json",
            f"prune MODEL {method}.json -o {method}",
        )
    ),
    f"evaluate {' '.join(METHODS)} --baseline MODEL --tasks mqar -o scores.json",
    f"analyze {CHOSEN} --baseline MODEL --text text.jsonl --tokens {64 * DOCUMENT} "
    f"--length {DOCUMENT} --every 8 --burn-in 32 -o analysis.json",
    f"report MODEL {CHOSEN} scores.json analysis.json -o report",
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
        say("# a model of 117 thousand parameters is trained to recall 16 pairs")
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
    page = out / "report" / "report.html"
    for line in (*_shown(out), *_next(out)):
        say(f"# {line}" if line else "")
    say(f"# {time.monotonic() - began:.0f} seconds; open {page}")
    return page


def _shown(out: Path) -> Iterator[str]:
    """What the figures say, in words."""
    scores = Scores.load(out / "scores.json")
    learned = f"pairs_{MOST_PAIRS}"
    yield ""
    yield "result: half of the state is removed; recall depends on which half"
    for name, how in {"MODEL": "the whole model", **METHODS}.items():
        share = scores.find(name, "mqar", learned).value
        yield f"  {name:<7} recalls {share:4.0%} of {MOST_PAIRS} pairs   ({how})"
    for judged in ship_verdicts(scores, [out / method for method in METHODS]):
        if judged.model == CHOSEN:
            yield f"the verdict on {CHOSEN}: {judged.outcome}: {judged.reason}"


def _next(out: Path) -> Iterator[str]:
    """What to do with it, in commands that work as they stand."""
    yield ""
    yield "what to do next:"
    yield f"  cd {shlex.quote(str(out))}"
    yield f"  statetrim {TRIM}"
    yield "which compares cuts of keys and values, and does all of the above in one command; then"
    yield "  statetrim trim YOUR-MODEL --state 0.5 --text YOUR-TEXT -o YOUR-SMALLER-MODEL"
