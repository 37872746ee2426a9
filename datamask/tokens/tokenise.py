"""Stage `tokenised`: each document of the subset as tokens, once, whatever its repeats and place.

For a file of the subset, `tokenised/NNNNN.bin` has the tokens, each document with a token for its
end, and `tokenised/NNNNN.parquet` says where each document begins. Another order tokenises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datamask.config.compute import Compute
from datamask.config.outputs import Tokens
from datamask.config.settings import Settings
from datamask.errors import SettingsError
from datamask.runs import schemas
from datamask.runs.files import reading, replace_file
from datamask.runs.in_progress import advance
from datamask.runs.output import write_output
from datamask.runs.run import Run
from datamask.runs.stages import Unit
from datamask.source import token_counts

PIN = "tokenised:tokenizer"
"""Key of the pin of the tokenizer's definition."""


def wanted(settings: Settings) -> Tokens:
    """Return the settings of tokens, for a run that has them."""
    assert settings.tokens is not None, "stages of tokens are there with these settings only"
    return settings.tokens


def pin_tokenizer(settings: Settings) -> dict[str, str]:
    """Return the pins of the tokenizer for the stages that use it.

    Raises:
        SettingsError: it does not exist, cannot be read or has no end of document, or the source
            has no text.
    """
    tokens = wanted(settings)
    if settings.source.layout == "features":
        raise SettingsError("tokens: needs text; layout `features` has none")
    digest = token_counts.tokenizer_digest(tokens.tokenizer, "tokens.tokenizer")
    tokenizer = token_counts.load_tokenizer(tokens.tokenizer, "tokens.tokenizer", digest)
    token_counts.end_of_document(tokenizer, tokens.tokenizer, tokens.end_of_document)
    pins = {PIN: digest} | ({"scores:tokenizer": digest} if settings.counts_for_trainer else {})
    if not Path(tokens.tokenizer).exists():
        from huggingface_hub import try_to_load_from_cache

        # The card names the commit that was loaded; the digest decides if the tokens still hold.
        loaded = try_to_load_from_cache(tokens.tokenizer, "tokenizer.json")
        pins |= {"publication:tokenizer": Path(loaded).parent.name} if loaded else {}
    return pins


def units(run: Run) -> list[Unit]:
    """List a unit for each file of the subset."""
    numbers = range(run.num_units("subset"))
    return [Unit(f"tokenised/{number:05d}", None, (("subset", number),)) for number in numbers]


def tokenise(run: Run, unit: int, compute: Compute) -> None:
    """Write the tokens of a file of the subset, and where its documents are.

    The receipt's metrics: `type` of a token, `end` (the token at the end of a document), `tokens`,
    `with_special` (documents with the name of a special token in their text).
    """
    tokens, documents = wanted(run.settings), run.receipt("subset", unit).rows
    planned = run.pinned_revisions[PIN]
    tokenizer = token_counts.load_tokenizer(tokens.tokenizer, "tokens.tokenizer", planned)
    end = token_counts.end_of_document(tokenizer, tokens.tokenizer, tokens.end_of_document)
    kind, tables = np.dtype(token_counts.token_type(tokenizer)), [schemas.TOKENISED.empty_table()]
    special = token_counts.special_tokens(tokenizer, tokens.end_of_document)
    pattern = "|".join(map(re.escape, special))
    start = done = with_special = 0
    path = run.root / run.beside("tokenised", unit)[0]
    with replace_file(path, run.storage) as temporary, temporary.open("wb") as file:
        for facts, texts in _documents(run, unit):
            lengths = np.zeros(len(texts), np.int64)
            with_special += pc.sum(pc.match_substring_regex(texts, pattern)).as_py() or 0
            encoded = token_counts.encode(tokenizer, texts.to_pylist(), tokens.end_of_document)
            for number, ids in enumerate(encoded):
                ids.append(end)
                lengths[number] = len(ids)
                file.write(np.array(ids, kind).data)
            starts = start + np.cumsum(lengths) - lengths
            arrays = [*facts, pa.array(starts), pa.array(lengths)]
            tables.append(pa.Table.from_arrays(arrays, schema=schemas.TOKENISED))
            start, done = start + int(lengths.sum()), done + len(texts)
            advance(done, documents)
    metrics: dict[str, Any] = {"type": kind.name, "end": end, "tokens": start}
    metrics["with_special"] = with_special
    table = pa.concat_tables(tables)
    write_output(run, "tokenised", unit, schemas.TOKENISED, [table], metrics)


def _documents(run: Run, unit: int) -> Iterator[tuple[list[pa.Array], pa.Array]]:
    """Yield ids, quality and repeats of some documents of a file of the subset, and their texts."""
    source, prefix = run.settings.source, run.settings.subset.column_prefix
    columns = [source.id_column, source.columns.text, f"{prefix}quality"]
    columns += [f"{prefix}repeat"] if run.settings.selection.max_repeat > 1 else []
    path = run.path("subset", unit)
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(token_counts.TEXTS_AT_ONCE, columns=columns):
            ids, texts, quality, *repeat = (batch.column(name) for name in columns)
            repeats = repeat[0] if repeat else pa.repeat(pa.scalar(1, pa.int32()), len(ids))
            yield [ids.cast(pa.string()), quality, repeats], texts
