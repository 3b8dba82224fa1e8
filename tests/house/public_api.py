"""What clients in any language have compiled against: one line per element of the public protos.

`make public-api` adds what is new to public_api.txt. It never takes a line away: what is published stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

from house.proto_elements import Element, elements_of, read_files

BASELINE = Path(__file__).with_suffix(".txt")
PACKAGE = "baton.v1"

_LABELS = {pb.FieldDescriptorProto.LABEL_OPTIONAL: "", pb.FieldDescriptorProto.LABEL_REPEATED: "repeated "}


def lines_of(files: Iterable[pb.FileDescriptorProto]) -> set[str]:
    """Return the lines of all elements of the public package."""
    public = (file for file in files if file.package == PACKAGE)
    return {_line(element) for file in public for element in elements_of(file) if element.kind != "file"}


def published_lines() -> set[str]:
    """Return the lines of what has been published."""
    return set(BASELINE.read_text().splitlines())


def _line(element: Element) -> str:
    start = f"{element.kind} {element.name}"
    match element.descriptor:
        case pb.FieldDescriptorProto() as field:
            kind = field.type_name or pb.FieldDescriptorProto.Type.Name(field.type)
            presence = "optional " if field.proto3_optional else _LABELS[field.label]
            member = ", in a oneof" if field.HasField("oneof_index") and not field.proto3_optional else ""
            return f"{start} = {field.number}: {presence}{kind}, JSON {field.json_name}{member}"
        case pb.EnumValueDescriptorProto() as value:
            return f"{start} = {value.number}"
        case pb.MethodDescriptorProto() as rpc:
            streams = f"{'stream ' * rpc.client_streaming}{rpc.input_type}, {'stream ' * rpc.server_streaming}"
            return f"{start}: {streams}{rpc.output_type}"
        case _:
            return start


def _publish() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = lines_of(read_files(Path(folder) / "set.bin"))
    gone = published_lines() - lines
    if gone:
        raise SystemExit("published, and now gone or changed:\n" + "\n".join(sorted(gone)))
    BASELINE.write_text("".join(f"{line}\n" for line in sorted(lines)))


if __name__ == "__main__":
    _publish()
