"""What names a version agrees with the package, and a release is refused where it must be."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

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
