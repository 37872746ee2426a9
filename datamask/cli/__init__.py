"""The entry point of the `datamask` command."""

import sys


def run() -> None:
    """Run the command. The libraries that it imports first may not fit into memory."""
    from datamask.errors import MemoryLackError, exit_status, known, lines

    try:
        from datamask.cli.main import main
    except ImportError as error:
        problem = known(error)
        if not isinstance(problem, MemoryLackError):
            raise
        print(*lines(problem), sep="\n", file=sys.stderr)
        sys.exit(exit_status(problem))
    main()
