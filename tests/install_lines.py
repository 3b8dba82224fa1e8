"""The lines of the documents that install Baton."""

from __future__ import annotations

import re

from house.repository import ROOT

_DOCUMENTS = ("*.md", "docs/**/*.md", "charts/**/*.md", "bench/*.md")


def documented_lines() -> list[str]:
    """Return each `pip install ...` of README and documents that names Baton."""
    texts = [path.read_text() for pattern in _DOCUMENTS for path in sorted(ROOT.glob(pattern))]
    lines = {match[0] for text in texts for match in re.finditer(r"pip install '[^'\n]+'|pip install [^\s'`]+", text)}
    return sorted(line for line in lines if "baton" in line)
