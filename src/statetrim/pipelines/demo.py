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
from ..storage.atomic import atomic_write
from ..storage.output import check_absent, is_complete, open_output
from ..version import __version__
from . import demo_model
from .demo_model import DOCUMENT_TOKENS, MAX_PAIRS

METHODS = {
    "rand": "channels chosen at random",
    "l1": "by their weights",
    KEY_METHOD: "by activations on text and on recall sequences",
}
RECOMMENDED_METHOD = KEY_METHOD
KEEP = 16
DOCUMENT_COUNT = 2048  # more than the demo reads: enough for trim, to play with
TRIM_COMMAND = "trim MODEL --state 0.5 --text text.jsonl --tokens 32k -o SMALL"


QUIET_COMMANDS = ("select", "prune")  # three times the same table would hide what matters
COMMANDS = (
    f"inspect MODEL --keep {KEEP}",
    f"calibrate MODEL --text text.jsonl --tokens {128 * DOCUMENT_TOKENS} --length {DOCUMENT_TOKENS} "
    f"--for {RECOMMENDED_METHOD} -o statistics.safetensors",
    *(
        command
        for method in METHODS
        for command in (
            f"select MODEL --method {method} --keep {KEEP}"
            f"{' --statistics statistics.safetensors' if method == RECOMMENDED_METHOD else ''} "
            f"-o {method}.json",
            f"prune MODEL {method}.json -o {method}",
        )
    ),
    f"evaluate {' '.join(METHODS)} --baseline MODEL --tasks mqar -o scores.json",
    f"analyze {RECOMMENDED_METHOD} --baseline MODEL --text text.jsonl --tokens {64 * DOCUMENT_TOKENS} "
    f"--length {DOCUMENT_TOKENS} --every 8 --burn-in 32 -o analysis.json",
    f"report MODEL {RECOMMENDED_METHOD} scores.json analysis.json -o report",
)


def run(
    out: Path,
    run_command: Callable[[list[str], bool], None],
    print_line: Callable[[str], None],
    training_progress: AbstractContextManager[OnProgress],
) -> Path:
    """Everything into `out`, which appears when all is done; the page to open.

    `command` runs a line of the command line, quietly or not, `say` shows one, and `training`
    shows how far the training is.
    """
    check_absent(out)
    record = {"format": "statetrim demo", "statetrim": __version__}
    torch.set_num_threads(1)  # the matrices are so small that threads only wait for each other
    start = time.monotonic()
    with open_output(out, "demo.json", record) as output_dir:
        print_line("# a model of 117 thousand parameters is trained to recall 16 pairs")
        model = output_dir.path / "MODEL"
        if not is_complete(model):
            with atomic_write(model) as model_path, training_progress as progress:
                demo_model.train(model_path, progress)
        demo_model.write_text(output_dir.path / "text.jsonl", DOCUMENT_COUNT)
        with chdir(output_dir.path):
            for line in COMMANDS:
                arguments = shlex.split(line)
                if "-o" not in arguments or not is_complete(
                    Path(arguments[arguments.index("-o") + 1])
                ):
                    print_line(f"$ statetrim {line}")
                    run_command(arguments, arguments[0] in QUIET_COMMANDS)
        output_dir.publish()
    page = out / "report" / "report.html"
    for line in (*_result_lines(out), *_next_step_lines(out)):
        print_line(f"# {line}" if line else "")
    print_line(f"# {time.monotonic() - start:.0f} seconds; open {page}")
    return page


def _result_lines(out: Path) -> Iterator[str]:
    """What the figures say, in words."""
    scores = Scores.load(out / "scores.json")
    metric = f"pairs_{MAX_PAIRS}"
    yield ""
    yield "result: half of the state is removed; recall depends on which half"
    for name, description in {"MODEL": "the whole model", **METHODS}.items():
        accuracy = scores.find(name, "mqar", metric).value
        yield f"  {name:<7} recalls {accuracy:4.0%} of {MAX_PAIRS} pairs   ({description})"
    for verdict in ship_verdicts(scores, [out / method for method in METHODS]):
        if verdict.model == RECOMMENDED_METHOD:
            yield f"the verdict on {RECOMMENDED_METHOD}: {verdict.outcome}: {verdict.reason}"


def _next_step_lines(out: Path) -> Iterator[str]:
    """What to do with it, in commands that work as they stand."""
    yield ""
    yield "what to do next:"
    yield f"  cd {shlex.quote(str(out))}"
    yield f"  statetrim {TRIM_COMMAND}"
    yield "which compares cuts of keys and values, and does all of the above in one command; then"
    yield "  statetrim trim YOUR-MODEL --state 0.5 --text YOUR-TEXT -o YOUR-SMALLER-MODEL"
