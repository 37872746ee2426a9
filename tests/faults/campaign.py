"""Seeded faults against real processes: each run is harmed, launched again, and compared.

    python -m tests.faults.campaign --kills 60 --seed 0

After every fault the relaunched run must have the very files of an undisturbed one, and no output
that was done and whole may have been made again. Ends with status 1 if one fault did damage.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from datamask.runs.stages import owner_of
from tests.faults.comparison import contents, finished
from tests.faults.harm import (
    Case,
    cut_output,
    flip_byte,
    flip_unpublished,
    kill_and_cut,
    kill_and_flip,
    kill_extension,
    kill_process,
    put_directory,
    rebuild,
    replace_input,
    small_disk,
    turn_clock_back,
    write_rows,
)
from tests.faults.processes import complete
from tests.faults.recovery import (
    contents_of,
    extend_again,
    relaunch,
    relaunch_often,
    relaunch_on_two_machines,
    remove_directory_and_relaunch,
    verify_and_relaunch,
)
from tests.finished import word_tokenizer

Harm = Callable[[Case, Path, random.Random], str]
Recover = Callable[[Case, Path], None]
WORDS = [f"{first}{second}" for first in ("ba", "ke", "lo", "mi", "nu") for second in "bdfgklmnrst"]
ESTIMATORS = (
    {"metric": "pairwise", "estimator": "policy_gradient", "steps": 60},
    {"metric": "disf", "estimator": "expected", "steps": 40},
    {"metric": "facility_location", "estimator": "expected"},
    {"metric": "disf", "scope": "corpus", "rounds": 2},
)

SOURCES = ((".parquet",), (".jsonl",), (".csv",), (".jsonl", ".csv"))
"""Endings of a case's files, in turn."""

EVALUATION = {
    "hold_out": 0.1,
    "arms": ["ours", "random"],
    "model": "tiny",
    "tokens": 1000,
    "seeds": 2,
    "learning_rates": [0.004],
}
"""Of every second case."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one fault.

    Args:
        kind: which fault.
        told: what exactly was done.
        remade: outputs that were done and whole, and were made again.
        lost: files that the undisturbed run has and this one lacks.
        different: files that are not as in the undisturbed run, or should not be there.
        problem: why there is no result at all; empty if there is.
    """

    kind: str
    told: str
    remade: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    problem: str = ""

    @property
    def survived(self) -> bool:
        """Nothing remade, lost or different."""
        return not (self.remade or self.lost or self.different or self.problem)


def make_case(
    folder: Path, number: int, shards: int = 6, rows: int = 40, **selection: object
) -> Case:
    """A corpus, its settings and an undisturbed run of them."""
    generator = np.random.default_rng(number)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for shard in range(shards):
        lengths = generator.integers(4, 80, rows)
        table = pa.table(
            {
                "id": [f"{shard}-{row}" for row in range(rows)],
                "text": [" ".join(generator.choice(WORDS, length)) for length in lengths],
                "dump": [f"dump {shard % 2}"] * rows,
            }
        )
        endings = SOURCES[number % len(SOURCES)]
        write_rows(corpus / f"{shard}{endings[shard % len(endings)]}", table)
    config = folder / "config.yaml"
    known, earlier = folder / "benchmark.txt", folder / "earlier.parquet"
    known.write_text(" ".join(generator.choice(WORDS, 30)))
    pq.write_table(table.slice(0, 5), earlier)
    places = generator.permutation(shards * rows).tolist()
    lines = (f"{place // rows}-{place % rows},{place % 7}\n" for place in places)
    word_tokenizer(folder / "tokenizer.json", of=WORDS)
    (folder / "scores.csv").write_text("id,score\n" + "".join(lines))
    settings = {
        "source": {"path": str(corpus)},
        "quality": {
            "scores": [{}, {"name": "edu", "kind": "file", "path": str(folder / "scores.csv")}],
            "near_duplicates": {"against": [str(earlier)]},
            "contamination": {"sets": [str(known)], "action": "flag", "ngram": 3},
        },
        "plan": {"rows_per_shard": rows},
        "embedding": {"method": "lexical", "dimension": 32},
        "selection": {"ratio": 0.2, **ESTIMATORS[number % len(ESTIMATORS)], **selection},
        "subset": {"file_bytes": 4096},
        "tokens": {"tokenizer": str(folder / "tokenizer.json")},
        "publication": {
            **{"repository": "someone/subset", "license": "other", "dry_run": True},
            "include": ["tokens"],
        },
    }
    if number % 2:
        settings["evaluation"] = EVALUATION
    config.write_text(yaml.safe_dump(settings))
    case = Case(config, folder / "run", 0.0)
    start = time.perf_counter()
    status, told = complete(rebuild(case, case.reference))
    if status:
        raise RuntimeError(told)
    return Case(config, case.reference, time.perf_counter() - start)


def judge(kind: str, told: str, case: Case, root: Path, recover: Callable[[], None]) -> Outcome:
    """Launch a harmed run again and compare it with the undisturbed one."""
    whole, stamps = contents(case.reference), finished(root)
    spoilt = {name for name in whole if contents_of(root, name) != whole[name]}
    # A digest leaves out the columns of the clock, so it does not see every flipped byte.
    spoilt |= {name for name in whole if name in told}
    # One unit of work makes these and what is spoilt.
    spoilt |= {owner_of(name) for name in spoilt if (root / name).exists()}
    if any(name.startswith("publication/") for name in spoilt):
        spoilt.add("published.json")
    before = {name: stamp for name, stamp in stamps.items() if name not in spoilt}
    outcome = Outcome(kind, told)
    try:
        recover()
    except RuntimeError as error:
        outcome.problem = str(error)
        return outcome
    after, stamps = contents(root), finished(root)
    outcome.remade = [name for name, stamp in before.items() if stamps.get(name) != stamp]
    outcome.lost = sorted(whole.keys() - after.keys())
    outcome.different = sorted(name for name in after if whole.get(name) != after[name])
    return outcome


def fill_disk(case: Case, root: Path, generator: random.Random) -> Outcome:
    """The disk is full in the middle; then it is made larger."""
    needed = sum(-(-path.stat().st_size // 4096) * 4096 for path in case.reference.rglob("*"))
    with small_disk(root, 1 << 30) as enlarge:
        process = rebuild(case, root)
        while not (root / "run.json").exists() and process.poll() is None:
            time.sleep(0.002)
        enlarge(max(int(generator.uniform(0.3, 0.95) * needed), _used(root) + 4096))
        status, told = complete(process)
        what = f"disk of {needed} bytes full at {_used(root)}: status {status}"
        if status == 0:
            return Outcome("full disk", what, problem="the run did not notice the full disk")
        if "Traceback" in told or status != 75:
            return Outcome("full disk", what, problem=told)
        enlarge(1 << 30)
        return judge("full disk", what, case, root, lambda: relaunch(case, root))


def _used(root: Path) -> int:
    return shutil.disk_usage(root).used


FAULTS: dict[str, tuple[Harm, Recover]] = {
    "killed": (kill_process, relaunch),
    "killed, file cut": (kill_and_cut, verify_and_relaunch),
    "killed while extended": (kill_extension, extend_again),
    "clock turned back": (turn_clock_back, relaunch),
    "file cut": (cut_output, verify_and_relaunch),
    "byte flipped": (flip_byte, verify_and_relaunch),
    "byte flipped, not verified": (flip_byte, relaunch_often),
    "byte flipped between stages": (kill_and_flip, relaunch_often),
    "byte flipped before publishing": (flip_unpublished, relaunch_often),
    "input replaced": (replace_input, relaunch_often),
    "directory in place of a file": (put_directory, remove_directory_and_relaunch),
    "two machines without common locks": (kill_process, relaunch_on_two_machines),
}
REMAKES = ("two machines without common locks",)
"""Kinds after which outputs may have been made twice."""


def inflict(kind: str, case: Case, root: Path, generator: random.Random) -> Outcome:
    """One fault of a kind on a new run folder."""
    if kind == "full disk":
        return fill_disk(case, root, generator)
    harm, recover = FAULTS[kind]
    try:
        told = harm(case, root, generator)
    except RuntimeError as error:
        return Outcome(kind, "while the fault was inflicted", problem=str(error))
    outcome = judge(kind, told, case, root, lambda: recover(case, root))
    return replace(outcome, remade=[]) if kind in REMAKES else outcome


def draw_kind(generator: random.Random) -> str:
    """Choose a fault: a fourth are kills at any moment."""
    kinds = [*FAULTS, "full disk"]
    return generator.choices(kinds, [4 if kind == "killed" else 1 for kind in kinds])[0]


def report(outcomes: list[Outcome], cases: int) -> str:
    """Counts by kind, and every fault that did damage."""
    counts = Counter(outcome.kind for outcome in outcomes)
    survived = Counter(outcome.kind for outcome in outcomes if outcome.survived)
    lines = [f"{len(outcomes)} faults against {cases} different runs", ""]
    lines += [f"{kind:28s} {survived[kind]:3d} of {counts[kind]:3d} survived" for kind in counts]
    lines += [
        f"{'outputs made again':28s} {sum(len(o.remade) for o in outcomes):3d}",
        f"{'files lost':28s} {sum(len(o.lost) for o in outcomes):3d}",
        f"{'files different':28s} {sum(len(o.different) for o in outcomes):3d}",
    ]
    for outcome in outcomes:
        if not outcome.survived:
            lines.append(f"\n{outcome}")
    return "\n".join(lines)


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="faults in the folder's own process")
    parser.add_argument("--services", type=int, default=12, help="faults of server and workers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = [make_case(Path(folder) / f"case{n}", n) for n in range(len(ESTIMATORS))]
        outcomes = []
        for number in range(arguments.kills):
            generator = random.Random(f"{arguments.seed} {number}")
            root = Path(folder) / f"fault{number}" / "run"
            kind, case = draw_kind(generator), generator.choice(cases)
            outcomes.append(inflict(kind, case, root, generator))
            _tell(outcomes[-1], number)
            shutil.rmtree(root.parent, ignore_errors=True)
        if arguments.services:
            from tests.faults.services import against_services

            state = Path(folder) / "services"
            found = against_services(cases, state, arguments.services, arguments.seed)
            for number, outcome in enumerate(found):
                outcomes.append(outcome)
                _tell(outcome, arguments.kills + number)
    print(f"\n{report(outcomes, len(cases))}")
    sys.exit(0 if all(outcome.survived for outcome in outcomes) else 1)


def _tell(outcome: Outcome, number: int) -> None:
    verdict = "survived" if outcome.survived else "DAMAGE"
    print(f"{number:3d}  {verdict:8s}  {outcome.kind}: {outcome.told}", flush=True)
    if not outcome.survived:
        print(f"     {outcome}", flush=True)


if __name__ == "__main__":
    main()
