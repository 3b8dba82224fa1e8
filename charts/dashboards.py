"""The dashboards of the chart."""

from __future__ import annotations

from collections.abc import Sequence

from baton.telemetry import names
from charts.panels import Dashboard, Panel, Query
from charts.queries import SCOPE, WINDOW, gauge, label, legend, mean, part, per_second, quantile

_TERMS = f'{label(names.TERM)}="total"'


def _quantiles(metric: names.MetricName, *shares: float) -> Sequence[Query]:
    return [Query(quantile(share, metric), f"p{share * 100:g}") for share in shares]


def _below(ratio: float) -> str:
    """Return how many totals a second were at most `ratio` of their estimate, which must be a bucket's bound."""
    return part(names.PREDICTION_RATIO, "bucket", f'{_TERMS}, le="{ratio:g}"')


def _drift(attribute: str) -> Query:
    """Return the median of each term of each node, or of each link."""
    scope = f'{SCOPE}, {label(attribute)}!=""'
    return Query(
        quantile(0.5, names.PREDICTION_RATIO, names.TERM, attribute, scope=scope),
        f"{legend(names.TERM)} {legend(attribute)}",
    )


_TTFT = Panel(
    "Time to first token",
    "From the request's arrival at the gateway.",
    _quantiles(names.TIME_TO_FIRST_TOKEN, 0.5, 0.95, 0.99),
    "s",
)
_CACHED = per_second(names.CACHED_PROMPT_TOKENS)
_PROMPT = f"{_CACHED} + {per_second(names.SHARED_PROMPT_TOKENS)} + {per_second(names.COMPUTED_PROMPT_TOKENS)}"
_HIDDEN = f"1 - {part(names.EXPOSED_TRANSFER, 'sum')} / {part(names.KV_TRANSFER, 'sum')}"

OVERVIEW = Dashboard(
    "overview",
    "Overview",
    (
        Panel(
            "Requests",
            "Per second, by how they ended.",
            [
                Query(
                    f"sum by (baton_status) (rate(baton_gateway_request_duration_seconds_count{{{SCOPE}}}[{WINDOW}]))",
                    "{{baton_status}}",
                )
            ],
            "reqps",
        ),
        Panel("Being answered", "Requests of any kind.", [Query(f"sum({gauge(names.GATEWAY_ACTIVE_REQUESTS)})")]),
        Panel(
            "Tokens",
            "Per second, of all generations.",
            [
                Query(per_second(names.GATEWAY_OUTPUT_TOKENS), "output"),
                Query(per_second(names.GATEWAY_PROMPT_TOKENS), "prompt"),
            ],
        ),
        _TTFT,
        Panel(
            "Time per output token",
            "Mean of a request's tokens after the first.",
            _quantiles(names.TIME_PER_OUTPUT_TOKEN, 0.5, 0.95, 0.99),
            "s",
        ),
        Panel(
            "Between tokens",
            "From output to the next output of a request: a high 99 % with a low mean is a stream that stutters.",
            _quantiles(names.INTER_TOKEN_LATENCY, 0.5, 0.99),
            "s",
        ),
        Panel(
            "Fields left out",
            "That clients sent and nobody knows, or that are hints, by name.",
            [Query(per_second(names.GATEWAY_IGNORED_FIELDS, names.FIELD), "{{baton_field}}")],
        ),
        Panel("Whole answer", "From arrival to the last byte.", _quantiles(names.REQUEST_DURATION, 0.5, 0.95), "s"),
        Panel(
            "Prompt tokens not computed",
            "Share that a prefix cache had, on either side.",
            [Query(f"{_CACHED} / ({_PROMPT})", "cached")],
            "percentunit",
        ),
        Panel(
            "What went wrong",
            "Per second: attempts repeated, remote prefills given up, requests failed, computed again, quarantined.",
            [
                Query(per_second(names.RETRIES), "retries"),
                Query(per_second(names.FALLBACKS), "fallbacks"),
                Query(per_second(names.FAILURES), "failures"),
                Query(per_second(names.PREEMPTIONS), "preemptions"),
                Query(per_second(names.QUARANTINED), "quarantined"),
            ],
            width=16,
        ),
        Panel(
            "By model",
            "Choices in work, those that wait included.",
            [
                Query(
                    f"sum by ({label(names.GEN_AI_REQUEST_MODEL)}) ({gauge(names.GATEWAY_MODEL_REQUESTS)})",
                    legend(names.GEN_AI_REQUEST_MODEL),
                )
            ],
        ),
    ),
)
PLACEMENT = Dashboard(
    "placement",
    "Placement and prediction",
    (
        Panel(
            "Where prompts are computed",
            "Placements per second, by side.",
            [Query(per_second(names.PLACEMENTS, names.SIDE), legend(names.SIDE))],
        ),
        Panel(
            "Refused for overload",
            "Requests per second, by API key.",
            [Query(per_second(names.REFUSALS, names.TENANT), legend(names.TENANT))],
            "reqps",
        ),
        Panel(
            "Placed with less output",
            "Requests per second, cut for overload.",
            [Query(per_second(names.DEGRADED))],
            "reqps",
        ),
        Panel(
            "Margin of predictions",
            "What they are multiplied by before they are held against objectives, by term.",
            [Query(quantile(0.5, names.MARGIN, names.TERM), legend(names.TERM))],
        ),
        Panel(
            "Measured by estimated, median",
            "1: the router was right; 2: it took twice as long.",
            [Query(quantile(0.5, names.PREDICTION_RATIO, names.TERM), legend(names.TERM))],
        ),
        Panel(
            "Measured by estimated, p90",
            "How badly off the worst tenth is.",
            [Query(quantile(0.9, names.PREDICTION_RATIO, names.TERM), legend(names.TERM))],
        ),
        Panel(
            "Totals right within a tenth",
            "Share of requests.",
            [Query(f"({_below(1.1)} - {_below(0.9)}) / {part(names.PREDICTION_RATIO, 'count', _TERMS)}")],
            "percentunit",
        ),
        Panel(
            "Regret",
            "Mean time beyond what the next best candidate was expected to take.",
            [Query(mean(names.REGRET))],
            "s",
        ),
        Panel(
            "Drift of nodes",
            "Measured by estimated, median: which node is not as fast as the router takes it to be, and at what.",
            [_drift(names.NODE_ID)],
        ),
        Panel(
            "Drift of links",
            "Measured by estimated, median.",
            [_drift(names.LINK)],
        ),
        Panel(
            "Regret by all time, p90",
            "Of the placements on a node: 0.05 is 5 % lost to a choice that another one would have beaten.",
            [Query(quantile(0.9, names.REGRET_SHARE, names.NODE_ID), legend(names.NODE_ID))],
            "percentunit",
        ),
        Panel(
            "Placed without the cache index",
            "Lookups per second that brought no answer in time.",
            [Query(per_second(names.FAILED_LOOKUPS, names.REASON), legend(names.REASON))],
        ),
    ),
)
KV_TRANSPORT = Dashboard(
    "kv-transport",
    "KV transport",
    (
        Panel(
            "KV received",
            "By what carried it.",
            [Query(per_second(names.KV_BYTES, names.KV_TRANSPORT), legend(names.KV_TRANSPORT))],
            "Bps",
        ),
        Panel("Hidden share", "Part of the transfers behind computation.", [Query(_HIDDEN)], "percentunit"),
        Panel("Exposed", "Waits for KV after the computation.", _quantiles(names.EXPOSED_TRANSFER, 0.5, 0.99), "s"),
        Panel("Transfer", "Time in which frames were on their way.", _quantiles(names.KV_TRANSFER, 0.5, 0.99), "s"),
        Panel(
            "Remote prefills given up",
            "Per second, by reason.",
            [Query(per_second(names.FALLBACKS, names.REASON), legend(names.REASON))],
        ),
        Panel(
            "Streams that broke",
            "Per second, by how their requests went on; and transfers that no router had granted, by what differs.",
            [
                Query(per_second(names.KV_BREAKS, names.RECOVERY), legend(names.RECOVERY)),
                Query(per_second(names.REFUSED_TRANSFERS, names.REASON), legend(names.REASON)),
            ],
        ),
        Panel(
            "Prefixes from neighbours",
            "Asked per second, by what came of it.",
            [Query(per_second(names.PULLS, names.REASON), legend(names.REASON))],
        ),
        Panel(
            "Prompt tokens from neighbours",
            "Per second, from other nodes' prefix caches.",
            [Query(per_second(names.PULLED_PROMPT_TOKENS))],
        ),
        Panel(
            "KV from neighbours",
            "Bytes per second, from other nodes' prefix caches.",
            [Query(per_second(names.PULLED_BYTES, names.KV_TRANSPORT), legend(names.KV_TRANSPORT))],
        ),
        Panel(
            "Streams without the fast path",
            "Per second, by reason.",
            [Query(per_second(names.FAST_PATH_FALLBACKS, names.REASON), legend(names.REASON))],
        ),
    ),
)
_NODE = legend(names.NODE_ID)
NODES = Dashboard(
    "nodes",
    "Nodes and energy",
    (
        Panel("Queue", "Until a prompt that comes now is begun.", [Query(gauge(names.NODE_QUEUE), _NODE)], "s"),
        Panel("In the batch", "Requests.", [Query(gauge(names.NODE_RUNNING), _NODE)]),
        Panel("Waiting", "Requests that no pass computes yet.", [Query(gauge(names.NODE_WAITING), _NODE)]),
        Panel("KV in use", "Share of the blocks.", [Query(gauge(names.NODE_KV_USED), _NODE)], "percentunit"),
        Panel(
            "Passes",
            "Per second; 0 with a batch: the engine hangs.",
            [Query(f"rate({names.NODE_PASSES.name.replace('.', '_')}_total{{{SCOPE}}}[{WINDOW}])", _NODE)],
        ),
        Panel(
            "Prefix cache hits",
            "Tokens per second, by where their KV was.",
            [Query(per_second(names.NODE_PREFIX_HITS, names.TIER), legend(names.TIER))],
        ),
        Panel(
            "KV files dropped",
            "Blocks on disk per second that were torn or flipped.",
            [Query(per_second(names.NODE_DROPPED_FILES, names.NODE_ID), _NODE)],
        ),
        Panel("Memory in use", "Of the machine.", [Query(gauge(names.NODE_MEMORY_USED), _NODE)], "bytes"),
        Panel(
            "Utilization",
            "Share of time, by part of the machine.",
            [Query(gauge(names.NODE_UTILIZATION), f"{_NODE} {legend(names.PART)}")],
            "percentunit",
        ),
        Panel("Power", "Of what can be measured.", [Query(gauge(names.NODE_POWER), _NODE)], "watt", needs_sensors=True),
        Panel(
            "Power by part",
            "Accelerator, neural engine and CPU, where a sensor tells them apart.",
            [Query(gauge(names.NODE_PART_POWER), f"{_NODE} {legend(names.PART)}")],
            "watt",
            needs_sensors=True,
        ),
        Panel(
            "Temperature",
            "Of the accelerator, else of the CPU.",
            [Query(gauge(names.NODE_TEMPERATURE), _NODE)],
            "celsius",
            needs_sensors=True,
        ),
        Panel(
            "Energy per output token",
            "Power of all nodes by the tokens that they generate.",
            [Query(f"sum({gauge(names.NODE_POWER)}) / {per_second(names.GATEWAY_OUTPUT_TOKENS)}")],
            "joule",
            needs_sensors=True,
        ),
    ),
)
WATERFALL = Dashboard(
    "waterfall",
    "Request waterfall",
    (
        Panel(
            "Time to first token, with traces",
            "A point is a traced request: follow it to its waterfall.",
            [
                Query(
                    f"sum by (le) (increase(gen_ai_server_time_to_first_token_seconds_bucket{{{SCOPE}}}[{WINDOW}]))",
                    "{{le}}",
                )
            ],
            "s",
            "heatmap",
            12,
        ),
        Panel(
            "Slowest requests",
            "Traces of the gateway; a click opens the spans of every hop.",
            [Query('{resource.service.name="baton-gateway" && kind=server && duration>100ms}')],
            kind="table",
            width=12,
        ),
        Panel(
            "KV streams",
            "Layers computed, frames sent and received are events of these spans.",
            [Query(f'{{resource.service.namespace="baton" && name="{names.SPAN_RECEIVE_KV}"}}')],
            kind="table",
            width=24,
        ),
    ),
)
DASHBOARDS = (OVERVIEW, PLACEMENT, KV_TRANSPORT, NODES, WATERFALL)
"""All of them."""
