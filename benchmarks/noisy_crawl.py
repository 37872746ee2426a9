"""Corpora as a crawl gives them, of real texts whose kinds are known: clean, noise, near-copies.

The clean texts are those of `benchmarks.debian_texts`; the noise comes from the files of the same
packages and of this machine: copyright files, changelogs, lists of files, manual pages in other
languages, code, links, logs. Texts are divided into folds by a hash. A fold gives one corpus of
each setting (docs/evidence.md): `SETTING-FOLD.parquet` are the candidates, `-held-out` what models
are scored on, `-examples` texts like those, for a score. The same files and seeds give the same
bytes.

    python -m benchmarks.debian_texts runs/debian-corpus --work runs/apt
    python -m benchmarks.noisy_crawl runs/debian-corpus runs/noisy-crawl --work runs/apt
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import site
import subprocess
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.debian_texts import GROFF, SCHEMA, Apt, Document
from datamask.runs.files import write_parquet

SETTINGS = ("A", "B", "B0", "C")
DOCUMENTS = 8000
CLEAN = {"descriptions": 4700, "documentation": 2000, "manuals": 780, "docstrings": 520}
"""Clean texts of each domain for 8,000 documents."""
TARGET = {"manuals": 480, "docstrings": 320}
"""The domains that are the target in A, and what is needed of them besides, for examples and to be
held out."""
NOISE = {
    "licence": 400,
    "changelog": 400,
    "lists": 460,
    "foreign": 500,
    "code": 400,
    "navigation": 400,
    "logs": 40,
}
HELD_OUT, EXAMPLES = 500, 300
COPIED, COPIES, GARBLED = 60, 960, 300
"""Texts that have near-copies, their copies, and garbled texts, for 8,000 documents."""
CHARACTERS = (200, 400, 2500, 4000)
"""Of a piece of noise: least, between which a length is drawn, most."""
PIECES = {"licence": 10, "navigation": 40, "lists": 40, "logs": 1000}
FEWER_PIECES = 6
"""Pieces that are kept of a file, by kind and otherwise."""
MOST_FILES = {"navigation": 4500}
FEWER_FILES = 1500
"""Most files of a kind of noise, chosen by a hash of the name."""
FOREIGN = ("manpages-de", "manpages-es", "manpages-fr", "manpages-pl")

BEFORE = ("", "Home | About | Contact | Search\n\n", "Skip to main content\n\nUpdated 20{}\n\n")
AFTER = ("", "\n\nCopyright 20{}. All rights reserved.", "\n\n{} comments | Share | Print")


def _text(path: Path) -> str:
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return content.decode("utf-8", "replace")


def _pieces(text: str, generator: np.random.Generator) -> Iterator[str]:
    """A file in pieces of whole lines."""
    least, low, high, most = CHARACTERS
    piece, wanted = "", generator.integers(low, high)
    for line in chain(text.splitlines(), [None]):
        if line is None or len(piece) >= wanted:
            if len(piece.strip()) >= least:
                yield piece.strip()[:most]
            piece, wanted = "", generator.integers(low, high)
        piece += f"{line}\n"


class _Links(HTMLParser):
    """The words of a page's links, without the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.depth += tag == "a"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "a" and self.depth > 0

    def handle_data(self, data: str) -> None:
        if self.depth and data.strip():
            self.words.append(" ".join(data.split()))


def _links(path: Path) -> str:
    page = _Links()
    page.feed(_text(path))
    separator = (" | ", "\n", " » ", "\n* ")[len(path.name) % 4]
    lines = [page.words[start : start + 12] for start in range(0, len(page.words), 12)]
    return "\n".join(separator.join(line) for line in lines)


def _manual(path: Path) -> str:
    page = _text(path).encode()
    done = subprocess.run(GROFF, input=page, capture_output=True, check=False)
    return re.sub(" +", " ", done.stdout.decode("utf-8", "replace"))


def noise(work: Path, kinds: Iterable[str]) -> Iterator[Document]:
    """Pieces of files of each kind; `dump` is the file's name."""
    apt = Apt(work)
    roots = [Path("/usr/share"), *sorted(path / "usr/share" for path in work.iterdir())]
    for kind in kinds:
        files: list[Path] = []
        if kind in ("licence", "changelog"):
            name = {"licence": "copyright", "changelog": "changelog*"}[kind]
            files = [path for root in roots for path in root.glob(f"doc/*/{name}")]
        elif kind == "lists":
            info = Path("/var/lib/dpkg/info")
            files = [*info.glob("*.list"), *info.glob("*.md5sums")]
        elif kind == "foreign":
            pages = (apt.unpack(package)[0].rglob("man[1-8]/*.gz") for package in FOREIGN)
            files = [path for path in chain(*pages) if path.stat().st_size > 1000]
        elif kind == "code":
            folders = [Path("/usr/lib/node_modules"), *map(Path, site.getsitepackages()), work]
            files = [path for root in folders for path in root.rglob("*.js")]
        elif kind == "navigation":
            files = [path for root in roots for path in root.rglob("*.html")]
        else:
            files = [*Path("/var/log").glob("*.log"), *Path("/var/log/apt").glob("*.log")]
        read = {"foreign": _manual, "navigation": _links}.get(kind, _text)
        names = {hashlib.sha256(str(path).encode()).digest(): path for path in files}
        for key in sorted(names)[: MOST_FILES.get(kind, FEWER_FILES)]:
            path = names[key]
            if path.is_file() and not path.is_symlink():
                generator = np.random.default_rng(list(key))
                found = list(_pieces(read(path), generator))
                most = PIECES.get(kind, FEWER_PIECES)
                for place in sorted(generator.permutation(len(found))[:most]):
                    yield _document(found[place], kind, path.name)


def _document(text: str, domain: str, dump: str) -> Document:
    text = text.encode("utf-8", "replace").decode()
    return Document(hashlib.sha256(text.encode()).hexdigest()[:24], text, domain, dump)


def near_copy(text: str, words: list[str], generator: np.random.Generator) -> str:
    """A copy of which up to 5 % of the words, the beginning and the end differ."""
    parts = re.split(r"(\s+)", text)
    share = generator.uniform(0.005, 0.05)
    for place in np.flatnonzero(generator.random(len(parts)) < share):
        if parts[place].strip():
            parts[place] = words[generator.integers(len(words))]
    before, after = (some[generator.integers(len(some))] for some in (BEFORE, AFTER))
    number = generator.integers(10, 99)
    return f"{before.format(number)}{''.join(parts)}{after.format(number)}"


def garbled(text: str, generator: np.random.Generator) -> str:
    """A text whose words are shuffled, whose encoding is wrong, or with wrong characters."""
    how = generator.integers(3)
    if how == 0:
        return " ".join(generator.permutation(text.split()))
    if how == 1:
        return text.replace("e", "é").replace("a", "ä").encode().decode("latin-1")
    characters = np.array(list(text))
    wrong = generator.random(len(characters)) < 1 / 7
    characters[wrong] = generator.choice(list("abcdefghijklmnopqrstuvwxyz .,;|1l0O"), wrong.sum())
    return "".join(characters)


def corpora(
    clean: list[Document], dirty: list[Document], size: float, seed: int
) -> dict[str, dict[str, list[Document]]]:
    """The texts of a fold as corpora: by setting, candidates, held-out texts and examples.

    Args:
        clean: as many texts of each domain as `CLEAN`, times *size*, and `TARGET` say.
        dirty: the same of `NOISE`.
        size: documents of a corpus as a multiple of 8,000.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)

    def shuffled(documents: list[Document]) -> list[Document]:
        return [documents[place] for place in generator.permutation(len(documents))]

    copied, copies, spoilt = (int(number * size) for number in (COPIED, COPIES, GARBLED))
    apart = HELD_OUT + EXAMPLES
    mixed = shuffled(clean)
    most = len(mixed) - apart
    number = round(DOCUMENTS * size) - len(dirty) - spoilt
    unused = mixed[apart + number :]
    bad = dirty + [
        _document(garbled(one.text, generator), "garbled", one.id) for one in unused[:spoilt]
    ]
    words = [word for one in unused[:500] for word in one.text.split()]
    shares = 1 / np.arange(1, copied + 1) ** 0.9
    shares = np.diff(np.floor(np.cumsum(shares / shares.sum()) * copies + 1e-9), prepend=0)
    repeated = [
        _document(near_copy(one.text, words, generator), "copy", one.id)
        for one, times in zip(mixed[apart:], shares.astype(int), strict=False)
        for _ in range(times)
    ]
    wanted = shuffled([one for one in clean if one.domain in TARGET])
    others = [one for one in clean if one.domain not in TARGET]
    settings = {
        "A": (wanted[:apart], others + wanted[apart:]),
        "B": (mixed[:apart], mixed[apart : apart + number - copies] + repeated + bad),
        "B0": (mixed[:apart], mixed[apart : apart + number] + bad),
        "C": (mixed[:apart], mixed[apart : apart + most]),
    }
    return {
        name: {
            "": shuffled(candidates),
            "-held-out": special[:HELD_OUT],
            "-examples": special[HELD_OUT:],
        }
        for name, (special, candidates) in settings.items()
    }


def write(source: Path, folder: Path, work: Path, documents: int, folds: int) -> None:
    """Write the corpora of all folds. SystemExit if there are too few texts of a kind."""
    size = documents / DOCUMENTS
    pieces = folder / "noise.parquet"
    if not pieces.exists():
        distinct = {one.id: one for one in noise(work, NOISE)}
        rows = [distinct[key]._asdict() for key in sorted(distinct)]
        write_parquet(pieces, SCHEMA, [pa.Table.from_pylist(rows, SCHEMA)])
    paths = [*sorted(source.glob("*.parquet")), pieces]
    tables = [pq.read_table(path).to_pylist() for path in paths]
    texts = [Document(**row) for row in chain(*tables)]
    # The front of the source has more of large packages; the ends of the hashes do not know that.
    texts.sort(key=lambda one: one.id[::-1])
    for fold in range(folds):
        mine = [one for one in texts if int(one.id, 16) % folds == fold]
        chosen: dict[str, list[Document]] = {}
        for kind, number in (CLEAN | NOISE).items():
            of_kind = [one for one in mine if one.domain == kind]
            due = int(number * size) + TARGET.get(kind, 0)
            if len(of_kind) < due:
                raise SystemExit(f"fold {fold}: {len(of_kind)} texts of {kind}, {due} needed")
            chosen[kind] = of_kind[:due]
        clean, dirty = ([one for kind in kinds for one in chosen[kind]] for kinds in (CLEAN, NOISE))
        for setting, parts in corpora(clean, dirty, size, fold).items():
            for name, some in parts.items():
                table = pa.Table.from_pylist([one._asdict() for one in some], SCHEMA)
                write_parquet(folder / f"{setting}-{fold}{name}.parquet", SCHEMA, [table])


def main() -> None:
    """Write the corpora."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of benchmarks.debian_texts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="packages of the source")
    parser.add_argument("--documents", type=int, default=4000, help="of a corpus")
    parser.add_argument("--folds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    work = arguments.work.resolve()
    write(arguments.source, arguments.folder, work, arguments.documents, arguments.folds)


if __name__ == "__main__":
    main()
