"""Builds the source archive and the wheel into dist/, and tries both as a user installs them.

Each Python of `PYTHONS` that is on PATH gets a fresh environment and the wheel; the oldest
one also the wheel with the oldest packages that setup.cfg allows, and the source archive; the
newest one the wheel with the extra `cuda`. No compiler is on the PATH. Then the command, a product
and a convolution run outside the sources. ``make release`` asks for a clean tree at the tag of the
version, vX.Y.Z; ``make release RELEASE=check`` does not.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What a wheel holds: where it lies in the sources and in the package, and by which suffixes.
PLACES = {"hetero": "hetero", "kernels": "hetero/kernels", "calibration": "hetero/calibration"}
SHIPPED = "hetero/calibration/profiles", "hetero/profile/data"
WANTED = (".py", ".cu", ".h", ".c", ".ll", ".json", ".html", ".typed")
# Tests that the unpacked source archive must pass, and what they need.
TESTED = "tests/test_packaging.py", "tests/test_typing.py"
TOOLS = "build", "setuptools>=77", "pytest", "mypy", "basedpyright"
# A product against NumPy's, and a loop that Numba compiles against SciPy's.
SMOKE = """if True:
    import platform, hetero, numba, numpy, scipy
    from scipy.signal import convolve2d
    A, B = numpy.random.default_rng(1).random((2, 300, 300))
    numpy.testing.assert_allclose(hetero.matmul(A, B), A @ B, rtol=1e-13)
    taps = B[:3, :5]
    compiled = hetero.convolve2d(A, taps, method="direct")
    numpy.testing.assert_allclose(compiled, convolve2d(A, taps), rtol=1e-13)
    names = ", ".join(f"{m.__name__} {m.__version__}" for m in (numpy, scipy, numba))
    print(f"Python {platform.python_version()}, {names}; product and convolution right")
"""
# NVRTC needs no driver.
NVRTC = """if True:
    from hetero import kernels
    from hetero.devices.cuda import compiler
    assert compiler.version().startswith("NVRTC")
    text = kernels.kernel_text("probe.cu", "cuda")
    assert compiler.cubin(text, "sm_90", (("BLOCK", 64),))
    print(f"{compiler.version()} compiles a kernel")
"""


class Refused(Exception):
    """What must be put right before a release."""


def run(*command: object, **options) -> str:
    """What the command prints; `Refused`, with all that it printed, where it fails."""
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    done = subprocess.run([str(word) for word in command], text=True, check=False, **options)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout.strip()


def files() -> set[str]:
    """What a wheel must hold, by its place in the package."""
    return {
        f"{target}/{file.relative_to(ROOT / place).as_posix()}".replace(*SHIPPED)
        for place, target in PLACES.items()
        for file in (ROOT / place).rglob("*")
        if file.suffix in WANTED
    }


def version() -> str:
    """The version, which setup.cfg takes from the package too."""
    return re.findall(r'^__version__ = "(.*)"$', (ROOT / "hetero/__init__.py").read_text(), re.M)[0]


def check_marks() -> None:
    """Tag, tree, CHANGELOG and CITATION.cff are those of a release of this version."""
    number = version()
    if run("git", "status", "--porcelain"):
        raise Refused("the tree is not clean; git status lists what is not committed")
    if f"v{number}" not in run("git", "tag", "--points-at", "HEAD").split():
        raise Refused(f"this commit has no tag v{number}: git tag -a v{number}")
    heading = rf"^## {re.escape(number)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, text("CHANGELOG.md"), re.M):
        raise Refused(f"CHANGELOG.md has no heading '## {number} (YYYY-MM-DD)'")
    if f"\nversion: {number}\n" not in text("CITATION.cff"):
        raise Refused(f"CITATION.cff does not say 'version: {number}'")


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def interpreters() -> dict[str, str]:
    """The Python of each version that is on PATH and runs."""
    found = {}
    for wanted in PYTHONS:
        with contextlib.suppress(Refused, OSError):  # a shim for a version that is not chosen
            run(f"python{wanted}", "-c", "import ensurepip", cwd="/")
            found[wanted] = f"python{wanted}"
    return found


def build() -> tuple[Path, Path]:
    """(source archive, wheel), made anew in dist/; the wheel from the archive, as pip does."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # of modules that are gone
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (archive,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", archive, wheel)
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    missing = {f for f in run("git", "ls-files").splitlines() if f != ".gitignore"} - inside
    if missing:
        raise Refused(f"the source archive lacks {sorted(missing)}; see MANIFEST.in")
    return archive, wheel


def environment(python: str, folder: Path, what: str, limits: str) -> dict[str, str]:
    """A fresh environment with `what` in it, within the limits of versions, and its variables."""
    (folder / "limits.txt").write_text(limits)
    run(python, "-m", "venv", folder / "env", cwd=folder)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_", "PYTHON", "XDG_"))}
    kept |= {"PATH": str(folder / "env/bin"), "CC": "false", "CXX": "false"}
    binary = ("--only-binary=:all:", "--no-binary=hetero", "-c", "limits.txt")
    run("env/bin/pip", "install", "-q", *binary, what, cwd=folder, env=kept)
    return kept | {"XDG_CACHE_HOME": str(folder / "cache")}


def installed(folder: Path, variables: dict[str, str]) -> str:
    """What the fresh environment shows; raises where anything is missing or wrong."""
    options = {"cwd": folder, "env": variables}
    (packages,) = (folder / "env/lib").glob("python3*/site-packages")
    here = {file.relative_to(packages).as_posix() for file in packages.glob("hetero/**/*")}
    if missing := files() - here:
        raise Refused(f"not installed: {sorted(missing)}")
    if (said := run("env/bin/hetero", "--version", **options)) != f"hetero {version()}":
        raise Refused(f"hetero --version says {said!r}")
    shown = re.search(r"^```console\n\$ (hetero explain.*)\n((?s:.)*?)```", text("README.md"), re.M)
    explained = run(*f"env/bin/{shown[1]}".split(), **options)
    if explained != shown[2].strip():
        raise Refused(f"{shown[1]} prints not what README.md shows:\n{explained}")
    machine = run("env/bin/hetero", "info", **options).splitlines()
    machine = next(line for line in machine if line.startswith("cpu: "))
    if "unknown" in machine:
        raise Refused(f"hetero info does not know NumPy's BLAS: {machine}")
    smoke = run("env/bin/python", "-c", SMOKE, **options).splitlines()[-1]
    return f"{smoke}; explain as README.md shows it; {len(files())} files there; {machine}"


def tested(folder: Path, archive: Path, variables: dict[str, str]) -> str:
    """The last line of pytest on the unpacked archive."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    options = {"cwd": source, "env": variables}
    run("../../env/bin/pip", "install", "-q", *TOOLS, **options)
    seen = run("../../env/bin/pytest", "-q", *TESTED, **options).splitlines()[-1]
    if "skipped" in seen:
        raise Refused(f"tests of the source archive were skipped: {seen}")
    return f"; {' '.join(TESTED)}: {seen}"


def main(words: list[str]) -> int:
    """Exit code 1, with the reason, at the first thing that is wrong."""
    try:
        if words != ["check"]:
            check_marks()
        archive, wheel = build()
        print(f"{archive.name} and {wheel.name} in dist/; twine check passed")
        found = interpreters()
        if not found:
            raise Refused(f"none of Python {', '.join(PYTHONS)} is on PATH")
        for missing in set(PYTHONS) - found.keys():
            print(f"Python {missing}: not on this machine, not tried")
        every = list(found.values())
        tries = [(python, str(wheel), "") for python in every]
        oldest = SETUP["options"]["install_requires"].replace(">=", "==")
        tries += [(every[0], str(wheel), oldest), (every[0], str(archive), "")]
        tries += [(every[-1], f"{wheel}[cuda]", "")]
        for python, what, limits in tries:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="hetero-release-") as name:
                folder = Path(name)
                variables = environment(python, folder, what, limits)
                seen = installed(folder, variables)
                if what == str(archive):
                    seen += tested(folder, archive, variables)
                if what.endswith("[cuda]"):
                    seen += "; " + run("env/bin/python", "-c", NVRTC, cwd=folder, env=variables)
            print(f"{Path(what).name}: {seen}; {time.monotonic() - began:.0f} s", flush=True)
    except Refused as reason:
        print(f"no release: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
