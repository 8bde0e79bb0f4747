"""What the pages of docs/ show in code: commands, Python and YAML, each with its page and line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROGRAMS = (
    "curl", "docker", "git", "hf", "just", "llama-[a-z]+", r"mlx_lm[.\w]*", "mkdocs", "pip",
    "python", "statetrim", "torchrun", "uv", "vllm",
)  # fmt: skip
"""What begins a command where a page does not say that it shows a shell."""
SHELLS = ("bash", "sh", "console")
_VARIABLES = r"(?:[A-Z_]+=\S+ )*"
_COMMAND = re.compile(rf"{_VARIABLES}(?:{'|'.join(PROGRAMS)})(?: |$)")
_PYTHON = re.compile(r"(?:import|from|def) |(?:\w+ = )?st\.\w+\(")


@dataclass(frozen=True)
class Shown:
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line}: {' '.join(self.text.split())[:160]}"


@dataclass(frozen=True)
class Command(Shown):
    in_a_sentence: bool = False  # which may name a command without all that it needs

    @property
    def words(self) -> str:
        """Without the variables of the environment before it."""
        return re.sub(rf"^{_VARIABLES}", "", self.text)


@dataclass(frozen=True)
class Block(Shown):
    language: str


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@cache
def blocks(path: Path) -> list[Block]:
    """Fenced blocks, and what Markdown shows as code because it is indented."""
    found: list[Block] = []
    taken: list[str] = []
    fence: re.Match[str] | None = None
    start, blank = 0, True
    for number, line in enumerate([*_lines(path), ""], start=1):
        mark = re.match(r" *```(\w*)", line)
        if fence is not None:
            if mark:
                found.append(Block(path.name, start, "\n".join(taken), fence[1]))
                fence, taken = None, []
            else:
                indent = len(fence[0]) - len(fence[0].lstrip())
                taken.append(line[indent:] if not line[:indent].strip() else line)
        elif mark:
            fence, start = mark, number + 1
        elif line.startswith("    ") and (taken or blank):
            start = start if taken else number
            taken.append(line.strip())
        elif taken:
            found.append(Block(path.name, start, "\n".join(taken), "indented"))
            taken = []
        blank = not line.strip()
    assert fence is None, f"{path.name}: a block begins at line {start} and does not end"
    return found


def _statements(text: str, values: dict[str, str]) -> Iterator[str]:
    """The command of a line of a shell, with what lines before it set; of a loop, the first."""
    if given := re.fullmatch(r"(\w+)=(?:\"([^\"]*)\"|(\S*))", text):
        values[given[1]] = given[2] or given[3] or ""
        return
    if loop := re.match(r"for (\w+) in ", text):
        values.pop(loop[1], None)
    for name, value in values.items():
        text = re.sub(rf"\${name}\b", value, text)
    if loop := re.match(r"for (\w+) in ([^;]*); do\b", text):
        values[loop[1]] = loop[2].split()[0]
        text = text.replace(f"${loop[1]}", values[loop[1]])[len(loop[0]) :]
    text = re.sub(r";? *\bdone$", "", text).strip()
    if text:
        yield text


def _in_blocks(path: Path) -> Iterator[Command]:
    for block in blocks(path):
        shell = block.language in SHELLS
        if not shell and block.language not in ("", "indented"):
            continue
        line = block.line
        values: dict[str, str] = {}
        for joined in re.split(r"(?<!\\)\n", block.text):
            text = re.sub(r"\s*\\\n\s*", " ", joined).strip()
            asked = text.startswith("$ ")
            text = re.sub(r"(?:^|\s+)# .*", "", text.removeprefix("$ "))
            said = asked if block.language == "console" else shell or _COMMAND.match(text)
            for part in _statements(text, values) if text and said else ():
                yield Command(path.name, line, part)
            line += joined.count("\n") + 1


def _in_sentences(path: Path) -> Iterator[Command]:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    for span in re.finditer(r"`([^`]+)`", text):
        words = " ".join(span[1].split())
        if _COMMAND.match(words):
            line = text[: span.start()].count("\n") + 1
            yield Command(path.name, line, words, in_a_sentence=True)


def commands(path: Path) -> list[Command]:
    """In the order of the page."""
    return sorted([*_in_blocks(path), *_in_sentences(path)], key=lambda found: found.line)


def python(path: Path) -> list[Block]:
    return [
        block
        for block in blocks(path)
        if block.language == "python"
        or (block.language in ("", "indented") and _PYTHON.match(block.text))
    ]
