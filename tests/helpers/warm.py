"""Imports everything that commands need, once before forking; the imports start no threads."""

import gc
import importlib
import pkgutil

import statetrim

LIBRARIES = (
    "accelerate", "datasets", "peft", "torch", "torch._dynamo", "transformers",
    "transformers.trainer", "transformers.models.auto.modeling_auto", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "pydantic.type_adapter", "rich.progress", "rich.table",
)  # fmt: skip


def modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(statetrim.__path__, "statetrim.")]
    names = [name for name in names if ".drivers." not in name and not name.endswith("__main__")]
    return [*LIBRARIES, *names]


def import_all() -> None:
    for name in modules():
        importlib.import_module(name)


def freeze_garbage_collector() -> None:
    """Keep garbage collection in forked children from touching, and so copying, shared memory."""
    gc.collect()
    gc.freeze()
