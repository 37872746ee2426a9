"""What can go wrong, and whether trying again can help.

    DatamaskError
    ├── TerminalError            the same call fails again: fix something first
    │   ├── SettingsError        a setting is unknown, out of range or contradicts another
    │   ├── InputError           the user's data breaks the contract (file, shard, row, column)
    │   ├── RunError             the run folder does not fit what is asked of it
    │   ├── CorruptFileError     one of our own files is unreadable or not what its receipt says
    │   └── PublicationError     the Hub refuses: rights, storage, somebody else's files
    └── TransientError           the same call may succeed later
        ├── StorageError         disk or object store: full, slow, gone for a moment
        ├── HubUnavailableError  rate limit, 5xx, dropped connection
        └── DeviceMemoryError    the accelerator ran out of memory at this batch size

A task's retry rule asks only `is_transient`. Every message is one line that names the place and
the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

MOST_EXAMPLES = 10
"""Most problems of one kind that are shown."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables of the environment whose values are never shown."""

# In abfs://container@account the first name is no user. A colon that no port follows begins a
# password, whatever characters it has.
_USER = re.compile(
    r"\b(?P<container>(?:abfss?|wasbs?)://[^/:@\s]+@)"
    r"|://(?:[^/?#\s]*@|[^/?#\s@\[]*:(?!\d*(?:[/?#\s'\"`]|$))[^\s'\"]*@)"
)
_PARAMETER = re.compile(r"(?P<name>[?&;#][\w.%-]+=)[^&;#\s'\"`]+")
_SECRET_NAME = re.compile(
    r"signature|token|secret|passw|pwd|credential|(api|access|account)[_-]?key|\W(sig|key|auth)=",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """The text with *** for secrets of the environment, and for those in URLs.

    These are the user and password before a host, and signatures, tokens and keys in a query.
    """
    for name in SECRETS:
        secret = os.environ.get(name, "").strip()
        if secret:
            text = text.replace(secret, "***")
    text = _USER.sub(lambda found: found["container"] or "://***@", text)
    return _PARAMETER.sub(
        lambda found: (
            f"{found['name']}***" if _SECRET_NAME.search(unquote(found["name"])) else found[0]
        ),
        text,
    )


def printable(text: str) -> str:
    """The text without secrets, and with a backslash and digits for bytes that are no UTF-8."""
    return without_secrets(text).encode(errors="backslashreplace").decode()


NOT_UTF8 = "its name is not UTF-8 in this locale; rename it, or set PYTHONUTF8=1 if it is"
"""The problem of a file or folder that is not `is_utf8`."""


def is_utf8(name: str) -> bool:
    """Whether a name can be written down: surrogates stand for bytes that Python cannot decode."""
    return name.encode(errors="backslashreplace").decode() == name


class DatamaskError(Exception):
    """Base of every error this library raises on purpose.

    `problems` are the errors that `together` joined; of any other error, itself alone. No message
    carries a secret: what a server answers may quote the token it was sent, and what a user gives
    may be a URL with a password.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))

    joined: tuple[DatamaskError, ...] = ()

    @property
    def problems(self) -> tuple[DatamaskError, ...]:
        """The problems to fix, one by one."""
        return self.joined or (self,)


class TerminalError(DatamaskError):
    """Trying again without a change cannot help."""


class TransientError(DatamaskError):
    """Trying again later may help."""


def together(problems: Sequence[DatamaskError]) -> DatamaskError:
    """One error for all problems found at once; a single one as it is.

    It is transient if all of them are, and of their class if they share one, else an `InputError`.
    """
    if len(problems) == 1:
        return problems[0]
    kinds = {type(problem) for problem in problems}
    if len(kinds) > 1 and all(isinstance(problem, TransientError) for problem in problems):
        kinds = {TransientError}
    kind = kinds.pop() if len(kinds) == 1 else InputError
    joined = tuple(one for problem in problems for one in problem.problems)
    found = kind("; ".join(_examples(joined)))
    found.joined = joined
    return found


@contextlib.contextmanager
def gathering(problems: list[DatamaskError]) -> Iterator[None]:
    """Add the error that the block raises to *problems*, so that the next check still runs."""
    try:
        yield
    except DatamaskError as error:
        problems += error.problems


def _examples(problems: Sequence[DatamaskError]) -> list[str]:
    """All problems, or where many are of one kind, ten of each kind, the rarest kind first.

    Those of one class that are remedied in the same way are of one kind.
    """
    kinds: dict[tuple[type, str], list[str]] = {}
    for problem in problems:
        remedy = getattr(problem, "problem", str(problem)).rpartition("; ")[2]
        # Without counts and values, which differ from problem to problem.
        remedy = re.sub(r"\d+|'[^']*'", "", remedy)
        kinds.setdefault((type(problem), remedy), []).append(str(problem))
    if max(map(len, kinds.values()), default=0) <= MOST_EXAMPLES:
        return [str(problem) for problem in problems]
    shown = []
    for texts in sorted(kinds.values(), key=len):
        shown += texts[:MOST_EXAMPLES]
        if len(texts) > MOST_EXAMPLES:
            shown.append(f"{len(texts) - MOST_EXAMPLES} more problems of this kind")
    return shown


class SettingsError(TerminalError):
    """A setting is unknown, out of range, or contradicts another."""


class InputError(TerminalError):
    """The user's data breaks the contract.

    Args:
        problem: what is wrong and what to do, without a full stop.
        path: the file.
        shard: the shard's number.
        row: the row within the file (from 0).
        column: the column's name.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: object = None,
        shard: int | None = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        self.problem, self.row, self.column = problem, row, column
        places = (
            ("file", path),
            ("shard", None if shard is None else f"{shard:05d}"),
            ("row", row),
            ("column", column),
        )
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        super().__init__(f"{where}: {problem}" if where else problem)


class RunError(TerminalError):
    """The run folder does not fit what is asked of it."""


class CorruptFileError(TerminalError):
    """One of our own files is unreadable, or is not what its receipt says."""


class PublicationError(TerminalError):
    """The Hub refuses, and will refuse again until something changes."""


class StorageError(TransientError):
    """Disk or object store: full, slow, or gone for a moment."""


class HubUnavailableError(TransientError):
    """Rate limit, server error or dropped connection on the Hub."""


class DeviceMemoryError(TransientError):
    """The accelerator ran out of memory at this batch size."""


_TRANSIENT_ERRNO = {
    errno.EIO,
    errno.EAGAIN,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.EPIPE,
}


def one_line(text: object) -> str:
    """The text with each run of whitespace, line breaks included, as one space."""
    return " ".join(str(text).split())


def describe(error: BaseException) -> str:
    """What went wrong, in one line; with its class where it is not one of ours."""
    if isinstance(error, DatamaskError | OSError):
        return str(error)
    return one_line(f"{type(error).__name__}: {error}")


def is_transient(error: BaseException | None) -> bool:
    """Whether trying the same call again may succeed, whichever library raised the error."""
    if isinstance(error, TransientError | ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO


def lines(error: DatamaskError | OSError) -> list[str]:
    """What a command says of an error: one line for each problem.

    Of many problems of one kind ten are shown, and a file in the system's temporary folder is
    written that lists all problems.
    """
    if isinstance(error, DatamaskError):
        texts = _examples(error.problems)
        if len(texts) < len(error.problems):
            with contextlib.suppress(OSError):
                texts.append(f"all {len(error.problems)} problems: {_listed(error.problems)}")
    else:
        texts = [f"{error.filename}: {error.strerror}" if error.filename else str(error)]
    return [f"datamask: {_escaped(text)}" for text in texts]


def _escaped(text: object) -> str:
    """The text with line breaks, as in some file names, escaped."""
    return printable(str(text)).replace("\n", "\\n").replace("\r", "\\r")


def _listed(problems: Sequence[DatamaskError]) -> str:
    """A new file with a line for each problem."""
    with tempfile.NamedTemporaryFile(
        "wb", prefix="datamask-problems-", suffix=".txt", delete=False
    ) as file:
        for problem in problems:
            file.write(f"{_escaped(problem)}\n".encode(errors="backslashreplace"))
    return file.name


EXIT_FIX, EXIT_RETRY, EXIT_MISTAKE = 2, 75, 70


def exit_status(error: BaseException) -> int:
    """A command's exit status: 75 (EX_TEMPFAIL) if trying again may help, else 2."""
    return EXIT_RETRY if is_transient(error) else EXIT_FIX


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known name that *word* resembles; empty if none does."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean `{found[0]}`?" if found else ""


def shortened(value: Any, most: int = 100) -> str:
    """A value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
