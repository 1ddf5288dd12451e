"""Plant mistakes one by one, run the tests that should see them, and list those that none saw.

    python tests/mutants.py --seed 7 --count 150 -j 2        (or: make mutants)

Mutants are drawn with a seed from the modules that ``mutants.toml`` names, which also says which
test files are asked, most likely ones first, and which mutants a person has found to change no
result, with the reason. Every mutant is tested in a copy of the tree.

Exit status 1: fewer than 95 % were killed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from mutations import Mutation, mutations

ROOT = Path(__file__).parent.parent
_BAR = 0.95
_SLOWER = 3.0  # a mutant may take so many times as long as the tests without it, and some seconds
_SECONDS_MORE = 30.0


class Tree:
    """A copy of the sources and tests, in which one mutant at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # As installed: the packages within packages that setup.cfg maps there.
        for inner in ("kernels", "calibration"):
            (folder / "hetero" / inner).symlink_to(folder / inner)
        if (folder / "calibration" / "profiles").is_dir():
            (folder / "hetero" / "profile" / "data").symlink_to(folder / "calibration" / "profiles")

    def run(self, tests: list[str], limit: float, fresh: bool) -> tuple[str, float, str]:
        """(outcome, seconds, last lines): "survived", "killed" or "killed by its time limit".

        ``fresh``: compiled kernels of earlier runs are not used; they would hide the mutant.
        """
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["--no-header", "-m", "not timing and not gpu", *tests]
        compiled = self.folder / "compiled"
        if fresh:
            compiled = Path(tempfile.mkdtemp(dir=self.folder))
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(compiled),
        }
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=limit)[0].decode(errors="replace")
            outcome = "survived" if process.returncode == 0 else "killed"
            if process.returncode == 5 or "ModuleNotFoundError: No module named 'hetero" in output:
                raise SystemExit(f"no tests ran:\n{output[-2000:]}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0].decode(errors="replace")
            outcome = "killed by its time limit"
        finally:
            if fresh:
                shutil.rmtree(compiled, ignore_errors=True)
        tail = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
        return outcome, time.monotonic() - started, "\n".join(tail[-3:])


def draw(
    table: dict[str, Any], seed: int, count: int, only: str = ""
) -> list[tuple[str, Mutation]]:
    """Mutants in random order, each module as likely as the number of its mutations."""
    found = []
    for module in modules(table):
        if only not in module:
            continue
        source = (ROOT / module).read_bytes()
        found += [(module, m) for m in mutations(source) if not excluded(table, module, source, m)]
    random.Random(seed).shuffle(found)
    return found[:count]


def modules(table: dict[str, Any]) -> list[str]:
    """Paths of the modules that are mutated."""
    found = {str(p.relative_to(ROOT)) for g in table["group"] for p in _files(g)}
    return sorted(m for m in found if not m.endswith("__init__.py"))


def _files(group: dict[str, Any]) -> list[Path]:
    return [path for pattern in group["modules"] for path in ROOT.glob(pattern)]


def tests_of(table: dict[str, Any], module: str) -> list[str]:
    """Test files that are asked about a module's mutants: the first group that names it."""
    for group in table["group"]:
        if ROOT / module in _files(group):
            return [_file_of(name) for name in group["tests"]]
    raise KeyError(module)


def _file_of(name: str) -> str:
    """Where a test file lies, by its name."""
    (found,) = (ROOT / "tests").rglob(f"{name}.py")
    return str(found.relative_to(ROOT))


def excluded(table: dict[str, Any], module: str, source: bytes, mutation: Mutation) -> bool:
    """Whether a person has put it on the list, by module and function, line's text or change."""
    text = source.splitlines()[mutation.line - 1].decode().strip()
    return any(
        entry["module"] == module
        and entry.get("function", mutation.function) == mutation.function
        and entry.get("line", text) == text
        and entry.get("change", mutation.change) == mutation.change
        for entry in table.get("excluded", ())
    )


def test(tree: Tree, module: str, mutation: Mutation, tests: list[str], limit: float) -> dict:
    """Plant a mutant, run its tests, take it out again; what is told of it."""
    path = tree.folder / module
    source, times = path.read_bytes(), path.stat()
    mutant = mutation.apply(source)
    try:
        path.write_bytes(mutant)
        fresh = module.startswith("kernels/")
        outcome, seconds, _ = tree.run(tests, limit, fresh)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    before, after = (x.decode().splitlines() for x in (source, mutant))
    diff = difflib.unified_diff(before, after, module, module, lineterm="", n=2)
    return {
        "module": module,
        "function": mutation.function,
        "line": mutation.line,
        "change": mutation.change,
        "outcome": outcome,
        "seconds": round(seconds, 1),
        "diff": "\n".join(diff),
    }


def run(table: dict[str, Any], drawn: list, jobs: int) -> list:
    """Test what was drawn; what is told of each."""
    entries: list[dict] = []
    limits: dict[tuple[str, ...], float] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: queue.Queue[Tree] = queue.Queue()
        for job in range(jobs):
            trees.put(Tree(Path(folder) / str(job)))

        def limit(tree: Tree, module: str, tests: list[str]) -> float:
            """Seconds that a mutant may take; the tests must pass without one."""
            if tuple(tests) not in limits:
                outcome, seconds, tail = tree.run(tests, 1800.0, module.startswith("kernels/"))
                if outcome != "survived":
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise SystemExit(f"{' '.join(tests)} fail without a mutant:\n{tail}")
                limits[tuple(tests)] = _SLOWER * seconds + _SECONDS_MORE
            return limits[tuple(tests)]

        def one(item: tuple[str, Mutation]) -> dict:
            tests = tests_of(table, item[0])
            tree = trees.get()
            try:
                return test(tree, *item, tests, limit(tree, item[0], tests))
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for done in concurrent.futures.as_completed([pool.submit(one, x) for x in drawn]):
                entry = done.result()
                entries.append(entry)
                print(
                    f"{len(entries)}/{len(drawn)} {entry['outcome']}: {entry['module']}:"
                    f"{entry['line']} {entry['change']} ({entry['seconds']} s)",
                    flush=True,
                )
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="modules with this in their path")
    arguments = parser.parse_args()
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())
    drawn = draw(table, arguments.seed, arguments.count, arguments.only)
    entries = run(table, drawn, arguments.jobs)
    survived = [e for e in entries if e["outcome"] == "survived"]
    for entry in survived:
        print(f"\nsurvived in {entry['function'] or 'the module'}:\n{entry['diff']}")
    killed = len(entries) - len(survived)
    print(f"\n{killed} of {len(entries)} killed, {killed / max(len(entries), 1):.1%}")
    return int(killed < _BAR * len(entries))


if __name__ == "__main__":
    sys.exit(main())
