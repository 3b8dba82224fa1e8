"""What must not be in the repository."""

from __future__ import annotations

import re

from house.repository import ROOT, tracked_files

_MACHINE_PATH = re.compile(rb"(?<![\w.:/}-])/(?:work|home|root|Users|private)/")
_REGISTRY_HOST = re.compile(
    rb"pypi\.org|pythonhosted\.org|download\.pytorch\.org|npmjs\.org|index[-]url|find[-]links|registry\.npm"
)
_MAX_FILE_BYTES = 10 * 1024 * 1024


def test_no_file_names_a_path_of_one_machine() -> None:
    """Home directories and work folders exist on one machine only."""
    assert _files_with(_MACHINE_PATH) == []


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the business of the machine that installs them."""
    assert _files_with(_REGISTRY_HOST) == []


def test_no_file_is_huge() -> None:
    """The repository holds no models; the demo checkpoint is the largest file."""
    huge = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}

    assert {name: size for name, size in huge.items() if size > _MAX_FILE_BYTES} == {}


def _files_with(pattern: re.Pattern[bytes]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in tracked_files() if pattern.search(path.read_bytes())]
