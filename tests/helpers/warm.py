"""Import what every command needs, before a fork: it is paid for once, and starts no thread."""

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
    """A collection in a child would touch, and so copy, all that its parent has."""
    gc.collect()
    gc.freeze()
