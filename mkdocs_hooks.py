"""Parts of the site that are generated from the source code.

`<!-- messages: checkpoint shard -->` becomes the error messages of those modules, and
`<!-- calculator -->` the form and scripts of the calculator. The committed
list between `<!-- api -->` and `<!-- end -->` becomes complete signatures and docstrings. The pages
of results/ and examples/ are added, and links to them follow.
"""

import ast
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SOURCE = ROOT / "src" / "statetrim"
MIN_WORDS = 4
"""Shorter error messages are not listed: "… is missing" does not help without the name."""


def on_files(files: Any, config: Any) -> Any:
    """Add reports, examples and two plugins, which are outside docs/, and the script of the
    calculator."""
    from mkdocs.structure.files import File

    sys.path.append(str(ROOT / "tools"))
    from write_calculator import script

    files.append(File.generated(config, "calculator/calculator.js", content=script()))
    for folder in ("results", "examples", "plugins/llamacpp", "plugins/mlx"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                name = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Hook of mkdocs: fill in the generated parts of a page."""
    site_path = page.file.src_uri
    markdown = re.sub(
        r"\]\((\.\./[^)]+)\)", lambda match: f"]({_on_the_site(site_path, match[1])})", markdown
    )
    if site_path.startswith("results/"):
        page.meta["search"] = {"exclude": True}  # the guides answer first
    # Wide pictures are small on a phone: link each to its file, as code hosts do.
    markdown = re.sub(r"^!\[[^]]*\]\(([^)]+\.png)\)$", r"[\g<0>](\1)", markdown, flags=re.M)
    form = (ROOT / "docs" / "calculator" / "form.html").read_text(encoding="utf-8")
    markdown = markdown.replace("<!-- calculator -->", form)
    markdown = re.sub(r"<!-- api -->.*?<!-- end -->", lambda _: _api(), markdown, flags=re.DOTALL)
    return re.sub(r"<!-- messages: (.*?) -->", lambda match: _messages(match[1].split()), markdown)


def _on_the_site(site_path: str, link: str) -> str:
    """A link between docs/, results/ and examples/ of the repository, where the site has docs/ at
    its root."""
    is_guide = (ROOT / "docs" / site_path).exists()
    folder = posixpath.dirname(f"docs/{site_path}" if is_guide else site_path)
    target = posixpath.normpath(posixpath.join(folder, link)).removeprefix("docs/")
    return posixpath.relpath(target, posixpath.dirname(site_path) or ".")


def _api() -> str:
    """Every public name: a directive of mkdocstrings, or for a function that takes its options by
    name, which mkdocstrings would show as it is written, what `inspect.signature` gives."""
    import statetrim
    from statetrim.options import OptionsFunction

    names = [name for name in statetrim.__all__ if name != "__version__"]
    functions = [name for name in names if name[0].islower()]
    classes = [name for name in names if not name[0].islower()]

    def described(name: str) -> str:
        value = getattr(statetrim, name)
        if isinstance(value, OptionsFunction):
            return _options_function(name, value)
        return f"::: {value.__module__}.{value.__qualname__}"

    return "\n\n".join(
        ["## Functions", *map(described, functions), "## Classes", *map(described, classes)]
    )


def _options_function(name: str, function: Any) -> str:
    """The signature, the docstring, and a table of the options with their help."""
    from dataclasses import fields

    from statetrim.options import option_info

    signature = inspect.signature(function)
    parameters, was_positional = [], True
    for parameter in signature.parameters.values():
        is_positional = parameter.kind is not parameter.KEYWORD_ONLY
        if was_positional and not is_positional:
            parameters.append("*")
        was_positional = is_positional
        parameters.append(_parameter_text(parameter))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parameters.append("/")
    lines = ",\n".join(f"    {parameter}" for parameter in parameters)
    returns = inspect.formatannotation(signature.return_annotation)
    rows = []
    for item in fields(function.options_class):
        text = _escaped(option_info(item).help)
        rows.append(f"| `{item.name}` | {text} |")
    parts = [
        f"### `{name}` {{: #{function.__module__}.{name} }}",
        f"```python\n{name}(\n{lines},\n) -> {_without_modules(returns)}\n```",
        inspect.getdoc(function) or "",
        "\n".join(["| option | |", "|---|---|", *rows]),
    ]
    return "\n\n".join(parts)


def _parameter_text(parameter: inspect.Parameter) -> str:
    annotation = inspect.formatannotation(parameter.annotation).strip("'")
    text = f"{parameter.name}: {_without_modules(annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = "..." if callable(parameter.default) else repr(parameter.default)
    return f"{text} = {default}"


def _without_modules(annotation: str) -> str:
    return re.sub(r"(?<!\w)(?:\w+\.)+(?=\w)", "", annotation)


def _messages(modules: list[str]) -> str:
    """A list of the error messages of the modules."""
    texts = {text for module in modules for text in messages(SOURCE / f"{module}.py")}
    shown = sorted(text for text in texts if len(re.findall(r"\w{2,}", text)) >= MIN_WORDS)
    return "\n".join(f"- {_escaped(text)}" for text in shown)


def messages(path: Path) -> Iterator[str]:
    """The text of every StatetrimError in a module, also of translated errors, with … for inserted
    values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "StatetrimError",
            "errors_of",
        ):
            text = "".join(_pieces(node.args[0]))
            if text.strip("… "):  # messages that consist of an inserted value only are left out
                yield text


def _pieces(expression: ast.expr) -> Iterator[str]:
    if isinstance(expression, ast.Constant):
        yield str(expression.value)
    elif isinstance(expression, ast.JoinedStr):
        for value in expression.values:
            yield from _pieces(value)
    elif isinstance(expression, ast.BinOp):
        yield from _pieces(expression.left)
        yield from _pieces(expression.right)
    else:
        yield "…"


def _escaped(text: str) -> str:
    return re.sub(r"([*_`\[\]<>|])", r"\\\1", text)
