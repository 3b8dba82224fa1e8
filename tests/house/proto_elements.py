"""Reads the protos with protoc, comments included, into flat lists of elements."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

from house.repository import PROTOS

_SYNTAX = 12
"""Field of FileDescriptorProto whose leading comment is the file's own."""


@dataclass(frozen=True, slots=True)
class Element:
    """One named thing of a proto file."""

    file: pb.FileDescriptorProto
    kind: str
    """message, field, oneof, enum, value, service, rpc or file."""
    name: str
    """Dotted name below the package."""
    path: tuple[int, ...]
    """Its place in the descriptor, as SourceCodeInfo writes it."""
    descriptor: object
    """The descriptor message of the element."""


def read_files(set_path: Path) -> list[pb.FileDescriptorProto]:
    """Return the descriptors of all protos; protoc writes them to `set_path` on the way."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", "--include_source_info"]
    subprocess.run([*command, f"--descriptor_set_out={set_path}", *names], check=True, timeout=300)
    return list(pb.FileDescriptorSet.FromString(set_path.read_bytes()).file)


def elements_of(file: pb.FileDescriptorProto) -> Iterator[Element]:
    """Yield every element of a file, the file itself first."""
    yield Element(file, "file", file.name, (_SYNTAX,), file)
    for index, message in enumerate(file.message_type):
        yield from _message(file, message, "", (4, index))
    for index, enum in enumerate(file.enum_type):
        yield from _enum(file, enum, "", (5, index))
    for index, service in enumerate(file.service):
        yield Element(file, "service", service.name, (6, index), service)
        for rpc_index, rpc in enumerate(service.method):
            yield Element(file, "rpc", f"{service.name}.{rpc.name}", (6, index, 2, rpc_index), rpc)


def comments_of(file: pb.FileDescriptorProto) -> dict[tuple[int, ...], str]:
    """Return the leading comment of each commented element by its path."""
    return {
        tuple(location.path): location.leading_comments.strip()
        for location in file.source_code_info.location
        if location.leading_comments.strip()
    }


def _message(
    file: pb.FileDescriptorProto, message: pb.DescriptorProto, prefix: str, path: tuple[int, ...]
) -> Iterator[Element]:
    if message.options.map_entry:
        return
    name = f"{prefix}{message.name}"
    yield Element(file, "message", name, path, message)
    for index, field in enumerate(message.field):
        yield Element(file, "field", f"{name}.{field.name}", (*path, 2, index), field)
    for index, oneof in enumerate(message.oneof_decl):
        # `optional` fields are oneofs of one member, named by protoc with a leading underscore.
        if not oneof.name.startswith("_"):
            yield Element(file, "oneof", f"{name}.{oneof.name}", (*path, 8, index), oneof)
    for index, nested in enumerate(message.nested_type):
        yield from _message(file, nested, f"{name}.", (*path, 3, index))
    for index, enum in enumerate(message.enum_type):
        yield from _enum(file, enum, f"{name}.", (*path, 4, index))


def _enum(
    file: pb.FileDescriptorProto, enum: pb.EnumDescriptorProto, prefix: str, path: tuple[int, ...]
) -> Iterator[Element]:
    name = f"{prefix}{enum.name}"
    yield Element(file, "enum", name, path, enum)
    for index, value in enumerate(enum.value):
        yield Element(file, "value", f"{name}.{value.name}", (*path, 2, index), value)
