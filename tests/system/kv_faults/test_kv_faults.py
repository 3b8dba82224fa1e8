"""Must show 5: whatever goes wrong with a KV stream, requests end with the right tokens, and nothing leaks.

`BATON_FAULTS=1000 pytest -s tests/system/kv_faults` injects as many, and prints what became of them; BATON_FAULTS_SEED
draws others, and BATON_FAULTS_OUT names a file for the samples.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from baton.decode.kv_stream.reader import Timeouts
from baton.shm.lender import SEGMENT_BYTES
from checkpoints import checkpoint
from decode.neighbour import Neighbour, with_neighbour
from decode.pair import Pair, with_pair
from exactness.loading import load_runner
from order import RUNS_ALL
from system.kv_faults.campaign import SILENCE_SECONDS, Campaign, LocalOracle
from system.kv_faults.proxy import KINDS, Kind
from system.kv_faults.report import table_of, write_results

NUM_FAULTS = int(os.environ.get("BATON_FAULTS", "10000" if RUNS_ALL else "120"))
SEED = int(os.environ.get("BATON_FAULTS_SEED", "1"))
OUT = os.environ.get("BATON_FAULTS_OUT", "")
REAL_KINDS: tuple[Kind, ...] = ("cut_inside", "reset", "drop", "truncate", "flip", "kill_sender", "kill_receiver")
pytestmark = pytest.mark.timeout(300 + NUM_FAULTS)
LENT_BYTES = {"grpc": 0, "auto": 0, "shared": 4 * SEGMENT_BYTES}
"""What carries the streams, and how much memory the nodes may share."""
_TOLERATED_BYTES = 24 << 20
"""Growth of the process: of allocators, of what is kept of each fault, and of what remembers so many at most: grants,
drawn numbers. As many requests without a fault, each with connections of its own, leave it where it was."""


@pytest.mark.parametrize("transport", [*LENT_BYTES, "pull"])
def test_requests_survive_every_fault_of_their_kv_stream(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    """Right tokens before the deadline, every block free after each, all noticed; the process does not grow."""
    caplog.set_level("CRITICAL")  # what is captured would be most of what the process grows by
    campaign = Campaign(SEED, transport)
    process, resident = psutil.Process(), list[int]()

    async def client(pair: Pair, neighbour: Neighbour | None = None) -> None:
        campaign.neighbour = neighbour
        after_batch = lambda: resident.append(process.memory_info().rss)  # noqa: E731
        kinds = [kind for kind in KINDS if kind != "flip_memory" or transport == "shared"]
        await campaign.run(pair, NUM_FAULTS // 4, kinds=kinds, after_batch=after_batch)

    timeouts = Timeouts(first_frame_seconds=SILENCE_SECONDS, frame_seconds=SILENCE_SECONDS)
    run = with_neighbour if transport == "pull" else partial(with_pair, transport=transport)
    run(
        client,
        shared_memory_bytes=LENT_BYTES.get(transport, 0),
        timeouts=timeouts,
        linger_seconds=0.0,
        timeout_seconds=30 + NUM_FAULTS,
        is_patient=False,
    )

    print(f"\n{transport}: {len(campaign.results)} faults, {campaign.num_missed} not reached")
    print(table_of(campaign.results))
    print("resident MB:", " ".join(str(num_bytes >> 20) for num_bytes in resident))
    if OUT:
        write_results(Path(OUT), campaign, resident)
    assert len(campaign.results) == NUM_FAULTS // 4
    assert max(resident) - resident[0] < _TOLERATED_BYTES


@pytest.mark.parametrize("transport", list(LENT_BYTES))
def test_the_kv_of_torch_survives_its_way_to_mlx(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same with real models: their tokens are those of the decode node alone, in float32."""
    pytest.importorskip("mlx_lm")
    caplog.set_level("CRITICAL")
    num_faults = max(len(REAL_KINDS), min(NUM_FAULTS // 40, 100))
    campaign = Campaign(SEED, transport, LocalOracle("tiny"), num_prompt_seeds=4)

    async def client(pair: Pair) -> None:
        await campaign.run(pair, num_faults, kinds=REAL_KINDS)

    timeouts = Timeouts(first_frame_seconds=2 * SILENCE_SECONDS, frame_seconds=2 * SILENCE_SECONDS)
    runners = {
        "prefill_runner": load_runner("torch", checkpoint("llama"), num_blocks=64),
        "decode_runner": load_runner("mlx", checkpoint("llama"), num_blocks=64),
    }
    with_pair(
        client,
        transport=transport,
        shared_memory_bytes=LENT_BYTES[transport],
        timeouts=timeouts,
        linger_seconds=0.0,
        timeout_seconds=60 + num_faults,
        **runners,
    )

    print(f"\n{transport}, torch to MLX:")
    print(table_of(campaign.results))
    assert len(campaign.results) == num_faults
