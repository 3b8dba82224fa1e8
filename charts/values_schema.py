"""The JSON schema of the chart's values: types from the defaults, bounds from comments, settings from the services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pydantic_settings import BaseSettings

from baton.cache_index.settings import CacheIndexSettings
from baton.decode.settings import DecodeSettings
from baton.gateway.settings import GatewaySettings
from baton.prefill.settings import PrefillSettings
from baton.router.settings import RouterSettings
from baton.worker.settings import WorkerSettings
from charts.values_file import Value

Schema: TypeAlias = dict[str, object]

SETTINGS: Mapping[str, type[BaseSettings]] = {
    "gateway": GatewaySettings,
    "router": RouterSettings,
    "cache-index": CacheIndexSettings,
    "prefill": PrefillSettings,
    "decode": DecodeSettings,
    "worker": WorkerSettings,
}
"""Settings class of each role that the chart runs."""

CHART_OWNED = frozenset(
    {
        *("host", "port", "http_host", "http_port", "grpc_host", "grpc_port", "advertise_address", "node_id"),
        *("fast_port", "tls_cert_file", "tls_key_file", "tls_ca_file", "tls_server_name", "tls_health_port"),
        *("tls_enrol_address", "tls_enrol_token_file", "tls_lan_dir", "join_pods", "join_pod_hours"),
        *("insecure", "tls_ends_upstream", "tenant_secret_file"),
        *("router_address", "cache_index_address", "model_dir", "model_name", "engine", "api_keys_file"),
        *("https_cert_file", "https_key_file", "grpc_cert_file", "grpc_key_file", "client_ca_file", "health_port"),
        *("processes", "metrics_port", "models_file", "join_port", "join_secret_file", "join_authority_key_file"),
        *("join_assignments_file", "join_certificate_days", "join_router_address", "join_cache_index_address"),
        *("announce_address", "kubernetes_node", "read_kubernetes_node", "accelerators", "drain_pause_seconds"),
        "models_lease",
    }
)
"""Settings that the chart sets from other values, or leaves alone: a pod is one process, more are more replicas."""

_NAME_PATTERN: Schema = {"type": "string", "pattern": "^[a-z0-9*?-]{1,63}$"}
_POOL_NAME = "^[a-z]([a-z0-9-]*[a-z0-9])?$"
_KEPT = ("type", "enum", "const", "anyOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern")
_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def values_schema(values: Sequence[Value]) -> Schema:
    """Return the schema of values.yaml."""
    definitions: Schema = {}
    pool = next(value for value in values if value.path == "poolDefaults")
    for role in ("prefill", "decode", "worker"):
        definitions[f"{role}Pool"] = _pool_schema(pool, role)
    source = next(value for root in values for value in root.walk() if value.path == "model.source")
    definitions["source"] = _object_schema(source)
    definitions["assignment"] = _assignment_schema()
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Baton chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            # Helm puts it there for a chart that is a dependency.
            "global": {"type": "object"},
            **{value.name: _schema_of(value) for value in values},
        },
        "definitions": definitions,
    }


def settings_schema(settings_class: type[BaseSettings]) -> Schema:
    """Return the schema of a role's settings in camelCase, less those that the chart sets itself."""
    properties = settings_class.model_json_schema()["properties"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            camel_case(name): _setting(properties[name])
            for name in settings_class.model_fields
            if name not in CHART_OWNED
        },
    }


def camel_case(name: str) -> str:
    """Return a field's name as values.yaml writes it: `max_batch_size` is maxBatchSize."""
    return re.sub("_([a-z0-9])", lambda match: match[1].upper(), name)


def _setting(described: Mapping[str, object]) -> Schema:
    return {key: described[key] for key in ("description", *_KEPT) if key in described}


def _schema_of(value: Value) -> Schema:
    extra = value.extra_schema
    extra.pop("opaque", None)
    described: Schema = {"description": value.description}
    if "settings" in value.tags:
        role = value.tags["settings"]
        both = role == "pool"
        chosen = _shared_settings() if both else settings_schema(SETTINGS[role])
        return {**described, **chosen}
    if "pools" in value.tags:
        pool = {"$ref": f"#/definitions/{value.tags['pools']}Pool"}
        names = {"propertyNames": {"pattern": _POOL_NAME}}
        return {**described, "type": "object", **names, "additionalProperties": pool}
    if "assignments" in value.tags:
        return {**described, "type": "array", "items": {"$ref": "#/definitions/assignment"}}
    if "ref" in value.tags:
        return {**described, "allOf": [{"$ref": "#/definitions/source"}]}
    if value.children:
        return {**described, **_object_schema(value), **extra}
    if isinstance(value.default, Mapping):
        # A mapping that may stay empty is checked only where it is not.
        checked = {"anyOf": [{"type": "object", "maxProperties": 0}, {"type": "object", **extra}]}
        return {**described, "type": "object", **(checked if extra else {})}
    return {**described, **({} if "enum" in extra or "anyOf" in extra else _type_of(value)), **extra}


def _type_of(value: Value) -> Schema:
    return {"type": _TYPES[type(value.default)]}


def _object_schema(value: Value) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {child.name: _schema_of(child) for child in value.children},
    }


def _pool_schema(pool: Value, role: str) -> Schema:
    schema = _object_schema(pool)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    properties["settings"] = {**properties["settings"], **settings_schema(SETTINGS[role])}
    return schema


def _assignment_schema() -> Schema:
    """Return the schema of what a machine outside the cluster is told to run: settings of either role, and a folder."""
    settings = settings_schema(DecodeSettings)
    own = DecodeSettings.model_json_schema()["properties"]
    properties = {camel_case(name): _setting(own[name]) for name in ("engine", "model_dir")}
    for role in (PrefillSettings, DecodeSettings):
        described = settings_schema(role)["properties"]
        assert isinstance(described, dict)
        properties |= described
    return {
        "type": "object",
        "required": ["role", "settings"],
        "additionalProperties": False,
        "properties": {
            "nodeId": {"description": "Which machines, a pattern with * and ?; default: all.", **_NAME_PATTERN},
            "role": {"description": "What they serve.", "enum": ["prefill", "decode", "worker"]},
            "settings": {**settings, "required": ["modelDir"], "properties": properties},
        },
    }


def _shared_settings() -> Schema:
    """Return the schema of what all kinds of pools take; a worker takes what either of the others does."""
    prefill, decode = settings_schema(PrefillSettings), settings_schema(DecodeSettings)
    assert isinstance(prefill["properties"], dict)
    assert isinstance(decode["properties"], dict)
    shared = {name: text for name, text in prefill["properties"].items() if name in decode["properties"]}
    return {**prefill, "properties": shared}
