"""What `python -m build` makes holds all that the package needs: kernels, profiles, modules."""

from __future__ import annotations

import shutil
import zipfile

import processes
import pytest
import release

import hetero


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's content, built in a path with a space and an umlaut."""
    pytest.importorskip("build")
    top = tmp_path_factory.mktemp("größe und wert")
    source = top / "source"
    hidden = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for place in release.PLACES:
        shutil.copytree(release.ROOT / place, source / place, ignore=hidden)
    for file in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(release.ROOT / file, source)
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", top, source]
    processes.python(*command, timeout=None)
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
        from hetero import kernels, profile
        from hetero.evaluation import bench
        assert pathlib.Path(hetero.__file__).parents[1] == pathlib.Path("%s"), hetero.__file__
        assert kernels.source("matvec.cu") and kernels.source("matvec/ladder.cu")
        assert profile.shipped("h100").name
        assert hetero.matmul([[2.0]], [[3.0]]) == 6.0
    """
    processes.python("-c", code % installed, cwd=tmp_path, PYTHONPATH=str(installed))


def test_sources_that_hide_the_installed_package_say_so(tmp_path):
    """As in a clone after ``pip install .``: there kernels are in another folder."""
    shutil.copytree(release.ROOT / "hetero", tmp_path / "hetero")
    done = processes.python("-S", "-c", "import hetero", code=1, cwd=tmp_path)
    assert "or install them by 'pip install -e .' here" in done.stderr.splitlines()[-1]
