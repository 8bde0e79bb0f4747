"""Which packages a module may import, and which imports a command leaves out."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from helpers.cases import load_cases

SOURCE = Path(__file__).parents[1] / "src" / "statetrim"
LIGHT = {"torch", "safetensors", "huggingface_hub", "statetrim"}
HEAVY_ALLOWED = load_cases("heavy-imports")
"""Module -> packages that it alone may import; drivers are run by the engine's own Python."""


@cache
def modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(SOURCE).with_suffix("")): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
    }


def imported(tree: ast.Module) -> set[str]:
    """Top-level package names and, for relative imports, the module's own name."""
    packages = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                names = [module] if module else [alias.name for alias in node.names]
                packages |= {f".{name.partition('.')[0]}" for name in names}
            else:
                packages.add(module.partition(".")[0])
    return packages


def test_families_and_methods_read_no_model() -> None:
    for name, tree in modules().items():
        if name.startswith(("families/", "methods/")):
            assert not imported(tree) & {"transformers", "fla", ".storage"}, name


def test_surgery_needs_only_torch_and_safetensors() -> None:
    for name, tree in modules().items():
        if name.startswith("portable/"):
            continue
        outside = {
            module
            for module in imported(tree)
            if not module.startswith(".") and module not in sys.stdlib_module_names
        }
        folder = name.partition("/")[0]
        allowed = {*HEAVY_ALLOWED.get(folder, ()), *HEAVY_ALLOWED.get(name, ())}
        assert outside <= LIGHT | allowed, f"{name} imports {outside - LIGHT}"


MAIN = """
from statetrim.commands import main
try: main()
except SystemExit as stop: assert not stop.code
"""
HEAVY = ("transformers", "fla", "triton", "lm_eval", "datasets", "matplotlib", "jinja2")
OF_HELP = ("commands", "errors", "__init__")
NOT_FOR_HELP = {f"statetrim.{path.stem}" for path in SOURCE.iterdir() if path.stem not in OF_HELP}


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        ("import statetrim", (*HEAVY, "torch")),
        ("import statetrim.artifacts.scores", (*HEAVY, "msgspec")),
        (
            "import sys; sys.argv = ['statetrim', '--help']" + MAIN,
            (*HEAVY, *LIGHT - {"statetrim"}, *NOT_FOR_HELP),
        ),
        (
            "import statetrim; statetrim.select, statetrim.prune, statetrim.inspect\n"
            "import sys; sys.argv = ['statetrim', 'inspect', 'config.json']" + MAIN,
            HEAVY,
        ),
    ],
)
def test_heavy_packages_stay_out(code: str, left_out: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "qwen3_next", "num_hidden_layers": 48}')
    check = f"\nimport sys; print({set(left_out)} & set(sys.modules))"
    command = [sys.executable, "-c", code + check]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "set()"


def test_no_module_has_the_name_of_a_public_function() -> None:
    import statetrim

    clash = set(statetrim.__all__) & {path.stem for path in SOURCE.glob("*.py")}
    assert not clash, f"importing the module would replace the function: {clash}"


def test_the_map_names_every_module() -> None:
    """The list of modules in CONTRIBUTING.md is complete and names no module that is gone."""
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    section = text[text.index("## Where things live") :].partition("\nAround the package")[0]
    named = set(re.findall(r"^(\w+)(?:/|\.py)|(?<=  )(\w+)\.py", section, flags=re.M))
    named = {first or second for first, second in named}
    existing = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    existing -= {"__init__", "__main__", "__pycache__"}
    assert named == existing, (
        f"not on the map: {existing - named}; on it, but gone: {named - existing}"
    )


def test_each_command_is_where_the_index_says() -> None:
    """A file of its name, or of the command that it belongs to (refit: prune, recipe: trim)."""
    from statetrim.commands.index import COMMANDS

    for name, (module, _) in COMMANDS.items():
        file = SOURCE / "commands" / f"{module.replace('.', '/')}.py"
        assert f"\ndef {name}(" in file.read_text(), name
    assert len({module for module, _ in COMMANDS.values()}) >= len(COMMANDS) - 2
