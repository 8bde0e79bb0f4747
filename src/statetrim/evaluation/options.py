"""The options of `evaluate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import option_checks as checks
from ..common_options import BATCH_SIZE_HELP, ProgressOptions, parse_named_values
from ..errors import StatetrimError
from ..options import option, options, output_option
from ..runtime.placement import Placement

if TYPE_CHECKING:
    from ..runtime.corpus import Corpus
    from ..runtime.states import StateStorage
    from ..storage.models import ModelLike
    from .runner import OriginalResults


@options
class EvaluateOptions(Placement, ProgressOptions):
    """The options of `evaluate`."""

    baseline: "ModelLike" = option(help="The original checkpoint.")
    out: str | Path | None = output_option(
        default=None, help="File to write the scores to.", required=True
    )
    tasks: Sequence[str] = option(
        default=("text", "mqar"),
        help="text, mqar, agreement, or tasks and groups of lm-eval, separated by commas.",
        check=checks.tasks,
    )
    data: str | Path | None = option(
        default=None,
        help="Directory with definitions for lm-eval, or rows of its tasks in TASK/test.jsonl; "
        "by default rows come from the hub.",
        parse=Path,
    )
    confirm_run_unsafe_code: bool = option(
        default=False, help="Run tasks that execute what the model writes, such as humaneval."
    )
    text: "str | Path | Corpus | None" = option(
        default=None, help="Your own text, for 'text' and 'agreement'.", check=checks.text_source
    )
    skip: int | str = option(
        default=0,
        default_text="0",
        help="Tokens to skip at the start of that text.",
        check=checks.token_count,
    )
    limit: int | None = option(
        default=None, help="Samples per task, at most; 128, and all of a dataset, by default."
    )
    all_samples: bool = option(
        default=False, help="Take all of them, even if fewer decide every verdict."
    )
    control: bool = option(
        default=True, help="Do not measure random cuts for comparison.", flags=("--no-control",)
    )
    batch_size: int = option(default=8, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    engine: Literal["hf", "vllm"] = option(
        default="hf",
        help="hf (transformers), or vllm if it is installed in this environment.",
        check=checks.one_of("hf", "vllm"),
    )
    engine_options: Mapping[str, Any] | None = option(
        default=None,
        help="NAME=VALUE for vLLM, such as tensor_parallel_size=2, dtype=bfloat16.",
        flags=("--engine-option",),
        parse=parse_named_values,
    )
    state_dtype: str = option(
        default="float32",
        help="Store the states of all models except the baseline in bfloat16, float16, "
        "float8_e4m3fn or int8, rounded after every decoded token and every piece of a prompt.",
    )
    state_piece: int = option(
        default=64, help="Tokens per piece of a prompt; 1 rounds after every token."
    )
    state_stochastic: bool = option(default=False, help="Use stochastic rounding.")
    recall_seed: int = option(
        default=0, help="Seed of the sequences of mqar.", flags=(), check=checks.seed
    )
    original: "OriginalResults | None" = option(
        default=None,
        help="What an earlier call kept of the baseline, on the same tasks and samples.",
        flags=(),
        in_record=False,
    )

    def check(self) -> None:
        """Raise StatetrimError for options that do not go together."""
        super().check()
        if self.engine_options and not self.in_vllm:
            raise StatetrimError("engine options are for vLLM; take --engine vllm too")
        if self.state_dtype != "float32" and self.in_vllm:
            raise StatetrimError(
                "--state-dtype rounds in transformers; vLLM has its own: "
                "--engine-option mamba_ssm_cache_dtype=bfloat16"
            )
        if self.limit is not None and self.limit < 2:
            raise StatetrimError(
                f"a limit of {self.limit} leaves nothing to compare; take 2 samples or more"
            )

    @property
    def storage(self) -> "StateStorage":
        """How states are stored, of all models except the baseline."""
        from ..runtime.states import StateStorage

        return StateStorage(self.state_dtype, self.state_piece, self.state_stochastic)

    @property
    def in_vllm(self) -> bool:
        """Whether lm-eval runs the models in vLLM, not in transformers."""
        return self.engine != "hf"

    @property
    def vllm_options(self) -> dict[str, Any]:
        """Options of vLLM; a device map spreads it over all GPUs, unless they say otherwise."""
        chosen = dict(self.engine_options or {})
        if self.device_map:
            chosen.setdefault("tensor_parallel_size", self.num_gpus)
        return chosen
