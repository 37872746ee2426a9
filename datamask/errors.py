"""Exceptions, and the decision whether a retry can help.

A `DatamaskError` is a `TerminalError` or a `TransientError`. Retry rules of tasks use only
`is_transient`. Every message is one line that names the place and the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from datamask.showing import SECRETS, printable

MOST_EXAMPLES = 10
"""Number of problems of one kind that are shown."""

NOT_UTF8 = "its name is not UTF-8 in this locale; rename it, or set PYTHONUTF8=1 if it is"
"""Problem of a file or folder whose name fails `is_utf8`."""


def is_utf8(name: str) -> bool:
    """Return True if a name is text; Python replaces bytes that it cannot decode by surrogates."""
    return name.encode(errors="backslashreplace").decode() == name


class DatamaskError(Exception):
    """Base class of the errors that this library raises on purpose.

    `problems` are the errors joined by `together`, or the error itself. Messages contain no
    secrets, although a server's answer may quote a token and a user's URL may have a password.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))

    code: ClassVar[str] = "error"
    """Stable name of the kind of error, for programs; messages may change."""
    joined: tuple[DatamaskError, ...] = ()
    causes: tuple[BaseException, ...] = ()
    """The errors of the units of work that failed; they decide whether this error is transient."""

    @property
    def problems(self) -> tuple[DatamaskError, ...]:
        """The problems to fix."""
        return self.joined or (self,)


class TerminalError(DatamaskError):
    """A repeated call would fail again; something must be fixed first."""


class TransientError(DatamaskError):
    """A repeated call may succeed later."""


def together(problems: Sequence[DatamaskError]) -> DatamaskError:
    """Join several problems into one error; a single problem is returned unchanged.

    The error is transient if all problems are. It has their class if they share one, else it is an
    `InputError`.
    """
    if len(problems) == 1:
        return problems[0]
    kinds = {type(problem) for problem in problems}
    if len(kinds) > 1 and all(isinstance(problem, TransientError) for problem in problems):
        kinds = {TransientError}
    kind = kinds.pop() if len(kinds) == 1 else InputError
    joined = tuple(single for problem in problems for single in problem.problems)
    error = kind("; ".join(_examples(joined)))
    error.joined = joined
    return error


@contextlib.contextmanager
def gathering(problems: list[DatamaskError]) -> Iterator[None]:
    """Add the error that the block raises to *problems*, so that the next check still runs."""
    try:
        yield
    except DatamaskError as error:
        problems += error.problems


def _examples(problems: Sequence[DatamaskError]) -> list[str]:
    """Return all problems or, of a kind with more than ten, ten examples, the rarest kind first.

    Two problems count as one kind if they have the same class and remedy.
    """
    kinds: dict[tuple[type, str], list[str]] = {}
    for problem in problems:
        remedy = getattr(problem, "problem", str(problem)).rpartition("; ")[2]
        # Counts and values differ from problem to problem.
        remedy = re.sub(r"\d+|'[^']*'", "", remedy)
        kinds.setdefault((type(problem), remedy), []).append(str(problem))
    if max(map(len, kinds.values()), default=0) <= MOST_EXAMPLES:
        return [str(problem) for problem in problems]
    shown = []
    for texts in sorted(kinds.values(), key=len):
        shown += texts[:MOST_EXAMPLES]
        if len(texts) > MOST_EXAMPLES:
            shown.append(f"{len(texts) - MOST_EXAMPLES:,} more problems of this kind")
    return shown


class SettingsError(TerminalError):
    """A setting is unknown, out of range, or contradicts another."""

    code = "settings"


def check_secrets() -> None:
    """Check the secrets in the environment before they are sent.

    Raises:
        SettingsError: one has a line break, a space or a control character, which no header can
        carry.
    """
    for name in SECRETS:
        if re.search(r"[^\x21-\x7e]", os.environ.get(name, "").strip()):
            raise SettingsError(
                f"{name}: has a line break, a space or another character that no token has; "
                "export it again, as one line"
            )


class InputError(TerminalError):
    """The user's data is invalid.

    Args:
        problem: what is wrong and the remedy, without a full stop.
        path: the file.
        shard: the shard's number.
        row: the row within the file (from 0).
        line: the line within a file of text (from 1), in place of the row.
        column: the column's name.
    """

    code = "input"

    def __init__(
        self,
        problem: str,
        *,
        path: object = None,
        shard: int | None = None,
        row: int | None = None,
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        self.problem, self.path, self.shard = problem, path, shard
        self.row, self.line, self.column = row, line, column
        number = None if shard is None else f"{shard:05d}"
        location = {"file": path, "shard": number, "row": row, "line": line, "column": column}
        known = {name: value for name, value in location.items() if value is not None}
        where = ", ".join(f"{name} {value}" for name, value in known.items())
        super().__init__(f"{where}: {problem}" if where else problem)


class RunError(TerminalError):
    """The run folder does not allow the request."""

    code = "run"


class CorruptFileError(TerminalError):
    """A file of the run is unreadable, or does not match its receipt."""

    code = "corrupt-file"


class PublicationError(TerminalError):
    """The Hub refuses: permissions, storage, files of others."""

    code = "publication"


class StorageError(TransientError):
    """Disk or object store: full, slow, or temporarily unavailable."""

    code = "storage"


class HubUnavailableError(TransientError):
    """Rate limit, server error or dropped connection on the Hub."""

    code = "hub-unavailable"


class EndpointError(TransientError):
    """The endpoint of a language model is overloaded or does not answer."""

    code = "endpoint-unavailable"


class MemoryLackError(TransientError):
    """The machine lacks memory for data or for a thread."""

    code = "memory"


class DeviceMemoryError(TransientError):
    """The accelerator ran out of memory at this batch size."""

    code = "device-memory"


def one_line(text: object) -> str:
    """Replace each run of whitespace in a text, line breaks included, by one space."""
    return " ".join(str(text).split())


def describe(error: BaseException) -> str:
    """Describe an error in one line, with its class unless it is a `DatamaskError` or `OSError`."""
    if isinstance(error, DatamaskError | OSError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}")


def code_of(error: BaseException) -> str:
    """Return the code of an error: of its class, `system` for OSError, `bug` for any other."""
    if isinstance(error, DatamaskError):
        return error.code
    return "system" if isinstance(error, OSError) else "bug"


# With other numbers, such as EPIPE, Python raises a ConnectionError or a TimeoutError.
_TRANSIENT_ERRNO = {errno.EIO, errno.EAGAIN, errno.ESTALE}

_DISK_ERRNO = {errno.ENOSPC, errno.EDQUOT}
_DISK_FULL = re.compile(
    "no space left|quota exceeded|disk is full|StorageFull|max_temp_directory_size", re.IGNORECASE
)
"""Messages of libraries about a full disk that have lost the number of the error."""

_NO_MEMORY = re.compile(
    "can't start new thread|can(no|')t allocate memory|bad.alloc|allocation failure|malloc of size"
    "|failed to map segment|memory protection",
    re.IGNORECASE,
)
"""Messages about a lack of memory for threads, libraries or arrays of torch, Arrow or DuckDB."""


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if a disk or a quota is full, whichever library says so."""
    return _says(error, _DISK_ERRNO, _DISK_FULL)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if this machine lacks memory, for data or for a thread."""
    if isinstance(error, ImportError) and is_out_of_memory(error.__cause__):
        return True  # fsspec replaces the message by advice to install the library.
    return isinstance(error, MemoryError) or _says(error, {errno.ENOMEM}, _NO_MEMORY)


def _says(error: BaseException | None, numbers: set[int], words: re.Pattern[str]) -> bool:
    """Return True if another library's error has such a system number or such words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in numbers
    is_ours = isinstance(error, DatamaskError)
    return isinstance(error, Exception) and not is_ours and bool(words.search(str(error)))


def known(error: Exception) -> Exception:
    """Turn an error about a full disk or a lack of memory into one that names the remedy."""
    if is_disk_full(error):
        remedy = "free some space and run the same command again; finished files stay"
        return StorageError(f"the disk is full ({describe(error)}); {remedy}")
    if is_out_of_memory(error):
        remedy = "free memory, or lower compute.workers, and run the same command again"
        return MemoryLackError(f"not enough memory ({describe(error)}); {remedy}")
    return error


def is_transient(error: BaseException | None) -> bool:
    """Return True if the same call may succeed later, whichever library raised the error.

    An error with several causes is transient if all causes are.
    """
    if isinstance(error, DatamaskError) and error.causes:
        return all(map(is_transient, error.causes))
    if isinstance(error, TransientError | ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return is_disk_full(error) or is_out_of_memory(error)


def may_heal(error: BaseException | None) -> bool:
    """Return True if another attempt is worthwhile: the error or a cause is transient."""
    causes = error.causes if isinstance(error, DatamaskError) else ()
    return is_transient(error) or any(map(is_transient, causes))


def lines(error: DatamaskError | OSError) -> list[str]:
    """Write the output of a command for an error: one line per problem.

    Of a kind with more than ten problems, ten are shown, and a file in the system's temporary
    folder lists all problems.
    """
    if isinstance(error, DatamaskError):
        texts = _examples(error.problems)
        if len(texts) < len(error.problems):
            with contextlib.suppress(OSError):
                texts.append(f"all {len(error.problems)} problems: {_listed(error.problems)}")
    else:
        texts = [f"{error.filename}: {error.strerror}" if error.filename else str(error)]
    return [f"datamask: {escaped(text)}" for text in texts]


def escaped(text: object) -> str:
    """Make a text `printable`, with escapes for line breaks, as in some file names."""
    return printable(str(text)).replace("\n", "\\n")


def _listed(problems: Sequence[DatamaskError]) -> str:
    """Write a new file with one line per problem; return its path."""
    handle, path = tempfile.mkstemp(prefix="datamask-problems-", suffix=".txt")
    with open(handle, "w", encoding="utf-8") as file:
        file.writelines(f"{escaped(problem)}\n" for problem in problems)
    return path


EXIT_FIX, EXIT_RETRY, EXIT_MISTAKE = 2, 75, 70


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command: 75 (EX_TEMPFAIL) to retry, 70 for a bug, else 2.

    With several causes, one that the user must fix decides, and then a bug.
    """
    causes = error.causes if isinstance(error, DatamaskError) else ()
    statuses = set(map(exit_status, causes))
    for status in (EXIT_FIX, EXIT_MISTAKE, EXIT_RETRY):
        if status in statuses:
            return status
    if is_transient(error):
        return EXIT_RETRY
    return EXIT_FIX if isinstance(error, DatamaskError | OSError) else EXIT_MISTAKE


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """End a message with the known name most similar to *word*; empty if there is none."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean `{near[0]}`?" if near else ""


def shortened(value: Any, most: int = 100) -> str:
    """Cut the `repr` of a value to *most* characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
