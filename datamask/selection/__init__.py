"""Learning on files.

A function that reads files of a run raises `RunError` if one is missing or stale, and
`CorruptFileError` if files do not hold the same documents. Docstrings name only other errors.
"""
