"""`datamask` as on a machine that shares the disk and not the locks: `python other_machine.py ...`.

Locks of open files (fcntl) and of flock(2) do not see each other on a local disk, and both are
released when the file is closed. So a process whose flock takes the former is alone with its locks.
"""

import fcntl
import os
import struct
import sys
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[2]))


def lock(file: int | IO[bytes], operation: int) -> None:
    """As `fcntl.flock`."""
    kinds = {
        fcntl.LOCK_SH: fcntl.F_RDLCK,
        fcntl.LOCK_EX: fcntl.F_WRLCK,
        fcntl.LOCK_UN: fcntl.F_UNLCK,
    }
    kind = kinds[operation & ~fcntl.LOCK_NB]
    command = fcntl.F_OFD_SETLK if operation & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    handle = file if isinstance(file, int) else file.fileno()
    fcntl.fcntl(handle, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


if __name__ == "__main__":
    fcntl.flock = lock
    from datamask.cli.main import main

    main()
