"""Code in the pages of docs/, results/ and examples/: commands, Python and YAML, each with its page
and line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for folder in ("docs", "results", "examples")
    for page in sorted((ROOT / folder).glob("*.md"))
    if page.name != "README.md"  # of results/, whose commands tests/test_docs.py checks
]
PROGRAMS = (
    "curl", "docker", "git", "hf", "just", "llama-[a-z]+", r"mlx_lm[.\w]*", "mkdocs", "pip",
    "python", "sbatch", "statetrim", "torchrun", "uv", "vllm",
)  # fmt: skip
"""First words by which a command is recognized in a block without a shell language."""
SHELLS = ("bash", "sh", "console")
_VARIABLES = r"(?:[A-Z_]+=\S+ )*"
_COMMAND = re.compile(rf"{_VARIABLES}(?:{'|'.join(PROGRAMS)})(?: |$)")
_PYTHON = re.compile(r"(?:import|from|def) |(?:\w+ = )?st\.\w+\(")


@dataclass(frozen=True)
class CodeSnippet:
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {' '.join(self.text.split())[:160]}"


@dataclass(frozen=True)
class Command(CodeSnippet):
    inline: bool = False  # in a sentence, where a command may lack required arguments

    @property
    def words(self) -> str:
        """The command without leading environment variables."""
        return re.sub(rf"^{_VARIABLES}", "", self.text)


@dataclass(frozen=True)
class Block(CodeSnippet):
    language: str


@cache
def blocks(path: Path) -> list[Block]:
    """The fenced and the indented code blocks of a page."""
    code_blocks: list[Block] = []
    block_lines: list[str] = []
    fence: re.Match[str] | None = None
    start, blank = 0, True
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], start=1):
        mark = re.match(r" *```(\w*)", line)
        if fence is not None:
            if mark:
                code_blocks.append(Block(path.name, start, "\n".join(block_lines), fence[1]))
                fence, block_lines = None, []
            else:
                indent = len(fence[0]) - len(fence[0].lstrip())
                block_lines.append(line[indent:] if not line[:indent].strip() else line)
        elif mark:
            fence, start = mark, number + 1
        elif line.startswith("    ") and (block_lines or blank):
            start = start if block_lines else number
            block_lines.append(line.strip())
        elif block_lines:
            code_blocks.append(Block(path.name, start, "\n".join(block_lines), "indented"))
            block_lines = []
        blank = not line.strip()
    assert fence is None, f"{path.name}: a block begins at line {start} and does not end"
    return code_blocks


def _statements(text: str, values: dict[str, str]) -> Iterator[str]:
    """The command in a line of shell, with variables substituted; of a loop, its first iteration.
    `values` holds the variables and is updated by assignments."""
    if assignment := re.fullmatch(r"(\w+)=(?:\"([^\"]*)\"|(\S*))", text):
        values[assignment[1]] = assignment[2] or assignment[3] or ""
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


def _in_blocks(path: Path, languages: tuple[str, ...] | None = None) -> Iterator[Command]:
    for block in blocks(path):
        if languages and block.language not in languages:
            continue
        shell = block.language in SHELLS
        if not shell and block.language not in ("", "indented"):
            continue
        line = block.line
        values: dict[str, str] = {}
        for joined_lines in re.split(r"(?<!\\)\n", block.text):
            text = re.sub(r"\s*\\\n\s*", " ", joined_lines).strip()
            has_prompt = text.startswith("$ ")
            text = re.sub(r"(?:^|\s+)# .*", "", text.removeprefix("$ "))
            is_command = (
                has_prompt if block.language == "console" else shell or _COMMAND.match(text)
            )
            for statement in _statements(text, values) if text and is_command else ():
                yield Command(path.name, line, statement)
            line += joined_lines.count("\n") + 1


def _in_sentences(path: Path) -> Iterator[Command]:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    for span in re.finditer(r"`([^`]+)`", text):
        words = " ".join(span[1].split())
        if _COMMAND.match(words):
            line = text[: span.start()].count("\n") + 1
            yield Command(path.name, line, words, inline=True)


def script_commands(path: Path) -> list[str]:
    """The commands of a shell script, one per line or continued by a backslash."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text(encoding="utf-8"))
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "set ", "export "))]


def block_commands(path: Path, language: str = "bash") -> list[str]:
    """The commands in the blocks of a language."""
    return [command.text for command in _in_blocks(path, (language,))]


def code(path: Path, language: str) -> list[str]:
    """The texts of the blocks of a language."""
    return [block.text for block in blocks(path) if block.language == language]


def commands(path: Path) -> list[Command]:
    """All commands of a page, in its order."""
    return sorted([*_in_blocks(path), *_in_sentences(path)], key=lambda command: command.line)


def python(path: Path) -> list[Block]:
    return [
        block
        for block in blocks(path)
        if block.language == "python"
        or (block.language in ("", "indented") and _PYTHON.match(block.text))
    ]
