"""The shape of a model in a folder, as workers would hold it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from baton.capacity.reference_models import shape_of_folder
from baton.errors import ConfigurationError

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
TENSORS = {
    "__metadata__": {"format": "pt"},
    "half": {"dtype": "BF16", "shape": [10, 10], "data_offsets": [0, 200]},
    "whole": {"dtype": "F32", "shape": [50], "data_offsets": [200, 400]},
    "of_eight_bits": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [400, 403]},
    "packed": {"dtype": "U32", "shape": [5], "data_offsets": [403, 423]},
}


def write(folder: Path, header: bytes, config: object = CONFIG) -> Path:
    """Write a folder whose one file is a header and no more."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


@pytest.mark.parametrize(("parameter_bytes", "weights", "kv"), [(2, 326, 256), (4, 632, 512)])
def test_numbers_count_as_workers_hold_them_and_packed_ones_as_they_are_stored(
    tmp_path: Path, parameter_bytes: int, weights: int, kv: int
) -> None:
    """Whatever the configuration says of their format; K and V of a token likewise."""
    shape = shape_of_folder(write(tmp_path, json.dumps(TENSORS).encode()), parameter_bytes)

    assert (shape.weight_bytes, shape.kv_bytes_per_token) == (weights, kv)


@pytest.mark.parametrize("header", [b"", b"[]", b"version https", b'{"w": {}}', b'{"w": {"dtype": "F32", "shape": 5}}'])
def test_a_file_that_says_nothing_is_named_as_damaged(tmp_path: Path, header: bytes) -> None:
    """As a plain error of the folder."""
    with pytest.raises(ConfigurationError, match=f"model {tmp_path}: a file is damaged"):
        shape_of_folder(write(tmp_path, header), 2)


def test_a_folder_without_a_configuration_is_none(tmp_path: Path) -> None:
    """Whoever asks is told by the system."""
    with pytest.raises(FileNotFoundError):
        shape_of_folder(tmp_path, 2)
