"""The pages that users read, and the blocks of code in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "AGENTS.md")),
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "deployments")),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced or indented block: its page, first line, language (empty: commands) and text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in some languages; `indented` are those without a fence."""
    name = page.relative_to(ROOT).as_posix()
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        found.append((fence.start(2), fence[1], fence[2]))
    without = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", "", m[0]), text, flags=re.M | re.S)
    for block in re.finditer(r"(?:^    [^\n]*\n)+", without, re.MULTILINE):
        found.append((block.start(), "indented", re.sub(r"^    ", "", block[0], flags=re.M)))
    return [
        Block(name, text[:start].count("\n") + 1, language, body)
        for start, language, body in found
        if language in languages
    ]


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of every page in some languages."""
    return [block for page in PAGES for block in blocks(page, *languages)]


def command_lines(block: Block) -> list[str]:
    """Its lines, continued ones joined."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


def words_of(line: str) -> list[str]:
    """A command without its comment, leading variables and folder."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    words[0] = words[0].rpartition("/")[2] or "."
    return words
