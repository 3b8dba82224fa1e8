"""Rates of prompts whose KV is cached."""

from __future__ import annotations

from baton.gateway.api.exo.bench import MAX_PROMPTS, PromptRates


def test_a_rate_belongs_to_a_prompt_of_a_model() -> None:
    """Another revision, or one token more, is another prompt."""
    rates = PromptRates()
    rates.store("a", [1, 2], 10.0)
    rates.store("a", [1, 2], 20.0)

    assert rates.find("a", (1, 2)) == 20.0
    assert rates.find("b", [1, 2]) is None
    assert rates.find("a", [1, 2, 3]) is None


def test_the_prompt_not_used_for_longest_is_forgotten() -> None:
    """The store is bounded."""
    rates = PromptRates()
    for token_id in range(MAX_PROMPTS):
        rates.store("a", [token_id], float(token_id))
    rates.find("a", [0])
    rates.store("a", [MAX_PROMPTS], 1.0)

    assert rates.find("a", [0]) == 0.0
    assert rates.find("a", [1]) is None
