"""A recall prompt, answered by checkpoints as transformers serves them."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch

from ...runtime.loading import hide_gpu_kernels

KEYS = "0123456789+-*/=<>?!%#$&:;,"
VALUES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEXT_BETWEEN = "thestateisallthatthelayersofthismodelrememberofwhatcamebefore"


@dataclass(frozen=True)
class Prompt:
    """Pairs of a key and a value, then other text; each key asks for its value."""

    keys: str
    values: str  # the right answers, in the order of `keys`
    pairs: str
    text_between: str = TEXT_BETWEEN

    @property
    def text(self) -> str:
        """What comes before a key."""
        return self.pairs + self.text_between


def recall_prompt(seed: int = 0) -> Prompt:
    """A prompt with a pair for each of `KEYS`, in an order drawn with `seed`."""
    generator = random.Random(seed)
    values = "".join(generator.sample(VALUES, len(KEYS)))
    pairs = [key + value for key, value in zip(KEYS, values, strict=True)]
    generator.shuffle(pairs)
    return Prompt(KEYS, values, "".join(pairs))


def answers(checkpoint: Path, prompt: Prompt) -> str:
    """What the model at `checkpoint` answers to each key: one generated token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with hide_gpu_kernels():
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer([prompt.text + key for key in prompt.keys], return_tensors="pt")
    with torch.inference_mode():
        generated = model.generate(
            **ids, max_new_tokens=1, do_sample=False, pad_token_id=tokenizer.eos_token_id
        )
    return "".join(tokenizer.batch_decode(generated[:, -1:]))
