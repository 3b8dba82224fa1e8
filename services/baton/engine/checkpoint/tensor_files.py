"""Tensors in safetensors files, found by their headers and read by rows, without any framework."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baton.errors import ConfigurationError
from baton.kv.numpy_codec import E4M3

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""Elements as they lie in a file."""
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

_POINTER_BEGIN = b"version "
"""First bytes of what Git leaves where LFS keeps a file."""
_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?", "F8_E4M3": "u1", "F8_E8M0": "u1"}
_KINDS |= {"U64": "<u8", "I64": "<i8", "U32": "<u4", "I32": "<i4", "U16": "<u2", "I16": "<i2", "U8": "u1", "I8": "i1"}
"""How numpy reads the number formats of safetensors; those that it lacks as whole numbers."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Where its first byte is."""

    def array(self) -> Array:
        """Return the elements, mapped: what is not looked at is not read."""
        if not math.prod(self.shape):
            return np.empty(self.shape, _KINDS[self.dtype])
        return np.memmap(self.file, _KINDS[self.dtype], "r", self.begin, self.shape)

    def matrix(self) -> Array:
        """Return the same with all sizes but the last as one: [num_rows, num_elements]; a vector is one row."""
        return self.array().reshape(-1, self.shape[-1] if self.shape else 1)

    def floats(self, elements: Array) -> Floats:
        """Return elements of this tensor in float32, which holds every narrower number."""
        if self.dtype == "BF16":
            return (elements.astype(np.uint32) << 16).view(np.float32)
        if self.dtype == "F8_E4M3":
            return E4M3[elements]
        return elements.astype(np.float32)


def stored_tensors(file: Path, *, kind: str = "model") -> dict[str, StoredTensor]:
    """Return a safetensors file's tensors; raise ConfigurationError if it is damaged. `kind` is its folder's."""
    try:
        text = _header(file)
        header = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        first = 8 + len(text)
        num_bytes = first + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if (num_present := file.stat().st_size) < num_bytes:
            problem = f"{file.name} is cut short: {num_present} of {num_bytes} bytes are there; fetch it again"
            raise ConfigurationError(f"{kind} {file.parent}: {problem}")
        tensors = {
            name: StoredTensor(file, entry["dtype"], tuple(entry["shape"]), first + entry["data_offsets"][0])
            for name, entry in header.items()
        }
    except (struct.error, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{kind} {file.parent}: {file.name} is not a safetensors file: {error}") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in _KINDS:
            problem = f"{file.name}: {name}: expected one of {', '.join(_KINDS)}, got {tensor.dtype!r}"
            raise ConfigurationError(f"{kind} {file.parent}: {problem}")
    return tensors


def tensor_shapes(file: Path, *, kind: str = "model") -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a safetensors file; raises what `stored_tensors` does."""
    return {name: tensor.shape for name, tensor in stored_tensors(file, kind=kind).items()}


def _header(file: Path) -> bytes:
    with file.open("rb") as stream:
        begin = stream.read(8)
        if begin == _POINTER_BEGIN:
            raise ValueError("it is a pointer of Git LFS; run `git lfs pull` in the folder")
        (num_bytes,) = struct.unpack("<Q", begin)
        text = stream.read(min(num_bytes, file.stat().st_size))  # any eight bytes are a length
    if len(text) < num_bytes:
        raise ValueError("it ends within its header; fetch it again")
    return text
