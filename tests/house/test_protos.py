"""The style of the protos."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2 as pb

from house.proto_elements import Element, comments_of, elements_of, read_files

_UNSIGNED = {
    pb.FieldDescriptorProto.TYPE_UINT32,
    pb.FieldDescriptorProto.TYPE_UINT64,
    pb.FieldDescriptorProto.TYPE_FIXED32,
    pb.FieldDescriptorProto.TYPE_FIXED64,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[pb.FileDescriptorProto]:
    """Return the descriptors of all protos."""
    return read_files(tmp_path_factory.mktemp("protos") / "set.bin")


@pytest.fixture(scope="module")
def elements(files: list[pb.FileDescriptorProto]) -> list[Element]:
    """Return every element of all protos."""
    return [element for file in files for element in elements_of(file)]


def test_every_element_has_a_leading_comment(files: list[pb.FileDescriptorProto]) -> None:
    """Files, messages, fields, oneofs, enums, values, services and rpcs all say what they are."""
    silent = [
        f"{file.name}: {element.kind} {element.name}"
        for file in files
        for element in elements_of(file)
        if element.path not in comments_of(file)
    ]

    assert silent == []


def test_every_comment_is_a_sentence(files: list[pb.FileDescriptorProto]) -> None:
    """A comment ends with a full stop, so that the generated reference reads as text."""
    cut = [f"{file.name}: {text!r}" for file in files for text in comments_of(file).values() if text[-1] not in ".:"]

    assert cut == []


def test_packages_equal_paths(files: list[pb.FileDescriptorProto]) -> None:
    """Package a.v1 lies in a/v1, so generated imports need no rewriting."""
    misplaced = [file.name for file in files if file.package != str(Path(file.name).parent).replace("/", ".")]

    assert misplaced == []


def test_every_service_has_a_file_of_its_name(files: list[pb.FileDescriptorProto]) -> None:
    """FooService is the only service of foo_service.proto, and such files hold one."""
    for file in files:
        expected = [f"{_snake(service.name)}.proto" for service in file.service]
        actual = [Path(file.name).name] if file.name.endswith("_service.proto") else []

        assert expected == actual, file.name


def test_requests_and_responses_are_named_after_their_rpc(files: list[pb.FileDescriptorProto]) -> None:
    """Foo takes FooRequest or ServiceFooRequest and gives the response of the same prefix."""
    wrong = [
        f"{service.name}.{rpc.name}({rpc.input_type}) returns ({rpc.output_type})"
        for file in files
        for service in file.service
        for rpc in service.method
        if (_last(rpc.input_type), _last(rpc.output_type))
        not in {(f"{prefix}{rpc.name}Request", f"{prefix}{rpc.name}Response") for prefix in ("", service.name)}
    ]

    assert wrong == []


def test_no_two_rpcs_share_a_request_or_response(files: list[pb.FileDescriptorProto]) -> None:
    """Each rpc may grow without another."""
    uses = Counter(
        name
        for file in files
        for service in file.service
        for rpc in service.method
        for name in (rpc.input_type, rpc.output_type)
    )

    assert [name for name, count in uses.items() if count > 1] == []


def test_enums_begin_with_unspecified_and_prefix_their_values(elements: list[Element]) -> None:
    """FOO_BAR_UNSPECIFIED is 0 in enum FooBar, and all its values begin with FOO_BAR_."""
    for element in elements:
        if not isinstance(element.descriptor, pb.EnumDescriptorProto):
            continue
        prefix = f"{_snake(element.descriptor.name).upper()}_"
        first = element.descriptor.value[0]

        assert (first.name, first.number) == (f"{prefix}UNSPECIFIED", 0), element.name
        assert all(value.name.startswith(prefix) for value in element.descriptor.value), element.name


def test_integers_are_signed_but_for_checksums(elements: list[Element]) -> None:
    """Unsigned integers differ between languages; only CRC-32C fields, which are bit patterns, are fixed32."""
    unsigned = [
        element.name
        for element in elements
        if isinstance(element.descriptor, pb.FieldDescriptorProto)
        and element.descriptor.type in _UNSIGNED
        and not (
            element.descriptor.type == pb.FieldDescriptorProto.TYPE_FIXED32 and "crc32c" in element.descriptor.name
        )
    ]

    assert unsigned == []


def test_names_follow_the_case_of_their_kind(elements: list[Element]) -> None:
    """Messages, enums, services and rpcs are CamelCase, fields and oneofs snake_case, values UPPER_CASE."""
    camel = r"[A-Z][A-Za-z0-9]*"
    snake = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
    patterns = {
        "message": camel,
        "enum": camel,
        "service": f"{camel}Service",
        "rpc": camel,
        "field": snake,
        "oneof": snake,
        "value": r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*",
    }

    wrong = [
        f"{element.kind} {element.name}"
        for element in elements
        if element.kind in patterns and not re.fullmatch(patterns[element.kind], element.name.rpartition(".")[2])
    ]

    assert wrong == []


def _last(type_name: str) -> str:
    return type_name.rpartition(".")[2]


def _snake(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).lower()
