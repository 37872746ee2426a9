"""A corpus of more than 100,000 real English texts: docstrings, and texts of Debian's packages.

Benchmarks need texts with meaning, in several domains, that can be had without an account:
docstrings of the installed Python packages, descriptions of Debian's packages, manual pages, and
HTML documentation. Pages are divided into sections. It needs Debian with apt and groff; apt keeps
its lists in the work folder, so that root's rights are not needed and the system stays as it is.
The same versions of packages, which `_versions.tsv` names, give the same bytes.

    python -m benchmarks.debian_texts runs/debian-corpus
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.debian_packages import PACKAGES
from datamask.quality.heuristic import STOP_WORDS
from datamask.runs.files import replace_file, write_parquet
from examples.demo_corpus import write_corpus

GROFF = ("groff", "-k", "-t", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n", "-rHY=0")
LEAST_WORDS = 20
LEAST_STOP_WORDS = 0.12
"""Share of words; tables, indexes and other languages have fewer."""
CHARACTERS = (200, 4000)
"""Shortest section of a page, and where longer ones are divided."""
ROWS_PER_FILE = 10_000
MOST_OF_A_PACKAGE = 2000
"""Documents of one package of documentation, chosen by a hash."""


class Document(NamedTuple):
    """A text; `dump` is the package or Debian's section within the domain."""

    id: str
    text: str
    domain: str
    dump: str


SCHEMA = pa.schema([(name, pa.string()) for name in get_type_hints(Document)])


class Apt:
    """Debian's packages, with apt's lists and downloads in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        folders = f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}"
        others = "Acquire::Languages=en", "APT::Sandbox::User="
        self.options = [f"-o{option}" for option in (*folders, *others)]
        self._run("apt-get", "--quiet", "update")

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            [command[0], *self.options, *command[1:]],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            check=True,
        )
        return done.stdout.decode("utf-8", "replace")

    def records(self, kind: str) -> Iterator[dict[str, str]]:
        """The records of apt's indexes `Packages` or `Translations`."""
        names = self._run("apt-get", "indextargets", "--format", "$(CREATED_BY)\t$(FILENAME)")
        for line in sorted(names.splitlines()):
            created_by, path = line.split("\t")
            if created_by == kind and Path(path).exists():
                text = self._run("/usr/lib/apt/apt-helper", "cat-file", path)
                for record in text.split("\n\n"):
                    fields = re.findall(r"^(\S+): (.*(?:\n .*)*)", record, re.MULTILINE)
                    if fields:
                        yield dict(fields)

    def unpack(self, package: str) -> tuple[Path, str]:
        """The folder with a package's files, and its version."""
        if not list(self.folder.glob(f"{package}_*.deb")):
            self._run("apt-get", "--quiet", "download", package)
        file = next(self.folder.glob(f"{package}_*.deb"))
        target = self.folder / package
        subprocess.run(["dpkg-deb", "-x", file, target], check=True)
        return target, file.name.split("_")[1]


def descriptions(apt: Apt) -> Iterator[Document]:
    """Long descriptions of all packages, by Debian's section."""
    packages = apt.records("Packages")
    section = {record["Package"]: record.get("Section", "") for record in packages}
    for record in apt.records("Translations"):
        lines = record.get("Description-en", "").split("\n")
        paragraphs = "\n".join(line[1:] for line in lines[1:]).replace("\n.\n", "\n\n")
        package = record["Package"]
        text = f"{package}: {lines[0]}\n\n{paragraphs}"
        yield document(text, "descriptions", section.get(package, ""))


def read_page(path: Path) -> bytes:
    """The content of a file, which may be compressed."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def format_manual(page: bytes) -> str:
    """A manual page as text."""
    done = subprocess.run(GROFF, input=page, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace")


def manuals(folder: Path, package: str) -> Iterator[Document]:
    """Sections of the manual pages below a folder, formatted by groff."""
    for path in sorted((folder / "usr/share/man").glob("man*/*")):
        if path.is_symlink() or not path.is_file():
            continue
        page = read_page(path)
        if page.startswith(b".so "):
            continue
        lines = format_manual(page).splitlines()
        title, section = path.name.split(".")[0], [""]
        sections = [section]
        for line in lines[1:-1]:  # without header and footer
            if line[:1].strip():
                section = [f"{title}: {line.strip().capitalize()}", ""]
                sections.append(section)
            else:
                section.append(re.sub(" +", " ", line.strip()))  # justified
        for section in sections:
            for text in _pieces("\n".join(section)):
                yield document(text, "manuals", package)


class _Sections(HTMLParser):
    """The text of a page, divided at its headings."""

    HEADINGS = ("h1", "h2", "h3", "h4")
    SKIPPED = ("script", "style", "nav", "head", "footer", "table")
    BLOCKS = ("p", "pre", "li", "dt", "dd", "div", "br", "section", "blockquote", *HEADINGS)

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[list[str]] = [[]]
        self.skipping = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.skipping += tag in self.SKIPPED
        if tag in self.HEADINGS:
            self.sections.append([])
        if tag in self.BLOCKS:
            self.sections[-1].append("\n\n" if tag != "br" else "\n")

    def handle_endtag(self, tag: str) -> None:
        self.skipping -= tag in self.SKIPPED
        if tag in self.HEADINGS:
            self.sections[-1].append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self.skipping:
            self.sections[-1].append(data)


def documentation(folder: Path, package: str) -> Iterator[Document]:
    """Sections of the English HTML pages below a folder."""
    for path in sorted(folder.rglob("*.htm*")):
        foreign = re.search(r"\.html?\.(?!en)[a-z]", path.name) or re.search(
            r"/(?!en)[a-z]{2}-[A-Z]{2}/", str(path)
        )
        if path.is_symlink() or not path.is_file() or foreign:
            continue
        reader = _Sections()
        reader.feed(read_page(path).decode("utf-8", "replace"))
        for section in reader.sections:
            for text in _pieces("".join(section).replace("¶", "")):
                yield document(text, "documentation", package)


def _pieces(text: str) -> Iterator[str]:
    """A section in pieces of whole paragraphs, without short ones."""
    least, most = CHARACTERS
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = paragraph.strip()
        if len(piece) + len(paragraph) > most and len(piece) >= least:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}".strip()[:most]
    if len(piece) >= least:
        yield piece


def document(text: str, domain: str, dump: str) -> Document:
    """A text with the hash that is its id."""
    key = hashlib.sha256(text.encode("utf-8", "ignore")).hexdigest()[:24]
    return Document(key, text, domain, dump)


def is_prose(text: str) -> bool:
    """Whether a text has enough words, of which enough are English stop words."""
    words = text.lower().split()
    stops = sum(map(STOP_WORDS.__contains__, words))
    return len(words) >= LEAST_WORDS and stops >= LEAST_STOP_WORDS * len(words)


def write(folder: Path, work: Path, packages: str) -> Counter[str]:
    """Write the corpus and the versions of its packages; number of documents by domain."""
    apt, group = Apt(work), PACKAGES[packages]
    docstrings = work / "docstrings"
    if not docstrings.exists():
        folders = [apt.unpack(package)[0] for package in group.docstrings.split()]
        roots = tuple(folder / "usr/lib/python3/dist-packages" for folder in folders)
        write_corpus(docstrings, roots=roots)
    columns = pq.read_table(docstrings, columns=["text", "dump"]).to_pydict()
    pairs = zip(columns["text"], columns["dump"], strict=True)
    sources = [[document(text, "docstrings", dump) for text, dump in pairs]]
    sources.append(list(descriptions(apt)))
    versions = []
    for reader, names in ((manuals, group.manuals), (documentation, group.documentation)):
        for package in names.split():
            unpacked, version = apt.unpack(package)
            texts = {text.id: text for text in reader(unpacked, package) if is_prose(text.text)}
            sources.append([texts[key] for key in sorted(texts)[:MOST_OF_A_PACKAGE]])
            versions.append(f"{package}\t{version}\t{len(sources[-1])}\n")
            print(versions[-1].strip(), flush=True)
    kept: dict[str, Document] = {}
    for text in chain(*sources):
        if is_prose(text.text):
            kept.setdefault(text.id, text)
    # By the hash of the text, so that every file has all domains. Of packages with more than
    # `MOST_OF_A_PACKAGE` documents those with the smallest hashes are kept: they are at the front.
    rows = [kept[key]._asdict() for key in sorted(kept)]
    for number, start in enumerate(range(0, len(rows), ROWS_PER_FILE)):
        table = pa.Table.from_pylist(rows[start : start + ROWS_PER_FILE], SCHEMA)
        write_parquet(folder / f"texts-{number:02d}.parquet", SCHEMA, [table])
    with replace_file(folder / "_versions.tsv") as temporary:
        temporary.write_text("".join(versions))
    return Counter(text.domain for text in kept.values())


def main() -> None:
    """Write the corpus and print its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="keeps the downloads (about 150 MB)")
    parser.add_argument("--packages", choices=PACKAGES, default="first")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        domains = write(arguments.folder, work, arguments.packages)
    print(f"{sum(domains.values())} documents in {arguments.folder}: {dict(domains)}")


if __name__ == "__main__":
    main()
