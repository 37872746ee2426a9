"""Find documents that hold benchmark texts, and measure how much of an item (a row) they hold.

A document covers an item if it holds at least `contamination.covered` of its n-grams. It quotes the
item if it holds fewer, but one that lies inside a column, such as the question or the answer.
N-grams that many documents of several domains hold do not count, as in the appendix C of GPT-3's
report (arXiv 2005.14165, more than 10 documents): they are licences, headers and famous sentences.
"""

from __future__ import annotations

from typing import Any

from datamask.config.screening import Contamination
from datamask.runs.run import Run
from datamask.storage.duckdb_scratch import SHARD_OF_FILE, execute

MOST_SHOWN = 1000
"""Maximum number of characters recorded of a shared n-gram; words can have any length."""

# Copies of a text count as one document, and a text without a domain as a domain of its own.
_COMMON = """
CREATE TABLE common AS SELECT hash FROM shared JOIN documents USING (shard, row) GROUP BY hash
HAVING count(DISTINCT content) > ? AND count(DISTINCT coalesce(domain, content::VARCHAR)) > 1
"""

_NGRAMS = """
CREATE TABLE ngrams AS SELECT benchmark, item, hash, bool_or(inside) AS inside,
    min(position) AS position, hash IN (FROM common) AS is_common
FROM (SELECT benchmark, item, unnest(hashes) AS hash, unnest(inside) AS inside,
    unnest(range(1, len(hashes) + 1)) AS position FROM read_parquet(?, hive_partitioning = false))
GROUP BY benchmark, item, hash
"""

_CONTAMINATED = f"""
INSERT INTO contaminated WITH counted AS (FROM ngrams WHERE NOT is_common),
sizes AS (SELECT benchmark, item, count(*) AS size FROM counted GROUP BY ALL),
held AS (
    SELECT shard, row, benchmark, item, count(*) AS held, bool_or(inside) AS inside,
        min(word) AS word, arg_min(position, word) AS position
    FROM shared JOIN counted USING (hash) GROUP BY shard, row, benchmark, item
), most AS (
    SELECT *, held / size AS share FROM held JOIN sizes USING (benchmark, item)
    WHERE inside OR held / size >= $covered QUALIFY
        row_number() OVER (PARTITION BY shard, row ORDER BY held / size DESC, benchmark, item) = 1
)
SELECT shard, row, $names[benchmark + 1], word,
    left(array_to_string(words[position : position + $ngram - 1], ' '), {MOST_SHOWN}),
    share
FROM most JOIN read_parquet($benchmarks, hive_partitioning = false) USING (benchmark, item)
"""


def find_contaminated(connection: Any, run: Run) -> None:
    """Make table `contaminated`: shard, row and contamination of documents with benchmark texts.

    If a document holds text of several items, the item with the largest fraction is named. Table
    `ngrams` has the n-grams of all items, and marks common ones. *connection* has the view
    `documents`.
    """
    execute(
        connection,
        "CREATE TABLE contaminated (shard INT, row BIGINT, contaminated_by VARCHAR, "
        "contaminated_at BIGINT, contaminated_ngram VARCHAR, contaminated_share DOUBLE)",
    )
    known = run.settings.quality.contamination
    if known is None:
        return
    for shard in range(run.num_shards):
        run.receipt("screening", shard)
    paths = [str(run.path("screening", shard)) for shard in range(run.num_shards)]
    execute(
        connection,
        f"CREATE TABLE shared AS SELECT {SHARD_OF_FILE} AS shard, row, unnest(shared) AS hash, "
        "unnest(shared_at) AS word FROM "
        "read_parquet(?, hive_partitioning = false, filename = true) WHERE shared IS NOT NULL",
        [paths],
    )
    execute(connection, _COMMON, [known.common])
    run.receipt("benchmark_ngrams")
    benchmarks = str(run.path("benchmark_ngrams"))
    execute(connection, _NGRAMS, [benchmarks])
    names = [known_set.name for known_set in known.sets]
    parameters = {"covered": known.covered, "ngram": known.ngram, "names": names}
    connection.execute(_CONTAMINATED, {**parameters, "benchmarks": benchmarks}).fetchall()


def common_ngrams(connection: Any, known: Contamination) -> dict[str, int]:
    """Count the common n-grams of each benchmark in the table `ngrams`."""
    count = "SELECT benchmark, count(DISTINCT hash) FROM ngrams WHERE is_common GROUP BY ALL"
    counted = dict(execute(connection, count))
    return {known_set.name: counted.get(number, 0) for number, known_set in enumerate(known.sets)}
