"""With adapters the device's greedy float32 output is PEFT's on the device, beside any neighbours."""

from __future__ import annotations

import pytest

from adapters import adapter_folder, differ, is_greedy, random_prompt
from checkpoints import CheckpointName, checkpoint
from exactness.handover import generate, greedy, start_engine
from gpu.device import device_runner

ADAPTERS = ("", "one", "two")
LENGTHS = (1, 60, 200)


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3", "mixtral", "gpt_oss"])
def test_output_equals_peft(name: CheckpointName) -> None:
    """Two adapters and none side by side, in chunks, with equal prompts; first computed, then from what is cached."""
    folders = {"one": adapter_folder(name, 1), "two": adapter_folder(name, 2)}
    engine = start_engine(device_runner(checkpoint(name), adapters=folders), max_step_tokens=48)
    try:
        for turn in ("cold", "warm"):
            running = {
                (adapter, length): generate(
                    engine, f"{turn}-{adapter}-{length}", random_prompt(length), greedy(24), adapter=adapter
                )
                for length in LENGTHS
                for adapter in ADAPTERS
            }
            outputs = {key: generation.tokens() for key, generation in running.items()}
            for (adapter, length), output in outputs.items():
                assert is_greedy(name, folders.get(adapter), random_prompt(length), output), (
                    f"{turn} {adapter} {length}"
                )
            assert differ([outputs[adapter, 200] for adapter in ADAPTERS])
    finally:
        engine.close()
