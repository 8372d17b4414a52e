"""Mutation testing: change one detail of a module, run its tests, and list the changes that no test detects.

    python -m bench mutants [MODULE …] [--sample N] [--seed S] [--jobs J]

A seeded sample of each module's mutants runs in a copy of the tree. Results are kept in .mutants/results.jsonl, so the
same command resumes. A mutant runs again when the code of its module or of its tests changes. Survivors that no test
can or should catch are listed with the reason in bench/survivors.toml.

Why not a library: mutmut 3 leaves out decorated functions and constants of modules, and forks a process in which torch
has started threads; cosmic-ray changes the working tree itself, drops no statements, and takes one test command for all
modules; mutatest needs a release of coverage that no longer installs beside the rest. None of them samples with a seed.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

import numpy as np

from bench.mutation_operators import Mutant, mutants_of

ROOT = Path(__file__).parent.parent
RESULTS = Path(".mutants") / "results.jsonl"
SURVIVORS = Path("bench") / "survivors.toml"
NOT_COPIED = (".venv", ".git", ".mutants", "__pycache__", ".hypothesis", ".*_cache", "demo", "runs", "collection")
SAMPLE, JOBS = 15, 2
# The timeout of a mutant: a constant plus a multiple of the duration of the tests without mutation.
LEAST_SECONDS, TIMES_LONGER = 20.0, 4.0
MEMORY = 8 << 30  # bytes of address space: a mutant that allocates without end fails instead of filling the machine
GOAL = 0.9  # minimal fraction of mutants that the tests should catch
CAUGHT, SURVIVED, TIMED_OUT = "caught", "survived", "timed out"

# A module and the tests that should catch its mutants.
SIMILARITIES, OBJECTIVES = "tests/similarities/test_similarities.py", "tests/objectives/test_objectives.py"
TRANSPORT = [f"tests/transport/test_{name}.py" for name in ("plan", "losses", "dual", "laplacian", "matrix")]
INDEXING = [
    "tests/search/test_ingest.py",
    "tests/search/test_item.py",
    "tests/search/test_collection.py",
    "tests/search/test_collection_changes.py",
    "tests/search/test_collection_faults.py",
]
TESTS: dict[str, list[str]] = {
    "triptych/objectives/infonce.py": ["tests/objectives/test_infonce.py", OBJECTIVES],
    "triptych/objectives/sigmoid.py": ["tests/objectives/test_sigmoid.py", OBJECTIVES],
    "triptych/objectives/contrastive.py": ["tests/objectives/test_contrastive.py", OBJECTIVES],
    "triptych/objectives/triplet.py": ["tests/objectives/test_triplet.py", OBJECTIVES],
    "triptych/objectives/align_uniform.py": ["tests/objectives/test_align_uniform.py", OBJECTIVES],
    "triptych/objectives/matching.py": [
        "tests/objectives/test_matching.py",
        "tests/objectives/test_matching_noise_rate.py",
        OBJECTIVES,
    ],
    "triptych/objectives/objective.py": ["tests/objectives/test_objective.py", OBJECTIVES],
    "triptych/objectives/scores.py": ["tests/objectives/test_scores.py"],
    "triptych/objectives/temperature.py": ["tests/objectives/test_temperature.py"],
    "triptych/objectives/distill.py": ["tests/objectives/test_distill.py", OBJECTIVES],
    "triptych/transport/matrix.py": TRANSPORT,
    "triptych/transport/laplacian.py": TRANSPORT,
    "triptych/transport/dual.py": TRANSPORT,
    "triptych/transport/plan.py": TRANSPORT,
    "triptych/transport/losses.py": TRANSPORT,
    "triptych/similarities/cosine.py": ["tests/similarities/test_cosine.py", SIMILARITIES],
    "triptych/similarities/dot.py": ["tests/similarities/test_dot.py", SIMILARITIES],
    "triptych/similarities/mahalanobis.py": ["tests/similarities/test_mahalanobis.py", SIMILARITIES],
    "triptych/similarities/matchmap.py": ["tests/similarities/test_matchmap.py", SIMILARITIES],
    "triptych/similarities/word_region.py": ["tests/similarities/test_word_region.py", SIMILARITIES],
    "triptych/search/ranking.py": [
        "tests/search/test_ranking.py",
        "tests/search/test_ranking_relevance.py",
        "tests/search/test_query.py",
        "tests/search/test_collection_rerank.py",
    ],
    "triptych/search/ingest.py": INDEXING,
    "triptych/evaluation/retrieval.py": ["tests/evaluation/test_retrieval.py"],
    "triptych/evaluation/significance.py": ["tests/evaluation/test_significance.py"],
    "triptych/evaluation/judgements.py": ["tests/evaluation/test_judgements.py"],
    "triptych/evaluation/ranked_relevance.py": ["tests/evaluation/test_ranked_relevance.py"],
    "triptych/evaluation/score_metrics.py": ["tests/evaluation/test_score_metrics.py"],
    "triptych/training/run_directory.py": [
        "tests/training/test_run_directory.py",
        "tests/training/test_loop_resume.py",
    ],
    "triptych/training/epoch.py": ["tests/training/test_epoch.py", "tests/training/test_loop.py"],
    "triptych/training/metrics_log.py": ["tests/training/test_metrics_log.py"],
}

# The program of the test process: limit the memory, then run pytest.
RUN = """
import resource, sys, pytest
limit = int(sys.argv[1])
if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
sys.exit(pytest.main(sys.argv[2:]))
"""
PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0"]


@dataclass(frozen=True)
class Result:
    """The outcome of a mutant."""

    mutant: Mutant
    outcome: str
    diff: list[str]
    reason: str = ""  # why a survivor is accepted


def sample(mutants: Sequence[Mutant], count: int, seed: int, path: str) -> list[Mutant]:
    """Sample at most `count` mutants of a module, in source order; deterministic for a seed."""
    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    chosen = rng.choice(len(mutants), min(count, len(mutants)), replace=False)
    return [mutants[i] for i in sorted(chosen.tolist())]


def run_tests(tree: Path, tests: Sequence[str], timeout: float | None = None) -> str:
    """Run tests in a copy of the tree; kill all processes that the tests started."""
    # No bytecode files: Python would reuse the bytecode of another mutant with equal time and size.
    # No plugins but Hypothesis: loading all of them takes seconds for each mutant.
    settings = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = os.environ | {"PYTHONPATH": str(tree)} | settings
    command = [sys.executable, "-c", RUN, str(MEMORY), *PYTEST, *tests]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        with suppress(ProcessLookupError):  # all processes have exited
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return SURVIVED if code == 0 else CAUGHT


def copy_tree(root: Path, folder: Path) -> Path:
    """Copy the tree without generated files, and compile it."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
    # Python compares the hash of the source, so a mutant never runs with the bytecode of the unchanged module.
    compileall.compile_dir(folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def compute_key(root: Path, mutant: Mutant, tests: Sequence[str]) -> str:
    """Return the key of a mutant's result: a hash of the code of the changed module and its tests."""
    digest = hashlib.sha256(mutant.path.encode())
    digest.update(code_without_prose(mutant.apply((root / mutant.path).read_text())))
    for test in tests:
        digest.update(code_without_prose((root / test).read_text()))
    return digest.hexdigest()[:16]


def code_without_prose(text: str) -> bytes:
    """Return a form of the code that does not change with comments, docstrings and line breaks."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree).encode()


def read_results(path: Path) -> dict[str, str]:
    """Read the outcomes of earlier runs; an incomplete line is ignored."""
    outcomes: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        outcomes[record["key"]] = record["outcome"]
    return outcomes


def accepted_reason(root: Path, mutant: Mutant, diff: Sequence[str]) -> str:
    """Return the reason why a survivor is accepted, or an empty string if it is not accepted."""
    path = root / SURVIVORS
    listed = tomllib.loads(path.read_text()).get("survivor", []) if path.exists() else []
    for survivor in listed:
        if survivor["path"] == mutant.path and f"- {survivor['before']}" in diff and f"+ {survivor['after']}" in diff:
            return survivor["reason"]
    return ""


class Runner:
    """Run mutants in copies of the tree, several at a time, and store each outcome at once."""

    def __init__(self, root: Path, jobs: int) -> None:
        self.root, self.jobs = root, jobs
        self.outcomes = read_results(root / RESULTS)

    def run(self, chosen: dict[str, list[Mutant]], tests: dict[str, list[str]]) -> Iterable[Result]:
        """Yield the results of all sampled mutants, those of earlier runs first."""
        pending: list[Mutant] = []
        for mutant in (m for mutants in chosen.values() for m in mutants):
            outcome_before = self.outcomes.get(compute_key(self.root, mutant, tests[mutant.path]))
            if outcome_before:
                yield self._make_result(mutant, outcome_before)
            else:
                pending.append(mutant)
        if not pending:
            return
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(self.jobs) as pool:
            trees: SimpleQueue[Path] = SimpleQueue()
            for i in range(self.jobs):
                trees.put(copy_tree(self.root, Path(folder) / str(i)))
            paths = sorted({mutant.path for mutant in pending})
            timeouts = dict(
                zip(paths, pool.map(lambda path: self._measure_timeout(trees, path, tests[path]), paths), strict=True)
            )
            futures = {pool.submit(self._test, trees, m, tests[m.path], timeouts[m.path]): m for m in pending}
            for future in as_completed(futures):
                mutant, outcome = futures[future], future.result()
                self._save_outcome(compute_key(self.root, mutant, tests[mutant.path]), mutant, outcome)
                yield self._make_result(mutant, outcome)

    def _measure_timeout(self, trees: SimpleQueue[Path], path: str, tests: Sequence[str]) -> float:
        """Measure the timeout of a module's mutants; the tests must pass on the unchanged module."""
        tree = trees.get()
        try:
            started = time.perf_counter()
            if run_tests(tree, tests) != SURVIVED:
                sys.exit(f"{path}: its tests fail without a mutation; run: pytest {' '.join(tests)}")
            return LEAST_SECONDS + TIMES_LONGER * (time.perf_counter() - started)
        finally:
            trees.put(tree)

    def _test(self, trees: SimpleQueue[Path], mutant: Mutant, tests: Sequence[str], timeout: float) -> str:
        tree = trees.get()
        source = (self.root / mutant.path).read_text()
        try:
            (tree / mutant.path).write_text(mutant.apply(source))
            return run_tests(tree, tests, timeout)
        finally:
            (tree / mutant.path).write_text(source)
            trees.put(tree)

    def _save_outcome(self, key: str, mutant: Mutant, outcome: str) -> None:
        path = self.root / RESULTS
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"key": key, "path": mutant.path, "line": mutant.line, "outcome": outcome}) + "\n")

    def _make_result(self, mutant: Mutant, outcome: str) -> Result:
        diff = mutant.diff((self.root / mutant.path).read_text())
        reason = accepted_reason(self.root, mutant, diff) if outcome == SURVIVED else ""
        return Result(mutant, outcome, diff, reason)


def report(results: Sequence[Result], totals: dict[str, int]) -> str:
    """Format a table of all modules, and each survivor with its line, its change and the reason if accepted."""
    lines = ["| module | mutants | run | caught | timed out | survived | accepted |", "|---|---|---|---|---|---|---|"]
    for path, total in totals.items():
        module_results = [result for result in results if result.mutant.path == path]
        count = Counter(result.outcome for result in module_results)
        accepted = sum(bool(result.reason) for result in module_results)
        lines.append(
            f"| {path} | {total} | {len(module_results)} | {count[CAUGHT]} | {count[TIMED_OUT]} | {count[SURVIVED]} "
            f"| {accepted} |"
        )
    for result in sorted(results, key=lambda r: (r.mutant.path, r.mutant.start)):
        if result.outcome == SURVIVED:
            lines += ["", f"{result.mutant.path}:{result.mutant.line}  {result.mutant.operator}"]
            lines += [f"    {line}" for line in result.diff] + (
                [f"    accepted: {result.reason}"] * bool(result.reason)
            )
    lines += ["", f"caught: {100 * compute_caught_fraction(results):.1f}% of {len(results)}; goal: {100 * GOAL:.0f}%"]
    return "\n".join(lines)


def compute_caught_fraction(results: Sequence[Result]) -> float:
    """Return the fraction of mutants that were caught or timed out. Accepted survivors are not counted."""
    counted = [result for result in results if not result.reason]
    return sum(result.outcome != SURVIVED for result in counted) / max(1, len(counted))


def main(arguments: Sequence[str] = (), root: Path = ROOT, table: dict[str, list[str]] = TESTS) -> int:
    """Run a sample of mutants of the named modules, or of all modules; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="a path, or a prefix of paths; default: all")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants per module (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of parallel processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    chosen: dict[str, list[Mutant]] = {}
    totals: dict[str, int] = {}
    for path in table:
        if not options.modules or path.startswith(tuple(options.modules)):
            mutants = mutants_of(path, (root / path).read_text())
            totals[path], chosen[path] = len(mutants), sample(mutants, options.sample, options.seed, path)
    if not chosen:
        parser.error(f"no module of the table starts with {' or '.join(options.modules)}; it has {', '.join(table)}")
    results: list[Result] = []
    count = sum(map(len, chosen.values()))
    for result in Runner(root, options.jobs).run(chosen, table):
        results.append(result)
        print(f"{len(results)}/{count} {result.outcome:<9} {result.mutant.path}:{result.mutant.line}", flush=True)
    print(report(results, totals))
    return int(compute_caught_fraction(results) < GOAL)
