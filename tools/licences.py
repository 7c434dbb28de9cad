"""Write docs/licences.md: licences of dependencies, vendored libraries and shipped models.

    python -m tools.licences         writes the page

Run it in an environment that has the package with all extras, because licences are taken from installed metadata.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mnemo.storage.shipped import SHIPPED, load_card, shipped_names

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
VENDORED = ROOT / "mnemo" / "serving" / "studio" / "assets" / "vendor" / "VENDORED.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_FOR_USERS = ("dev", "docs")
"""Extras for work on Mnemo; their packages are not listed."""
NVIDIA = ("cuda-", "nvidia-")
"""How names of NVIDIA's libraries begin, which torch's CUDA builds need; the page has one paragraph about them."""
OF_CUDA_BUILDS = {"triton"}
"""Further packages that only torch's CUDA builds need."""
LONGEST_LICENCE = 80
"""Some packages put their whole licence text into the field for its name."""
INTRODUCTION = """\
# Licences

Mnemo is under the [Apache License 2.0](../LICENSE). This page lists everything that comes with it or is installed with
it. `python -m tools.licences` writes the page; licences are those that the packages state in their metadata, in the
versions that were installed then.
"""
CUDA = """\
Builds of torch for NVIDIA GPUs also install NVIDIA's CUDA libraries (packages `cuda-...` and `nvidia-...`), which are
under NVIDIA's own, proprietary licences; the CPU build does not. Triton is needed by these builds only.
"""
OTHERS = """\
Only in the source distribution, for tests: `axe-core` (MPL-2.0) in `tests/helpers/axe`, and models in
[tests/models](../tests/models/README.md) (Apache-2.0). Corpora and models that `mnemo prepare` and `mnemo tune`
download are not part of Mnemo and have terms of their own. The default corpus consists of the sources of the installed
Python (PSF-2.0), and is not distributed.
"""


def licence(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a package states: an SPDX expression if there is one."""
    metadata = distribution.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    stated = (metadata["License"] or "").strip() if "License" in metadata else ""
    if stated and "\n" not in stated and len(stated) <= LONGEST_LICENCE:
        return stated
    classifiers = [line.split(" :: ") for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    return ", ".join(parts[-1] for parts in classifiers) or "not stated in the metadata"


def direct() -> dict[str, list[str]]:
    """Names of direct dependencies, each with the extras that need it; `mnemo` for the package itself."""
    groups = {"mnemo": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    needed: dict[str, list[str]] = {}
    for group, lines in groups.items():
        for line in lines if group not in NOT_FOR_USERS else ():
            needed.setdefault(canonicalize_name(Requirement(line).name), []).append(group)
    return needed


def closure(lines: Iterable[str]) -> set[str]:
    """Names of all installed packages that the requirements need, directly or through others, without NVIDIA's."""
    seen: set[str] = set()
    waiting = list(lines)
    while waiting:
        requirement = Requirement(waiting.pop())
        key = f"{canonicalize_name(requirement.name)}[{','.join(sorted(requirement.extras))}]"
        if key not in seen and not key.startswith(NVIDIA):
            seen.add(key)
            waiting += _requirements(requirement)
    return {key.partition("[")[0] for key in seen}


def _requirements(requirement: Requirement) -> Iterator[str]:
    for line in importlib.metadata.distribution(requirement.name).requires or []:
        needed = Requirement(line)
        environments = [{**default_environment(), "extra": extra} for extra in ("", *requirement.extras)]
        if needed.marker is None or any(needed.marker.evaluate(each) for each in environments):
            needed.marker = None
            yield str(needed)


def indirect() -> set[str]:
    """Names of packages that only other packages need."""
    extras = [name for name in PROJECT["optional-dependencies"] if name not in NOT_FOR_USERS]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return (closure(lines) | OF_CUDA_BUILDS) - direct().keys()


def vendored() -> list[list[str]]:
    """Rows of the vendored libraries: package, version, licence."""
    rows = re.findall(r"^\| `\S+` \| `(\S+)` \| ([\d.]+) \| `\S+` \| (\S+) \|", VENDORED.read_text(), re.MULTILINE)
    return [list(row) for row in dict.fromkeys(rows)]


def table(titles: list[str], rows: Iterable[list[str]]) -> str:
    head, *body = (f"| {' | '.join(cells)} |\n" for cells in [titles, *rows])
    return "".join([head, "|" + "---|" * len(titles) + "\n", *body])


def page() -> str:
    def stated(name: str) -> str:
        return licence(importlib.metadata.distribution(name))

    packages = [[f"`{name}`", stated(name), ", ".join(groups)] for name, groups in sorted(direct().items())]
    further = [[f"`{name}`", stated(name)] for name in sorted(indirect())]
    models = [[f"`mnemo/shipped/{name}`", load_card(SHIPPED / name)["licence"]] for name in shipped_names()]
    libraries = [[f"`{name}` {version}", kind] for name, version, kind in vendored()]
    where = "in `mnemo/serving/studio/assets/vendor`, with the licence texts"
    sections = [
        INTRODUCTION,
        "## Direct dependencies\n\n`mnemo`: always installed; other names are extras.\n",
        table(["package", "licence", "needed by"], packages),
        "## Packages that these need\n",
        table(["package", "licence"], further),
        CUDA,
        f"## Files in the package\n\nJavaScript libraries of the studio, {where}:\n",
        table(["library", "licence"], libraries),
        "Trained models:\n",
        table(["model", "licence"], models),
        OTHERS,
    ]
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
