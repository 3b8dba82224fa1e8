"""Writes NOTICE.md and dist/baton.cdx.json: what Baton runs with that other people wrote, and under which licences.

`make notice` runs it, after a change of dependencies and for a release. Licences are as the packages name them.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

import baton
from baton.installation import DISTRIBUTION
from house.extras import brought_by
from house.repository import ROOT

NOTICE = ROOT / "NOTICE.md"
BILL = ROOT / "dist" / "baton.cdx.json"
EXTRAS = ("all", "cuda", "bench")
_MOST_CHARACTERS = 120
"""Of a licence's name; some packages put the text there."""
_HEAD = """# Notice

Baton is under Apache-2.0 ([LICENSE](LICENSE)). Its wheel holds nothing of others but the word list of BIP-39
(`baton/security/words.txt`, MIT, Copyright (c) 2013 Pavol Rusnak). What it installs, and its images
hold, are the packages below, unchanged, each under the licence that it names itself and with that licence's text in
its folder `dist-info` (PyTorch's packages for NVIDIA GPUs bring NVIDIA's libraries under NVIDIA's licences).

`crc32c` and `zeroconf` are under LGPL-2.1-or-later: they are installed as packages of their own, whose sources are
where the packages come from, and `pip install` puts a changed one into their place. `make notice` writes this file, and
the same as a bill of materials (CycloneDX) into `dist`.

| package | licence |
|---|---|
"""


class Package(NamedTuple):
    """One that Baton needs, for whichever extra."""

    name: str
    version: str
    licence: str
    """As it names it; empty: it does not."""


def packages() -> list[Package]:
    """Return those that are pinned and that this platform installs, by name."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    installed = {canonicalize_name(each.name) for each in metadata.distributions()}
    return [Package(name, pins[name], _licence(name)) for name in sorted(brought_by(*EXTRAS) & set(pins) & installed)]


def notice() -> str:
    """Return the text of NOTICE.md."""
    return _HEAD + "".join(f"| {each.name} | {each.licence} |\n" for each in packages())


def bill_of_materials() -> dict[str, Any]:
    """Return the same as CycloneDX 1.6."""
    own = {"type": "application", "name": DISTRIBUTION, "version": baton.__version__, "bom-ref": DISTRIBUTION}
    components = [
        {
            "type": "library",
            "name": each.name,
            "version": each.version,
            "bom-ref": each.name,
            "purl": f"pkg:pypi/{each.name}@{each.version}",
            "licenses": [{"license": {"name": each.licence}}],
        }
        for each in packages()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": DISTRIBUTION, "dependsOn": [each["name"] for each in components]}],
    }


def _licence(name: str) -> str:
    told = metadata.metadata(name)
    names = [text.rpartition(":: ")[2] for text in told.get_all("Classifier") or () if text.startswith("License ::")]
    text = str(told.get("License-Expression") or told.get("License") or "").strip()
    return text if text and len(text) <= _MOST_CHARACTERS and "\n" not in text else " or ".join(names)


if __name__ == "__main__":
    NOTICE.write_text(notice())
    BILL.parent.mkdir(exist_ok=True)
    BILL.write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
