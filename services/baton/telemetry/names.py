"""Every name that Baton emits: spans, events, attributes, metrics; OpenTelemetry's own where they exist."""

from __future__ import annotations

from typing import Literal, NamedTuple

# -- Spans -------------------------------------------------------------------------------------------------------------
# A request has a span of its server, named "POST /v1/chat/completions" or after the gRPC method, and in it one of its
# operation, named after that and the model, "chat llama"; each call has one of its client and one of its server.

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""OpenTelemetry's conventions that names without `baton.` follow."""
PROVIDER = "baton"
"""GEN_AI_PROVIDER_NAME of every operation."""

OPERATION_CHAT = "chat"
"""Gateway: one chat completion, from the parsed request to the last byte."""
OPERATION_TEXT_COMPLETION = "text_completion"
"""Gateway: one text completion."""
OPERATION_TOKENIZE = "tokenize"
"""Gateway: the tokens of one prompt, for a client."""
OPERATION_DETOKENIZE = "detokenize"
"""Gateway: the text of tokens, for a client."""
SPAN_RECEIVE_KV = "receive_kv"
"""Decode node, as a client: the KV stream of one remote prefill."""


LayerVerb = Literal["compute", "transfer"]
"""What the span of a group of layers shows."""


def layers_span(verb: LayerVerb, first_layer: int, num_layers: int) -> str:
    """Return the name of a frame's child span: "compute layers 0-3" (prefill node) or "transfer layer 5" (decode node).

    Attributes: LAYER, LAYER_COUNT, TOKEN_START, TOKEN_COUNT, BYTE_COUNT. A model's layers bound the number of names.
    """
    last_layer = first_layer + num_layers - 1
    return f"{verb} layer {first_layer}" if num_layers == 1 else f"{verb} layers {first_layer}-{last_layer}"


BACKGROUND_METHODS = frozenset(
    {
        "/baton.internal.v1.RouterService/Register",
        "/baton.internal.v1.RouterService/ListNodes",
        "/baton.internal.v1.CacheIndexService/Publish",
        "/baton.internal.v1.DecodeService/Serve",
        "/baton.internal.v1.PrefillService/ProbeLink",
        "/baton.internal.v1.AgentService/GetStatus",
        "/baton.internal.v1.WorkerService/Pause",
        "/baton.internal.v1.WorkerService/Resume",
        "/baton.internal.v1.ModelService/ListModels",
        "/baton.internal.v1.ModelService/Supervise",
    }
)
"""Calls that nodes make by themselves, for ever or every second: spans of theirs would bury those of requests.

`Serve` carries many requests, each with its own trace context and a span of this name.
"""


# -- Events of spans ---------------------------------------------------------------------------------------------------

EVENT_LAYER_COMPUTED = "baton.layer.computed"
"""Prefill node: K and V of a layer of one chunk exist. Attributes: LAYER, TOKEN_START, TOKEN_COUNT."""
EVENT_FRAME_SENT = "baton.kv.frame.sent"
"""Prefill node: a KV frame was handed to the call. Attributes: LAYER, LAYER_COUNT, TOKEN_START, TOKEN_COUNT,
BYTE_COUNT."""
EVENT_FRAME_RECEIVED = "baton.kv.frame.received"
"""Decode node: a KV frame arrived. Attributes as for EVENT_FRAME_SENT."""
EVENT_FIRST_TOKEN = "baton.first_token"  # noqa: S105 - a token of a language model
"""Decode or prefill node: the first token exists. Attributes: none."""
EVENT_FALLBACK = "baton.fallback"
"""Decode node: a remote prefill was given up. Attributes: REASON."""
EVENT_KV_BROKEN = "baton.kv.broken"
"""Decode node: a KV stream broke. Attributes: REASON, RECOVERY, PREFILL_NODE_ID."""
EVENT_RETRY = "baton.retry"
"""Gateway: another attempt begins. Attributes: REASON, ATTEMPT."""

# -- Attributes --------------------------------------------------------------------------------------------------------

SERVICE_NAME = "service.name"
"""Resource: "baton-gateway", "baton-router", ..."""
SERVICE_NAMESPACE = "service.namespace"
"""Resource: "baton"."""
SERVICE_VERSION = "service.version"
"""Resource: version of Baton."""

# Where nothing else is said, OpenTelemetry's conventions say what it is.
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"
"""Of spans whose status is ERROR: a gRPC status, the code of an answer's error, or a class of errors."""
RPC_SYSTEM_NAME = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_RESPONSE_STATUS_CODE = "rpc.response.status_code"
RPC_SYSTEM = "rpc.system"
"""This one and the next two are what the conventions had until 2026: backends may know no others."""
RPC_SERVICE = "rpc.service"
RPC_GRPC_STATUS_CODE = "rpc.grpc.status_code"
HTTP_REQUEST_METHOD = "http.request.method"
HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
"""Of a stream that broke off, the one that it began with."""
URL_PATH = "url.path"
URL_QUERY = "url.query"
URL_SCHEME = "url.scheme"
NETWORK_PROTOCOL_VERSION = "network.protocol.version"
USER_AGENT_ORIGINAL = "user_agent.original"
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
"""An OPERATION; also on the span of the server."""
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
"""PROVIDER."""
GEN_AI_OUTPUT_TYPE = "gen_ai.output.type"
"""Where a JSON schema was given."""
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_PARAMETER = "gen_ai.request.{parameter}"
"""Temperature, top_p, top_k, seed, frequency_penalty and presence_penalty, as far as asked for."""
GEN_AI_REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
"""The answer's id in its API; by gRPC, the request's."""
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
"""Those of the choices in the order of their ends."""
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""From the request's arrival to its first token, streamed or not."""
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""Of all prompts."""
GEN_AI_USAGE_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
"""Of all choices."""
GEN_AI_USAGE_REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"

KEY_WIRE_DTYPE = "baton.kv.key_wire_dtype"
"""Number format in which K of a KV stream travels. On SPAN_RECEIVE_KV."""
VALUE_WIRE_DTYPE = "baton.kv.value_wire_dtype"
"""Number format in which V of a KV stream travels. On SPAN_RECEIVE_KV."""
KV_TRANSPORT = "baton.kv.transport"
"""What carried a KV stream: "grpc" or "fast". On SPAN_RECEIVE_KV, the server spans of the fast path, and KV_BYTES."""

FIELD = "baton.field"
"""Field of a request's body, without indices; "other" for what is none of the first 64 names."""
HTTP_ROUTE = "http.route"
"""Path or method that serves a request of the gateway, without what varies; on HTTP's spans the path."""
ERROR_CODE = "baton.error.code"
"""Code of the error that the gateway answered with, the client's own mistakes included."""
STATUS = "baton.status"
"""HTTP status of an answer of the gateway, or name of its gRPC status."""
REQUEST_ID = "baton.request.id"
"""Names a request on every hop."""
ATTEMPT = "baton.attempt"
"""Number of the attempt, from 1."""
NODE_ID = "baton.node.id"
"""Node that did the work."""
PREFILL_NODE_ID = "baton.prefill.node.id"
"""Node that computed the prompt."""
PULL_NODE_ID = "baton.pull.node.id"
"""Node from whose prefix cache the prompt's beginning was taken; empty: none."""
DECODE_NODE_ID = "baton.decode.node.id"
"""Node that decoded."""
CACHED_TOKENS = "baton.cached_tokens"
"""Prompt tokens found in the prefix cache."""
PROMPT_TOKENS = "baton.prompt_tokens"
"""Prompt tokens of the attempt."""
LAYER = "baton.layer"
"""First layer of a frame, from 0."""
LAYER_COUNT = "baton.layer_count"
"""Layers of a frame."""
TOKEN_START = "baton.token_start"  # noqa: S105 - a token of a language model
"""First position of a frame or chunk, from 0."""
TOKEN_COUNT = "baton.token_count"  # noqa: S105 - a token of a language model
"""Positions of a frame or chunk."""
BYTE_COUNT = "baton.byte_count"
"""Payload, bytes."""
REASON = "baton.reason"
"""Why, as an upper-case name of errors.py."""
RECOVERY = "baton.kv.recovery"
"""What took over from a broken KV stream: "same_node", "other_node", "complete" or "local"."""
STREAM_NUMBER = "baton.kv.stream"
"""Number of a KV stream of an attempt, from 0."""
SIDE = "baton.side"
""" "prefill" or "decode"."""
TENANT = "baton.tenant"
"""Name of an API key; "other" for those beyond the first 64, empty without keys."""
TERM = "baton.term"
"""Term of an estimate: "queue", "prefill", "transfer", "pull", "step", "start" or "total"; of a margin
"time_to_first_token" or "time_per_output_token"."""
LINK = "baton.link"
"""Way of KV from node to node, "sender>receiver"; empty: none."""
TIER = "baton.tier"
"""Where KV blocks were: "device", "host" or "disk"."""
PART = "baton.part"
"""Part of a machine: "gpu", "ane", "cpu", "performance_cpu" or "efficiency_cpu"."""
ESTIMATED_SECONDS = "baton.estimated_seconds"
"""What the router expected, seconds until the last token."""
ESTIMATED_TERM = "baton.estimated.{term}_seconds"
"""Place: a term of the chosen estimate: queue, pull, prefill, transfer, exposed, join, time_to_first_token, start, step
or imposed. Gateway: the terms of MEASURED_TERM, for the tokens that came, and imposed."""
MEASURED_TERM = "baton.measured.{term}_seconds"
"""Gateway: a term as it was: queue, pull, prefill, transfer, exposed, join, start, step, decode or total; decode is
without exposed and join, which start has."""
TERM_RATIO = "baton.measured_by_estimated.{term}"
"""Gateway: the one by the other, where both are above 0."""


# -- Metrics -----------------------------------------------------------------------------------------------------------


class MetricName(NamedTuple):
    """A metric: its name, UCUM unit and meaning."""

    name: str
    unit: str
    description: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, in `unit`; empty for counters."""


_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

PLACEMENTS = MetricName("baton.placements", "{placement}", "Decisions of the router, by SIDE of the prefill.")
REFUSALS = MetricName(
    "baton.admission.refusals",
    "{request}",
    "Requests that the router refused because objectives would be missed, by REASON, TENANT and GEN_AI_REQUEST_MODEL.",
)
DEGRADED = MetricName("baton.admission.degraded", "{request}", "Requests that the router placed with less output.")
MARGIN = MetricName(
    "baton.admission.margin",
    "1",
    "What a prediction is multiplied by before it is held against an objective, by TERM, after each outcome.",
    (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0),
)
PREDICTION_RATIO = MetricName(
    "baton.placement.prediction_ratio",
    "1",
    "Measured time of a placed request by the router's estimate, by TERM and, as the term has it, NODE_ID or LINK.",
    (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0),
)
REGRET = MetricName(
    "baton.placement.regret",
    "s",
    "Time of a placed request beyond what the next best candidate was expected to take, by NODE_ID and LINK.",
    (0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0),
)
REGRET_SHARE = MetricName(
    "baton.placement.regret_share",
    "1",
    "Regret of a placed request by all its time, by NODE_ID and LINK.",
    (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
)
FALLBACKS = MetricName("baton.fallbacks", "{fallback}", "Remote prefills given up, by REASON.")
KV_BREAKS = MetricName("baton.kv.breaks", "{stream}", "KV streams that broke, by REASON and RECOVERY.")
REFUSED_TRANSFERS = MetricName(
    "baton.kv.refused_transfers",
    "{stream}",
    "KV transfers that no router had granted, by REASON: the claim that differs.",
)
PULLS = MetricName(
    "baton.kv.pulls", "{stream}", "Prefixes asked of other nodes' caches, by REASON: COMPLETE, or why not all came."
)
PULLED_PROMPT_TOKENS = MetricName(
    "baton.prompt_tokens.pulled", "{token}", "Prompt tokens whose KV came from another node's prefix cache."
)
PULLED_BYTES = MetricName(
    "baton.kv.pulled", "By", "KV bytes received from other nodes' prefix caches, by KV_TRANSPORT."
)
FAILURES = MetricName("baton.requests.failed", "{request}", "Requests that an engine failed, by REASON.")
PREEMPTIONS = MetricName("baton.preemptions", "{preemption}", "Requests taken from a batch for want of memory.")
FAILED_LOOKUPS = MetricName(
    "baton.cache_lookups.failed", "{lookup}", "Placements without an answer from the cache index, by REASON."
)
QUARANTINED = MetricName(
    "baton.requests.quarantined", "{request}", "Requests refused for ending passes or processes, by TENANT."
)
RENEWAL_FAILURES = MetricName(
    "baton.certificate.renewal_failures", "{attempt}", "Attempts at renewing this process's certificate that failed."
)
RETRIES = MetricName("baton.retries", "{retry}", "Further attempts at requests, by REASON.")
CACHED_PROMPT_TOKENS = MetricName(
    "baton.prompt_tokens.cached", "{token}", "Prompt tokens from a prefix cache, by SIDE."
)
SHARED_PROMPT_TOKENS = MetricName(
    "baton.prompt_tokens.shared", "{token}", "Prompt tokens that another request computed in the same pass."
)
COMPUTED_PROMPT_TOKENS = MetricName("baton.prompt_tokens.computed", "{token}", "Prompt tokens computed, by SIDE.")
KV_BYTES = MetricName("baton.kv.received", "By", "KV bytes received by decode nodes, by KV_TRANSPORT.")
FAST_PATH_FALLBACKS = MetricName(
    "baton.kv.fast_path.fallbacks",
    "{stream}",
    "KV streams that the gRPC library carried in place of the fast path, by REASON.",
)
TIME_TO_FIRST_TOKEN = MetricName(
    "gen_ai.server.time_to_first_token", "s", "From the request's arrival to its first token.", _LATENCY_BUCKETS
)
TIME_PER_OUTPUT_TOKEN = MetricName(
    "gen_ai.server.time_per_output_token",
    "s",
    "From the first to the last token, per token after the first.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
INTER_TOKEN_LATENCY = MetricName(
    "baton.inter_token_latency",
    "s",
    "From output to the next output of one request, what comes together counted once; of every 16th request.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
REQUEST_DURATION = MetricName(
    "gen_ai.server.request.duration", "s", "From the request's arrival to the end of the answer.", _LATENCY_BUCKETS
)
KV_TRANSFER = MetricName(
    "baton.kv.transfer", "s", "Time in which the frames of a KV stream were on their way.", _LATENCY_BUCKETS
)
EXPOSED_TRANSFER = MetricName(
    "baton.kv.exposed", "s", "Part of a KV transfer that computation did not hide.", _LATENCY_BUCKETS
)
NODE_QUEUE = MetricName(
    "baton.node.queue", "s", "Time until a node begins with a prompt that comes now, as it estimates, by NODE_ID."
)
NODE_KV_USED = MetricName("baton.node.kv_used", "1", "Share of a node's KV blocks that requests hold, by NODE_ID.")
NODE_RUNNING = MetricName("baton.node.running", "{request}", "Requests in the batch of a node, by NODE_ID.")
NODE_WAITING = MetricName(
    "baton.node.waiting", "{request}", "Requests on a node that no pass computes yet, by NODE_ID."
)
NODE_PASSES = MetricName("baton.node.passes", "{pass}", "Forward passes of a node since its start, by NODE_ID.")
NODE_PREFIX_HITS = MetricName(
    "baton.node.prefix_hits", "{token}", "Positions that requests found in a node's prefix cache, by NODE_ID and TIER."
)
NODE_DROPPED_FILES = MetricName(
    "baton.node.kv_files_dropped", "{file}", "KV blocks on a node's disk that were broken and dropped, by NODE_ID."
)
NODE_POWER = MetricName("baton.node.power", "W", "Power that a node's machine draws, by NODE_ID.")
NODE_PART_POWER = MetricName(
    "baton.node.part_power", "W", "Power that a part of a node's machine draws, by NODE_ID and PART."
)
NODE_TEMPERATURE = MetricName(
    "baton.node.temperature", "Cel", "Temperature of a node's accelerator, else of its CPU, by NODE_ID."
)
NODE_UTILIZATION = MetricName(
    "baton.node.utilization", "1", "Share of time in which a part of a node's machine worked, by NODE_ID and PART."
)
NODE_MEMORY_USED = MetricName("baton.node.memory_used", "By", "Main memory in use on a node's machine, by NODE_ID.")
GATEWAY_REQUEST_DURATION = MetricName(
    "baton.gateway.request.duration",
    "s",
    "From a request of any kind to the end of its answer, by HTTP_ROUTE and STATUS.",
    _LATENCY_BUCKETS,
)
GATEWAY_ACTIVE_REQUESTS = MetricName(
    "baton.gateway.active_requests", "{request}", "Requests of any kind that are being answered."
)
GATEWAY_MODEL_REQUESTS = MetricName(
    "baton.gateway.model_requests", "{request}", "Choices in work, those that wait included, by GEN_AI_REQUEST_MODEL."
)
GATEWAY_IGNORED_FIELDS = MetricName(
    "baton.gateway.ignored_fields",
    "{field}",
    "Fields of requests that were left out, by FIELD; those after the first 64 names together.",
)
GATEWAY_PROMPT_TOKENS = MetricName("baton.gateway.prompt_tokens", "{token}", "Prompt tokens of generations.")
GATEWAY_OUTPUT_TOKENS = MetricName("baton.gateway.output_tokens", "{token}", "Tokens that clients were given.")
