"""The public protos: nothing that was published goes, nothing of the inner protocol comes along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2 as pb

from house.proto_elements import read_files
from house.public_api import PACKAGE, lines_of, published_lines

_OPTIONS = ("csharp_namespace", "go_package", "java_package", "objc_class_prefix", "php_namespace", "ruby_package")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[pb.FileDescriptorProto]:
    """Return the descriptors of all protos."""
    return read_files(tmp_path_factory.mktemp("protos") / "set.bin")


def test_nothing_published_is_gone(files: list[pb.FileDescriptorProto]) -> None:
    """Deleting, renaming, renumbering or retyping breaks clients that were compiled before."""
    assert sorted(published_lines() - lines_of(files)) == []


def test_everything_public_is_published(files: list[pb.FileDescriptorProto]) -> None:
    """What is new is guarded from now on."""
    assert sorted(lines_of(files) - published_lines()) == [], "run `make public-api`"


def _rename(file: pb.FileDescriptorProto) -> None:
    file.message_type[0].field[0].name = "renamed"


def _renumber(file: pb.FileDescriptorProto) -> None:
    file.message_type[0].field[0].number = 1000


def _retype(file: pb.FileDescriptorProto) -> None:
    file.message_type[0].field[0].type = pb.FieldDescriptorProto.TYPE_BYTES


def _delete_a_field(file: pb.FileDescriptorProto) -> None:
    del file.message_type[0].field[0]


def _delete_a_message(file: pb.FileDescriptorProto) -> None:
    del file.message_type[-1]


def _delete_an_rpc(file: pb.FileDescriptorProto) -> None:
    del file.service[0].method[0]


def _stop_streaming(file: pb.FileDescriptorProto) -> None:
    file.service[0].method[0].server_streaming = False


@pytest.mark.parametrize(
    "breaking", [_rename, _renumber, _retype, _delete_a_field, _delete_a_message, _delete_an_rpc, _stop_streaming]
)
def test_a_breaking_change_is_seen(
    files: list[pb.FileDescriptorProto], breaking: Callable[[pb.FileDescriptorProto], None]
) -> None:
    """The gate refuses what it is there to refuse."""
    changed = {file.name: pb.FileDescriptorProto.FromString(file.SerializeToString()) for file in files}
    breaking(changed["baton/v1/generation_service.proto"])

    assert published_lines() - lines_of(changed.values())


def test_public_files_stand_alone(files: list[pb.FileDescriptorProto]) -> None:
    """Who generates a client needs the files of the public package and those of protobuf."""
    imported = {name for file in files if file.package == PACKAGE for name in file.dependency}

    assert {str(Path(name).parent) for name in imported} <= {"baton/v1", "google/protobuf"}


def test_public_files_name_packages_of_every_language(files: list[pb.FileDescriptorProto]) -> None:
    """protoc-gen-go refuses files without go_package; others give names that nobody wants to write."""
    public = [file for file in files if file.package == PACKAGE]

    missing = [(file.name, option) for file in public for option in _OPTIONS if not getattr(file.options, option)]
    assert missing == []
    assert all(file.options.java_multiple_files for file in public)


def test_no_field_has_a_name_that_java_gives_to_another(files: list[pb.FileDescriptorProto]) -> None:
    """A string `text` has `getTextBytes`, a repeated field `...Count` and `...List`, an enum `...Value`."""
    clashes = [
        f"{message.name}.{name}{suffix}"
        for file in files
        if file.package == PACKAGE
        for message in file.message_type
        for name, suffix in _taken_by_java(message)
        if f"{name}{suffix}" in {field.name for field in message.field}
    ]

    assert clashes == []


def _taken_by_java(message: pb.DescriptorProto) -> Iterator[tuple[str, str]]:
    for field in message.field:
        if field.label == pb.FieldDescriptorProto.LABEL_REPEATED:
            yield from ((field.name, "_count"), (field.name, "_list"))
        if field.type == pb.FieldDescriptorProto.TYPE_STRING:
            yield field.name, "_bytes"
        if field.type == pb.FieldDescriptorProto.TYPE_ENUM:
            yield field.name, "_value"
