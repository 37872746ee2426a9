"""Corpora as a crawl gives them, of real texts whose kinds are known: clean, noise, near-copies.

The clean texts are those of `benchmarks.debian_texts`; the noise comes from the files of the same
packages and of this machine: copyright files, changelogs, lists of files, manual pages in other
languages, code, lists of links, logs. Texts are divided into folds by a hash. A fold gives one
corpus of each setting (docs/evidence.md): `SETTING-FOLD.parquet` are the candidates, `-held-out`
what models are scored on, `-examples` texts like those, for a score; all are in random order.
`tokens.parquet` are texts for a tokenizer. The noise depends on the files of the machine and on
their paths; with the same `noise.parquet`, corpora have the same bytes.

    python -m benchmarks.debian_texts runs/debian-corpus --work runs/apt
    python -m benchmarks.noisy_crawl runs/debian-corpus runs/noisy-crawl --work runs/apt
"""

from __future__ import annotations

import argparse
import hashlib
import re
import site
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.debian_texts import SCHEMA, Apt, Document, document, format_manual, read_page
from datamask.runs.files import write_parquet

DOCUMENTS = 8000
CLEAN = {
    "descriptions": {
        "descriptions": 4700,
        "documentation": 2000,
        "manuals": 780,
        "docstrings": 520,
    },
    "documentation": {
        "descriptions": 1000,
        "documentation": 5700,
        "manuals": 780,
        "docstrings": 520,
    },
    "pages": {"documentation": 6700, "manuals": 780, "docstrings": 520},
}
"""Clean texts of each domain for 8,000 documents, by what most of them are."""
TARGET = {"manuals": 480, "docstrings": 320}
"""The domains that are the target in A, and what is needed of them besides, for examples and to be
held out."""
PAGES = {"documentation": 800}
"""The same in A2, which has the candidates of A."""
NOISE = {"licence": 400, "changelog": 400, "lists": 460, "foreign": 500}
NOISE |= {"code": 400, "navigation": 400, "logs": 40}
HELD_OUT, EXAMPLES = 500, 300
COPIED, COPIES, GARBLED = 60, 960, 300
"""Texts that have near-copies, their copies, and garbled texts, for 8,000 documents."""
CHARACTERS = (200, 400, 2500, 4000)
"""Of a piece of noise: least, between which a length is drawn, most."""
PIECES = {"licence": 10, "code": 12, "navigation": 40, "lists": 40, "logs": 1000}
FEWER_PIECES = 6
"""Pieces that are kept of a file, by kind and otherwise."""
MOST_FILES = {"navigation": 4500}
FEWER_FILES = 1500
"""Most files of a kind of noise, chosen by a hash of the name."""
CODE = ("*.js", "*.c", "*.css")
FOREIGN = ("manpages-de", "manpages-es", "manpages-fr", "manpages-pl")

BEFORE = ("", "Home | About | Contact | Search\n\n", "Skip to main content\n\nUpdated 20{}\n\n")
AFTER = ("", "\n\nCopyright 20{}. All rights reserved.", "\n\n{} comments | Share | Print")


def _text(path: Path) -> str:
    return read_page(path).decode("utf-8", "replace")


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
    return re.sub(" +", " ", format_manual(read_page(path)))


def _files(work: Path) -> dict[str, list[Path]]:
    """The files of each kind of noise."""
    foreign = [Apt(work).unpack(package)[0] for package in FOREIGN]
    roots = [Path("/usr/share"), *sorted(path / "usr/share" for path in work.iterdir())]
    packages = [*map(Path, site.getsitepackages())]

    def below(folders: list[Path], *patterns: str) -> list[Path]:
        return [path for root in folders for name in patterns for path in root.rglob(name)]

    return {
        "licence": [path for root in roots for path in root.glob("doc/*/copyright")],
        "changelog": [path for root in roots for path in root.glob("doc/*/changelog*")],
        "lists": below([Path("/var/lib/dpkg/info")], "*.list", "*.md5sums"),
        "foreign": [path for path in below(foreign, "man[1-8]/*.gz") if path.stat().st_size > 1000],
        "code": below([*roots, *packages], *CODE),
        "navigation": below(roots, "*.html"),
        "logs": below([Path("/var/log")], "*.log"),
    }


def noise(work: Path) -> Iterator[Document]:
    """Pieces of files of each kind; `dump` is the file's name."""
    for kind, files in _files(work).items():
        read = {"foreign": _manual, "navigation": _links}.get(kind, _text)
        names = {hashlib.sha256(str(path).encode()).digest(): path for path in files}
        for key in sorted(names)[: MOST_FILES.get(kind, FEWER_FILES)]:
            path = names[key]
            if path.is_file() and not path.is_symlink():
                generator = np.random.default_rng(list(key))
                pieces = list(_pieces(read(path), generator))
                drawn = generator.permutation(len(pieces))[: PIECES.get(kind, FEWER_PIECES)]
                yield from (document(pieces[index], kind, path.name) for index in sorted(drawn))


def near_copy(text: str, words: list[str], generator: np.random.Generator) -> str:
    """A copy of which up to 5 % of the words, the beginning and the end differ."""
    tokens = re.split(r"(\s+)", text)
    share = generator.uniform(0.005, 0.05)
    for index in np.flatnonzero(generator.random(len(tokens)) < share):
        if tokens[index].strip():
            tokens[index] = words[generator.integers(len(words))]
    before, after = (lines[generator.integers(len(lines))] for lines in (BEFORE, AFTER))
    number = generator.integers(10, 99)
    return f"{before.format(number)}{''.join(tokens)}{after.format(number)}"


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
    clean: list[Document], pages: list[Document], dirty: list[Document], size: float, seed: int
) -> dict[str, list[Document]]:
    """The texts of a fold as corpora: by the names of their files.

    Args:
        clean: as many texts of each domain as `CLEAN`, times *size*, and `TARGET` say.
        pages: those of `PAGES`.
        dirty: the same of `NOISE`.
        size: documents of a corpus as a multiple of 8,000.
        seed: the fold, and the seed of the draws.
    """
    generator = np.random.default_rng(seed)

    def shuffled(documents: list[Document]) -> list[Document]:
        return [documents[index] for index in generator.permutation(len(documents))]

    copied, copies, spoilt = (int(number * size) for number in (COPIED, COPIES, GARBLED))
    apart = HELD_OUT + EXAMPLES
    mixed = shuffled(clean)
    number = round(DOCUMENTS * size) - len(dirty) - spoilt
    unused = mixed[apart + number :]
    bad = dirty + [
        document(garbled(text.text, generator), "garbled", text.id) for text in unused[:spoilt]
    ]
    words = [word for text in unused[:500] for word in text.text.split()]
    shares = 1 / np.arange(1, copied + 1) ** 0.9
    shares = np.diff(np.floor(np.cumsum(shares / shares.sum()) * copies + 1e-9), prepend=0)
    repeated = [
        document(near_copy(text.text, words, generator), "copy", text.id)
        for text, times in zip(mixed[apart:], shares.astype(int), strict=False)
        for _ in range(times)
    ]
    wanted = shuffled([text for text in clean if text.domain in TARGET])
    others = [text for text in clean if text.domain not in TARGET]
    settings = {
        "A": (wanted[:apart], others + wanted[apart:]),
        "B": (mixed[:apart], mixed[apart : apart + number - copies] + repeated + bad),
        "B0": (mixed[:apart], mixed[apart : apart + number] + bad),
        "C": (mixed[:apart], mixed[apart:]),
        "A2": (pages, others + wanted[apart:]),
    }
    return {
        f"{name}-{seed}{role}": documents
        for name, (special, candidates) in settings.items()
        for role, documents in (
            ("", shuffled(candidates)),
            ("-held-out", special[:HELD_OUT]),
            ("-examples", special[HELD_OUT:]),
        )
    }


def _ids(folder: Path) -> set[str]:
    """The ids of all texts of the corpora in a folder."""
    paths = folder.glob("*-*.parquet")
    return {key for path in paths for key in pq.read_table(path, columns=["id"])["id"].to_pylist()}


def write(
    source: Path,
    folder: Path,
    work: Path,
    documents: int,
    folds: int,
    without: Sequence[Path] = (),
    mostly: str = "descriptions",
) -> None:
    """Write the corpora of all folds. SystemExit if there are too few texts of a kind."""
    size = documents / DOCUMENTS
    used = {key for other in without for key in _ids(other)}
    noise_file = folder / "noise.parquet"
    if not noise_file.exists():
        distinct = {piece.id: piece for piece in noise(work)}
        _write(noise_file, [distinct[key] for key in sorted(distinct)])
    tables = [pq.read_table(path) for path in (*sorted(source.glob("*.parquet")), noise_file)]
    texts = [Document(**row) for table in tables for row in table.to_pylist()]
    # Noise is scarce, and no text that models are scored on.
    texts = [text for text in texts if text.domain in NOISE or text.id not in used]
    # The front of the source has more of large packages; the ends of the hashes do not know that.
    texts.sort(key=lambda text: text.id[::-1])
    for fold in range(folds):
        mine = [text for text in texts if int(text.id, 16) % folds == fold]
        chosen: dict[str, list[Document]] = {}
        pages: list[Document] = []
        for kind, number in (CLEAN[mostly] | NOISE).items():
            of_kind = [text for text in mine if text.domain == kind]
            due = int(number * size) + TARGET.get(kind, 0)
            besides = PAGES.get(kind, 0)
            if len(of_kind) < due + besides:
                raise SystemExit(
                    f"fold {fold}: {len(of_kind)} texts of {kind}, {due + besides} needed"
                )
            chosen[kind] = of_kind[:due]
            pages += of_kind[due : due + besides]
        clean, dirty = (
            list(chain(*(chosen[kind] for kind in kinds))) for kinds in (CLEAN[mostly], NOISE)
        )
        for name, of_corpus in corpora(clean, pages, dirty, size, fold).items():
            _write(folder / f"{name}.parquet", of_corpus)
            if name == "B-0":
                _write(folder / "tokens.parquet", of_corpus[:4000])


def _write(path: Path, documents: list[Document]) -> None:
    rows = [text._asdict() for text in documents]
    write_parquet(path, SCHEMA, [pa.Table.from_pylist(rows, SCHEMA)])


def main() -> None:
    """Write the corpora."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="folder of benchmarks.debian_texts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="packages of the source")
    parser.add_argument("--documents", type=int, default=4000, help="of a corpus")
    parser.add_argument("--folds", type=int, default=7)
    parser.add_argument(
        "--without", type=Path, nargs="+", default=[], help="corpora whose clean texts are not used"
    )
    parser.add_argument("--mostly", choices=CLEAN, default="descriptions", help="of clean texts")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write(
        arguments.source,
        arguments.folder,
        arguments.work.resolve(),
        arguments.documents,
        arguments.folds,
        arguments.without,
        arguments.mostly,
    )


if __name__ == "__main__":
    main()
