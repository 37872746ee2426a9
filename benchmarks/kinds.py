"""Noisy webs in which the wanted texts are of kinds of very different size, nested by size.

`explored` webs have the texts of `benchmarks.debian_texts`. `confirmed` webs have dictionaries, an
encyclopaedia, novels, quotations, the rules of a linter and documentation of packages that no other
benchmark reads. A web is 63 % wanted texts, of which some are near-copies of others, and noise of
`benchmarks.noisy_crawl`. The smaller webs of a fold are the beginning of its largest, with the same
examples and held-out texts; folds share noise, but no other text.

    python -m benchmarks.debian_texts runs/fifth-corpus --work runs/fifth-apt --packages fifth
    python -m benchmarks.kinds confirmed runs/fifth-corpus runs/webs --work runs/fifth-apt
"""

from __future__ import annotations

import argparse
import gzip
import re
import string
import zlib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.debian_texts import SCHEMA, Apt, Document, document, is_prose
from benchmarks.noisy_crawl import garbled, near_copy, noise
from datamask.runs.files import write_parquet

SHARES = {
    "explored": {
        "descriptions": 0.43,
        "documentation": 0.25,
        "docstrings": 0.16,
        "manuals": 0.10,
        "office": 0.03,
        "kernel": 0.02,
        "database": 0.01,
    },
    "confirmed": {
        "dictionary": 0.405,
        "documentation": 0.29,
        "senses": 0.165,
        "encyclopaedia": 0.07,
        "novels": 0.025,
        "quotations": 0.025,
        "jargon": 0.012,
        "rules": 0.008,
    },
}
"""The kinds of wanted texts and their shares of these."""
GOALS = {
    "explored": ("manuals", "office", "kernel", "database"),
    "confirmed": ("encyclopaedia", "novels", "quotations", "jargon", "rules"),
}
"""The kinds that are wanted where the goal is narrow; the web is the same."""
PACKAGES = {
    "libreoffice-help-en-us": "office",
    "linux-doc-6.1": "kernel",
    "sqlite3-doc": "database",
}
"""Packages of documentation that are kinds of their own in explored webs."""
DICTIONARIES = {
    "dict-gcide": "dictionary",
    "dict-wn": "senses",
    "dict-foldoc": "encyclopaedia",
    "dict-jargon": "jargon",
}
WANTED, GARBLED = 0.63, 0.04
"""Shares of a web; the rest are pieces of noise."""
COPIES = {"": 0.1, "none": 0.0, "many": 0.4}
"""Near-copies as a share of a web, by its name's ending."""
COPIED = 0.0075
"""Texts that have near-copies, as a share of the web."""
HELD_OUT, EXAMPLES = 110, 300
"""Held-out texts of each kind, and examples of all kinds together."""
LEAST, MOST = 200, 4000
"""Characters of a text."""
NOVEL = 1000
"""Characters of a piece of a novel."""
DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def _number(digits: str) -> int:
    """A number of dictd's index."""
    value = 0
    for digit in digits:
        value = value * 64 + DIGITS.index(digit)
    return value


def entries(folder: Path) -> Iterator[str]:
    """The entries of dictionaries in the format of dictd."""
    for index in sorted(folder.glob("usr/share/dictd/*.index")):
        content = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
        places = {tuple(line.split("\t")[1:3]) for line in index.read_text().splitlines()}
        for start, length in sorted((_number(a), _number(b)) for a, b in places):
            text = content[start : start + length].decode("utf-8", "replace")
            yield re.sub(r"[ \t]+", " ", text)


def novels(folder: Path) -> Iterator[str]:
    """Pieces of the novels of a package for R, whose file holds their lines in compressed parts."""
    [path] = folder.glob("usr/lib/R/site-library/*/data/Rdata.rdb")
    content = path.read_bytes()
    while content:
        part = zlib.decompressobj()
        data, content = part.decompress(content[4:]), part.unused_data
        piece = ""
        for found in re.finditer(rb"\x00\x04\x00\x09([\x00]{3}.)", data, re.DOTALL):
            line = data[found.end() : found.end() + int.from_bytes(found[1], "big")].decode()
            if not line and len(piece) > NOVEL:
                yield piece
                piece = ""
            piece += f"{line}\n"


def confirmed_texts(apt: Apt) -> Iterator[tuple[str, str]]:
    """Texts that are not in the corpus of `benchmarks.debian_texts`, after their kinds."""
    for package, kind in DICTIONARIES.items():
        yield from ((kind, text) for text in entries(apt.unpack(package)[0]))
    yield from (("novels", text) for text in novels(apt.unpack("r-cran-janeaustenr")[0]))
    for package in ("fortunes", "fortunes-min"):
        for path in sorted(apt.unpack(package)[0].glob("usr/share/games/fortunes/*.u8")):
            yield from (("quotations", text) for text in path.read_text().split("\n%\n"))
    tags = apt.unpack("lintian")[0].glob("usr/share/lintian/tags/**/*.tag")
    yield from (("rules", path.read_text()) for path in sorted(tags))


def texts_of(web: str, source: Path, apt: Apt) -> dict[str, list[Document]]:
    """The texts of each kind in a random order that depends on them alone."""
    tables = [pq.read_table(path) for path in sorted(source.glob("texts-*.parquet"))]
    documents = [Document(**row) for table in tables for row in table.to_pylist()]
    if web == "explored":
        named = [text._replace(domain=PACKAGES.get(text.dump, text.domain)) for text in documents]
    else:
        named = [text for text in documents if text.domain == "documentation"]
        named += [
            document(text.strip()[:MOST], kind, "")
            for kind, text in confirmed_texts(apt)
            if len(text.strip()) >= LEAST and is_prose(text)
        ]
    distinct = {text.id: text for text in named}
    ordered = [distinct[key] for key in sorted(distinct, key=lambda key: key[::-1])]
    return {kind: [text for text in ordered if text.domain == kind] for kind in SHARES[web]}


def drawn(
    texts: dict[str, list[Document]], shares: dict[str, float], number: int, kind_of_use: str
) -> list[Document]:
    """Take about *number* texts of all kinds away from *texts*, by their shares."""
    taken = []
    for kind, share in shares.items():
        count = round(share * number)
        if len(texts[kind]) < count:
            raise SystemExit(f"{kind}: {len(texts[kind])} texts left, {count} needed {kind_of_use}")
        taken += texts[kind][:count]
        texts[kind] = texts[kind][count:]
    return taken


def largest_web(
    texts: dict[str, list[Document]],
    shares: dict[str, float],
    dirty: list[Document],
    size: int,
    copies: float,
    generator: np.random.Generator,
) -> list[Document]:
    """The documents of a web in random order; takes the wanted texts away from *texts*."""
    clean = drawn(texts, shares, round((WANTED - copies) * size), "as candidates")
    spoilt = drawn(texts, shares, round(GARBLED * size), "to be garbled")
    bad = [document(garbled(text.text, generator), "garbled", text.id) for text in spoilt]
    pieces = generator.permutation(len(dirty))[: size - round(WANTED * size) - len(bad)]
    bad += [dirty[index] for index in pieces]
    words = [word for text in spoilt[:500] for word in text.text.split()]
    ranks = 1 / np.arange(1, round(COPIED * size) + 1) ** 0.9
    times = np.diff(np.floor(np.cumsum(ranks / ranks.sum()) * copies * size + 1e-9), prepend=0)
    originals = generator.permutation(len(clean))
    repeated = [
        document(near_copy(clean[row].text, words, generator), "copy", clean[row].domain)
        for row, number in zip(originals, times.astype(int), strict=False)
        for _ in range(number)
    ]
    every = clean + bad + repeated
    return [every[index] for index in generator.permutation(len(every))]


def write(arguments: argparse.Namespace) -> None:
    """Write the webs of all folds. SystemExit if there are too few texts of a kind."""
    apt = Apt(arguments.work.resolve())
    folder, shares = arguments.folder, SHARES[arguments.web]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "noise.parquet").exists():
        distinct = {piece.id: piece for piece in noise(apt.folder)}
        _write(folder / "noise.parquet", (distinct[key] for key in sorted(distinct)))
    dirty = [Document(**row) for row in pq.read_table(folder / "noise.parquet").to_pylist()]
    texts = texts_of(arguments.web, arguments.source, apt)
    print({kind: len(of_kind) for kind, of_kind in texts.items()}, len(dirty), "of noise")
    for fold, size in enumerate(arguments.sizes):
        even = dict.fromkeys(shares, 1 / len(shares))
        held_out = drawn(texts, even, HELD_OUT * len(shares), "to be held out")
        examples = drawn(texts, shares, EXAMPLES, "as examples")
        webs, lefts = {}, []
        for ending in arguments.copies:
            generator = np.random.default_rng([fold, len(ending)])
            lefts.append(dict(texts))
            web = largest_web(lefts[-1], shares, dirty, size, COPIES[ending], generator)
            webs[ending] = web, held_out, examples
        texts = {kind: min((left[kind] for left in lefts), key=len) for kind in shares}
        goal = {kind: shares[kind] for kind in GOALS[arguments.web]}
        goal = {kind: share / sum(goal.values()) for kind, share in goal.items()}
        narrow = drawn(texts, goal, EXAMPLES, "as examples of the narrow goal")
        webs["narrow"] = webs[""][0], [text for text in held_out if text.domain in goal], narrow
        if not (folder / "tokens.parquet").exists():
            _write(folder / "tokens.parquet", webs[""][0][:4000])
        for (ending, files), nested in product(webs.items(), {size, *arguments.nested}):
            if nested <= size:
                files = files[0][:nested], *files[1:]
                for of_file, role in zip(files, ("", "-held-out", "-examples"), strict=True):
                    _write(folder / f"{nested}{ending}-{fold}{role}.parquet", of_file)


def _write(path: Path, documents: Iterable[Document]) -> None:
    rows = [text._asdict() for text in documents]
    write_parquet(path, SCHEMA, [pa.Table.from_pylist(rows, SCHEMA)])


def main() -> None:
    """Write the webs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("web", choices=SHARES)
    parser.add_argument("source", type=Path, help="folder of benchmarks.debian_texts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="packages of the source")
    parser.add_argument("--sizes", type=int, nargs="+", default=[40000] * 3 + [8000] * 2)
    parser.add_argument("--nested", type=int, nargs="+", default=[8000])
    parser.add_argument("--copies", choices=COPIES, nargs="+", default=[""])
    write(parser.parse_args())


if __name__ == "__main__":
    main()
