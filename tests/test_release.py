"""What names a version agrees with the package, and a release is refused where it must be."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import release
import yaml

import hetero

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
OPTIONS = SETUP["options"]
REQUIRED = dict(
    line.partition(";")[0].strip().split(">=")
    for line in OPTIONS["install_requires"].split("\n")[1:]
)
PYTHON = OPTIONS["python_requires"].removeprefix(">=")
SUPPORT = (ROOT / "docs/support.md").read_text("utf-8")


def test_the_versions_of_the_page_are_those_required():
    shown = dict(re.findall(r"^\| ([\w-]+)[^|]* \| ([\d.]+)[^|]* \|", SUPPORT, re.M))
    extras = dict(line.partition(";")[0].strip().split(">=") for line in cuda())
    assert shown.pop("Python") == PYTHON
    assert shown.pop("NVRTC") == extras.pop("nvidia-cuda-nvrtc")
    assert {name.lower(): number for name, number in shown.items()} == REQUIRED | extras
    install = (ROOT / "docs/install.md").read_text("utf-8")
    for figure in (r"driver[^|.]* 580", r"compute capability 7\.5"):
        assert re.search(figure, SUPPORT)
        assert re.search(figure, install)


def cuda() -> list[str]:
    return SETUP["options.extras_require"]["cuda"].strip().splitlines()


def test_every_python_that_is_tried_is_on_the_page_and_allowed():
    assert release.PYTHONS[0] == PYTHON
    assert ", ".join(release.PYTHONS[:-1]) + f" and {release.PYTHONS[-1]}" in SUPPORT


def test_the_conda_recipe_is_that_of_the_package():
    recipe = yaml.safe_load((ROOT / "docs/conda/recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["version"] == hetero.__version__
    needed = dict(line.split(" >=") for line in recipe["requirements"]["run"] if ">=" in line)
    assert needed == REQUIRED | {"python": PYTHON}
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry == SETUP["options.entry_points"]["console_scripts"].strip()


def test_the_citation_is_that_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == hetero.__version__
    assert cited["license"] == SETUP["metadata"]["license"]
    (holder,) = cited["authors"]
    assert holder["name"] in (ROOT / "LICENSE").read_text("utf-8")
    (source,) = cited["references"]
    method = " ".join((ROOT / "docs/method.md").read_text("utf-8").split())
    assert source["title"] in method
    assert f"{source['institution']['name']}, {source['year']}" in method


@pytest.fixture
def tagged(tmp_path, monkeypatch):
    """A repository whose one commit may be released."""
    number = hetero.__version__
    files = {
        "hetero/__init__.py": f'__version__ = "{number}"\n',
        "CHANGELOG.md": f"# Changelog\n\n## {number} (2030-01-31)\n",
        "CITATION.cff": f"cff-version: 1.2.0\nversion: {number}\nlicense: MIT\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder, *words):
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "all")
    git(folder, "tag", "-f", f"v{hetero.__version__}")


def test_a_tagged_clean_commit_is_released(tagged):
    release.check_marks()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", f"## {hetero.__version__} (unreleased)\n", "CHANGELOG.md has no heading"),
        ("CITATION.cff", "cff-version: 1.2.0\nversion: 9.9.9\n", "CITATION.cff does not say"),
        ("docs.md", "not committed", "not clean"),
    ],
)
def test_a_release_is_refused(name, text, reason, tagged, capsys):
    (tagged / name).write_text(text)
    if "clean" not in reason:
        commit(tagged)
    assert release.main([]) == 1
    assert reason in capsys.readouterr().err


def test_a_release_without_its_tag_is_refused(tagged, capsys):
    git(tagged, "commit", "-q", "--allow-empty", "-m", "later")
    assert release.main([]) == 1
    assert f"no tag v{hetero.__version__}" in capsys.readouterr().err
