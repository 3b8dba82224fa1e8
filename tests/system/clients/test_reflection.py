"""What a client learns from the servers alone, as grpcurl would."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from system.cluster import Cluster

SERVICES = {
    "gateway": "baton.v1.GenerationService",
    "router": "baton.internal.v1.RouterService",
    "cache-index": "baton.internal.v1.CacheIndexService",
    "prefill-0": "baton.internal.v1.PrefillService",
    "decode-0": "baton.internal.v1.DecodeService",
}
OF_WORKERS = ("baton.internal.v1.BlockService", "baton.internal.v1.WeightService", "baton.internal.v1.WorkerService")
BESIDE = {"router": ("baton.internal.v1.ModelService",), "prefill-0": OF_WORKERS, "decode-0": OF_WORKERS}


@pytest.mark.parametrize("process", SERVICES)
def test_every_server_lists_its_services(demo_cluster: Cluster, process: str) -> None:
    """Its own, on nodes also those of their prefix cache, of their weights and of the agent, health and reflection."""
    with grpc.insecure_channel(demo_cluster.address_of(process)) as channel:
        services = set(ProtoReflectionDescriptorDatabase(channel).get_services())

    assert services == {
        SERVICES[process],
        *BESIDE.get(process, ()),
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_the_public_service_is_described_completely(demo_cluster: Cluster) -> None:
    """Methods and fields of every message, without a .proto file."""
    with grpc.insecure_channel(demo_cluster.grpc_address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName(SERVICES["gateway"])
        generate = service.methods_by_name["Generate"]

        file = FileDescriptorProto()
        service.file.CopyToProto(file)
        assert file.package == "baton.v1"
        assert generate.server_streaming
        assert {"text", "conversation", "tokens"} <= set(generate.input_type.fields_by_name)
        assert "finished" in generate.output_type.fields_by_name
