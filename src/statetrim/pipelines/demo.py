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
from ..storage.output import check_absent, is_complete, open_output, remove_empty_partial
from ..version import __version__
from . import demo_model
from .demo_model import DOCUMENT_TOKENS, MAX_PAIRS

METHODS = {
    "rand": "channels chosen at random",
    "l1": "by their weights",
    KEY_METHOD: "by activations on text and on recall sequences",
}
RECOMMENDED_METHOD = KEY_METHOD
KEEP = 16  # key channels per head, of 32
DOCUMENT_COUNT = 2048  # more than the demo reads, so that TRIM_COMMAND has enough text
TRIM_COMMAND = "trim MODEL --to 0.5 --text text.jsonl --tokens 32k -o SMALL"
QUIET_COMMANDS = ("select", "prune")  # run once per method; the tables are alike


def _commands() -> Iterator[str]:
    """The command lines of the demo, without `statetrim`, in order."""
    yield f"inspect MODEL --to {KEEP}x100%"
    yield (
        f"calibrate MODEL {_text_options(128)} --for {RECOMMENDED_METHOD} -o statistics.safetensors"
    )
    for method in METHODS:
        statistics = "--statistics statistics.safetensors " if method == RECOMMENDED_METHOD else ""
        yield f"select MODEL --method {method} --to {KEEP}x100% {statistics}-o {method}.json"
        yield f"prune MODEL {method}.json -o {method}"
    yield f"evaluate {' '.join(METHODS)} --baseline MODEL --tasks mqar -o scores.json"
    yield (
        f"analyze {RECOMMENDED_METHOD} --baseline MODEL {_text_options(64)} --every 8 --burn-in 32 "
        "-o analysis.json"
    )
    yield f"report MODEL {RECOMMENDED_METHOD} scores.json analysis.json -o report"


def _text_options(documents: int) -> str:
    """Options of a command that make it read the first `documents` of text.jsonl."""
    tokens = documents * DOCUMENT_TOKENS
    return f"--text text.jsonl --tokens {tokens} --length {DOCUMENT_TOKENS}"


def run(
    out: Path,
    run_command: Callable[[list[str], bool], None],
    print_line: Callable[[str], None],
    training_progress: AbstractContextManager[OnProgress],
) -> Path:
    """Run the demo into the directory `out` and return the path of its HTML report.

    `out` appears when everything is done; an interrupted demo resumes. `run_command` gets the
    arguments of a statetrim command and whether it is quiet, `print_line` shows a line, and
    `training_progress` reports the steps of training. Commands run in the working directory
    `OUT.partial`, and torch keeps one thread afterwards. Raises StatetrimError if `out` exists.
    """
    check_absent(out)
    record = {"format": "statetrim demo", "statetrim": __version__}
    torch.set_num_threads(1)  # on matrices this small more threads are slower
    start = time.monotonic()
    with open_output(out, "demo.json", record) as output_dir:
        print_line("# a model of 117 thousand parameters is trained to recall 16 pairs")
        model = output_dir.path / "MODEL"
        remove_empty_partial(model)
        if not is_complete(model):
            with atomic_write(model) as model_path, training_progress as progress:
                demo_model.train(model_path, progress)
        demo_model.write_text(output_dir.path / "text.jsonl", DOCUMENT_COUNT)
        with chdir(output_dir.path):
            for line in _commands():
                arguments = shlex.split(line)
                if "-o" in arguments:
                    artifact = Path(arguments[arguments.index("-o") + 1])
                    remove_empty_partial(artifact)
                    if is_complete(artifact):
                        continue
                print_line(f"$ statetrim {line}")
                run_command(arguments, arguments[0] in QUIET_COMMANDS)
        output_dir.publish()
    page = out / "report" / "report.html"
    for line in (*_result_lines(out), *_next_step_lines(out)):
        print_line(f"# {line}" if line else "")
    print_line(f"# {time.monotonic() - start:.0f} seconds; open {page}")
    return page


def _result_lines(out: Path) -> Iterator[str]:
    """Recall of the original and of each cut, and the verdict on the recommended method."""
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
    """Commands to try next; they can be copied as written."""
    yield ""
    yield "what to do next:"
    yield f"  cd {shlex.quote(str(out))}"
    yield f"  statetrim {TRIM_COMMAND}"
    yield "which compares cuts of keys and values, and does all of the above in one command; then"
    yield "  statetrim trim YOUR-MODEL --to 0.5 --text YOUR-TEXT -o YOUR-SMALLER-MODEL"
