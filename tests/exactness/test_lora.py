"""With adapters too, greedy float32 output equals PEFT's, whoever runs beside and whatever is cached."""

from __future__ import annotations

import pytest

from adapters import adapted_generate, adapter_folder, differ, random_prompt
from baton.engine.engine import Engine
from checkpoints import CHECKPOINT_NAMES, FAMILY_NAMES, CheckpointName, checkpoint
from exactness.handover import Generation, generate, greedy, start_engine
from exactness.loading import Framework, load_runner

NUM_NEW_TOKENS = 12
PROMPT_LENGTHS = (1, 40, 120)
ADAPTERS = ("", "one", "two")
PLACEMENTS: tuple[tuple[Framework | None, Framework], ...] = ((None, "torch"),)


def run_all(decode: Engine, prefill: Engine | None, label: str) -> dict[tuple[str, int], list[int]]:
    """Return the outputs of equal prompts with every adapter, all at once."""
    started: dict[tuple[str, int], Generation] = {
        (adapter, length): generate(
            decode,
            f"{label}-{adapter}-{length}",
            random_prompt(length),
            greedy(NUM_NEW_TOKENS),
            prefill=prefill,
            adapter=adapter,
        )
        for length in PROMPT_LENGTHS
        for adapter in ADAPTERS
    }
    return {key: generation.tokens() for key, generation in started.items()}


@pytest.mark.parametrize(
    ("family", "prefill_framework", "decode_framework"),
    [(family, *placement) for family in (*CHECKPOINT_NAMES, *FAMILY_NAMES) for placement in PLACEMENTS],
)
def test_output_equals_peft(
    family: CheckpointName, prefill_framework: Framework | None, decode_framework: Framework
) -> None:
    """Two adapters and none side by side, with equal prompts, first computed throughout and then from the caches."""
    folders = {"one": adapter_folder(family, 1), "two": adapter_folder(family, 2)}
    engines = [
        start_engine(load_runner(framework, checkpoint(family), adapters=folders), max_step_tokens=96)
        for framework in (decode_framework, prefill_framework)
        if framework
    ]
    decode, prefill = engines[0], engines[1] if prefill_framework else None
    try:
        cold, warm = run_all(decode, prefill, "cold"), run_all(decode, prefill, "warm")
    finally:
        for engine in engines:
            engine.close()

    expected = {
        (adapter, length): adapted_generate(family, folders.get(adapter), random_prompt(length), NUM_NEW_TOKENS)
        for adapter, length in cold
    }
    assert differ([expected[adapter, 120] for adapter in ADAPTERS])
    assert cold == warm == expected
