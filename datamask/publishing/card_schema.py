"""Columns and sizes of the published files in the format of the Hub."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from datamask.publishing.configurations import Configuration

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


def size_category(documents: int) -> str:
    """The Hub's category of a number of documents, such as `1K<n<10K`, lower bound included."""
    for step, name in enumerate(_SIZES):
        if documents < 10 ** (step + 3):
            return f"n<{name}" if step == 0 else f"{_SIZES[step - 1]}<n<{name}"
    return f"n>{_SIZES[-1]}"


def dataset_info(config: Configuration) -> dict[str, Any]:
    """Columns, rows and sizes, with which `datasets` verifies a download."""
    features = [_feature(field) for field in config.schema]
    return {
        "config_name": config.name,
        # `datasets` reads the columns from the files if a type is not known here.
        **({} if None in features else {"features": features}),
        "splits": [
            {"name": "train", "num_bytes": config.memory_bytes, "num_examples": config.rows}
        ],
        "download_size": config.stored_bytes,
        "dataset_size": config.memory_bytes,
    }


def _feature(field: pa.Field) -> dict[str, Any] | None:
    """A column in the format of `datasets`; None if its type is not known here."""
    kind = field.type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _dtype(kind.value_type)
        length = {"length": kind.list_size} if pa.types.is_fixed_size_list(kind) else {}
        return None if inner is None else {"name": field.name, "list": inner, **length}
    dtype = _dtype(kind)
    return None if dtype is None else {"name": field.name, "dtype": dtype}


def _dtype(kind: pa.DataType) -> str | None:
    names = {"double": "float64", "float": "float32", "halffloat": "float16"}
    is_plain = pa.types.is_primitive(kind) and not pa.types.is_date(kind)
    is_plain = is_plain and not pa.types.is_time(kind) and not pa.types.is_duration(kind)
    if not (is_plain or str(kind) in ("string", "large_string", "binary", "large_binary")):
        return None
    return names.get(str(kind), str(kind))
