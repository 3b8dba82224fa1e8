"""Must show 6 on real engines: output across a fault is that of transformers, or of the fault-free run."""

from __future__ import annotations

import random

from checkpoints import checkpoint, reference_generate
from system.client import Ask
from system.cluster import Cluster
from system.faults.scenario import FaultFree, begin, caught, check_equal

NUM_TOKENS = 200


def _ask(seed: int, num_prompt_tokens: int, temperature: float = 0.0) -> Ask:
    drawn = random.Random(seed)
    prompt = tuple(drawn.randrange(3, 512) for _ in range(num_prompt_tokens))
    return Ask(prompt, NUM_TOKENS, temperature, seed)


ASKS = (_ask(1, 33), _ask(2, 700), _ask(11, 100, temperature=1.0), _ask(3, 16, temperature=0.8))
"""Two greedy, two sampled; no random number of these comes as near to the next token as engines differ in rounding."""


def test_output_stays_exact_across_the_death_of_a_prefill_and_of_a_decode_node(exact_cluster: Cluster) -> None:
    """Streams move between MLX and torch in the middle; the prefill node's death before costs nothing."""
    fault_free = FaultFree()
    expected = [fault_free.outcome(exact_cluster, ask) for ask in ASKS]
    while "attempt_failed" not in exact_cluster.log_files["gateway"].read_text():  # streams may end before the kill
        exact_cluster.heal()
        exact_cluster.kill("prefill-0")
        streams, victim = caught(exact_cluster, "decode", lambda: begin(exact_cluster, ASKS))
        exact_cluster.kill(victim)

        check_equal(streams, expected)
    for ask, whole in zip(ASKS, expected, strict=True):
        if not ask.temperature:
            prompt, output = list(ask.prompt_token_ids), whole.token_ids
            assert output == reference_generate(checkpoint("llama"), prompt, NUM_TOKENS, guess=output)
