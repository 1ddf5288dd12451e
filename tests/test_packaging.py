"""What `python -m build` makes holds all that the package needs: kernels, profiles, modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import release

import hetero

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's content, built in a path with a space and an umlaut."""
    pytest.importorskip("build")
    top = tmp_path_factory.mktemp("größe und wert")
    source = top / "source"
    hidden = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for place in release.PLACES:
        shutil.copytree(ROOT / place, source / place, ignore=hidden)
    for file in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", top, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = top.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(top / "installed")
    return top / "installed"


def test_a_wheel_holds_every_file(installed):
    wanted = release.files()
    assert len([name for name in wanted if name.endswith(".cu")]) > 20
    here = {file.relative_to(installed).as_posix() for file in installed.rglob("*")}
    assert not wanted - here
    assert f"hetero-{hetero.__version__}.dist-info/METADATA" in here


def test_what_was_built_runs(installed, tmp_path):
    code = """if True:
        import hetero, pathlib
        from hetero import kernels
        from hetero import profile
        from hetero.evaluation import bench
        here = pathlib.Path(hetero.__file__).parent
        assert here.parent == pathlib.Path("%s"), here
        files = [*(here / "kernels").glob("*/*.cu")]
        assert files
        for file in files:
            ladder = file.parent.name + "/" if file.name == "ladder.cu" else ""
            assert kernels.source(ladder + file.name)
        for file in (here / "profile" / "data").glob("*.json"):
            assert profile.shipped(file.stem).name
        assert hetero.matmul([[2.0]], [[3.0]]) == 6.0
    """
    environment = dict(os.environ, PYTHONPATH=str(installed))
    command = [sys.executable, "-c", code % installed]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_sources_that_hide_the_installed_package_say_so(tmp_path):
    """As in a clone after ``pip install .``: there kernels are in another folder."""
    shutil.copytree(ROOT / "hetero", tmp_path / "hetero")
    command = [sys.executable, "-S", "-c", "import hetero"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "or install them by 'pip install -e .' here" in done.stderr.splitlines()[-1]
