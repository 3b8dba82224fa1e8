"""How far predictions were off, as metrics of the node or the link that each term is of."""

from __future__ import annotations

from baton.router.calibration import Comparison
from baton.router.nodes import Outcome
from baton.telemetry.metrics import Metrics

_COMPUTING_NODE: frozenset[str] = frozenset({"queue", "prefill"})
"""Terms of the node that computed the prompt."""
_LINK: frozenset[str] = frozenset({"transfer", "pull"})
"""Terms of the link; the others are of the node that decoded."""


def record_comparison(metrics: Metrics, comparison: Comparison, outcome: Outcome) -> None:
    """Record the ratio of each term of a request, and its regret."""
    link = link_of(outcome)
    for term, ratio in comparison.ratios.items():
        if term in _LINK:
            metrics.record_prediction(term, ratio, link=link)
        elif term in _COMPUTING_NODE:
            metrics.record_prediction(term, ratio, node_id=outcome.prefill_node_id or outcome.decode_node_id)
        else:
            metrics.record_prediction(term, ratio, node_id=outcome.decode_node_id)
    if comparison.regret_seconds is not None:
        before_seconds = outcome.queue_seconds + outcome.pull_seconds + outcome.prefill_seconds
        share = comparison.regret_seconds / max(
            before_seconds + outcome.decode_seconds, comparison.regret_seconds, 1e-9
        )
        metrics.record_regret(comparison.regret_seconds, share, node_id=outcome.decode_node_id, link=link)


def link_of(outcome: Outcome) -> str:
    """Return the way that KV took, "sender>receiver"; empty if there was none."""
    sender = outcome.pull_node_id or outcome.prefill_node_id
    return f"{sender}>{outcome.decode_node_id}" if sender not in ("", outcome.decode_node_id) else ""
