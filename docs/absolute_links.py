"""Make the links of README.md absolute, for the package index, which shows no other file.

    python docs/absolute_links.py https://github.com/OWNER/NAME TAG

The workflow of a release calls it before it builds, because only it knows the address.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def absolute(text: str, address: str, tag: str) -> str:
    """The text with links to files of the repository at a tag, and pictures as they are served."""

    def rewritten(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        if "://" in target or target.startswith("#"):
            return link[0]
        kind = "raw" if mark else "blob"
        return f"{mark}[{label}]({address}/{kind}/{tag}/{target})"

    return re.sub(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)", rewritten, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
