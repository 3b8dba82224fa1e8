"""Where this machine's pip looks for packages, so that steps in another root file system look there too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def pip_environment() -> Mapping[str, str]:
    """Return pip's configuration on this machine, files and variables, as PIP_ variables."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=60
    )
    variables = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in ("global", "install", ":env:"):
            variables[f"PIP_{key.upper().replace('-', '_')}"] = " ".join(str(ast.literal_eval(value)).split())
    return variables


def files_named(variables: Mapping[str, str]) -> Mapping[str, Path]:
    """Return the files and folders of this machine that variables name, each by its own path.

    An index of packages in a folder, `.../simple`, leads to files beside it: of such, the folder around it.
    """
    paths = {Path(word.removeprefix("file://")) for value in variables.values() for word in value.split()}
    wanted = {path.parent if path.name == "simple" else path for path in paths if path.is_absolute()}
    return {str(path): path for path in sorted(wanted) if os.path.exists(path)}
