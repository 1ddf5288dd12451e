"""What names a version agrees with the package, and a release is refused where it must be."""

from __future__ import annotations

import re

import release
import yaml
from release import SETUP, text

import hetero

PYTHON = SETUP["options"]["python_requires"].removeprefix(">=")
SUPPORT = text("docs/support.md")


def oldest(requirements):
    """Name -> version of lines such as "name>=version; where"."""
    lines = requirements.strip().splitlines()
    return dict(line.partition(";")[0].strip().split(">=") for line in lines)


REQUIRED = oldest(SETUP["options"]["install_requires"])


def test_the_versions_of_the_page_are_those_required():
    shown = dict(re.findall(r"^\| ([\w-]+)[^|]* \| ([\d.]+)[^|]* \|", SUPPORT, re.M))
    extras = oldest(SETUP["options.extras_require"]["cuda"])
    assert shown.pop("Python") == PYTHON
    assert shown.pop("NVRTC") == extras.pop("nvidia-cuda-nvrtc")
    assert {name.lower(): number for name, number in shown.items()} == REQUIRED | extras
    for figure in (r"driver[^|.]* 580", r"compute capability 7\.5"):
        assert re.search(figure, SUPPORT)
        assert re.search(figure, text("docs/install.md"))


def test_every_python_that_is_tried_is_on_the_page_and_allowed():
    assert release.PYTHONS[0] == PYTHON
    assert ", ".join(release.PYTHONS[:-1]) + f" and {release.PYTHONS[-1]}" in SUPPORT


def test_the_conda_recipe_is_that_of_the_package():
    recipe = yaml.safe_load(text("docs/conda/recipe.yaml"))
    assert recipe["context"]["version"] == hetero.__version__
    needed = dict(line.split(" >=") for line in recipe["requirements"]["run"] if ">=" in line)
    assert needed == REQUIRED | {"python": PYTHON}
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry == SETUP["options.entry_points"]["console_scripts"].strip()


def test_the_citation_is_that_of_the_package():
    cited = yaml.safe_load(text("CITATION.cff"))
    assert cited["version"] == hetero.__version__
    assert cited["license"] == SETUP["metadata"]["license"]
    (holder,) = cited["authors"]
    assert holder["name"] in text("LICENSE")
    (source,) = cited["references"]
    method = " ".join(text("docs/method.md").split())
    assert source["title"] in method
    assert f"{source['institution']['name']}, {source['year']}" in method
