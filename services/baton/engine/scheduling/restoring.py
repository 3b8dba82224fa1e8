"""Restores long prompts in parts, so that those who generate need not wait for all of it.

A part goes into the prefix cache, not to the sequence: that one goes on waiting, and finds it there in the next pass
as it would find anything else. So a part may also serve others, and nobody holds blocks for whom nothing is computed.
"""

from __future__ import annotations

from baton.engine.kv_cache.offload import Offload, SwapIn
from baton.engine.scheduling.prefix_match import ReusablePrefix
from baton.engine.scheduling.step import Step
from baton.engine.sequence import Sequence
from baton.kv.pool import BlockPool


def fill_first(pool: BlockPool, offload: Offload, step: Step, sequence: Sequence, beginning: ReusablePrefix) -> bool:
    """Return whether a sequence had better be admitted later, because only part of its contents can be copied in now.

    That part is copied with the pass. A sequence that has lost the part before is admitted with all at once.

    Args:
        pool: Gets the part; has room for all of the sequence.
        offload: Tells how much may be copied.
        step: The pass that is being planned, in which others are computed.
        sequence: Who waits.
        beginning: What it finds.
    """
    room = offload.max_restored_blocks - sum(len(each.contents) for each in step.restored)
    num_found = len(beginning.blocks)
    if len(beginning.restored) <= room or (sequence.num_filled_blocks and num_found < sequence.filled_end):
        return False
    if room > 0:
        contents, hashes = beginning.restored[:room], sequence.hashes[num_found : num_found + room]
        pool.acquire(beginning.blocks)
        block_ids = pool.allocate(room)
        for block_id, block_hash in zip(block_ids, hashes, strict=True):
            pool.store(block_id, block_hash)
        pool.release([*beginning.blocks, *block_ids])
        step.restored.append(SwapIn(sequence, block_ids, 0, contents))
        step.filled += hashes
        sequence.num_filled_blocks += room
        sequence.filled_end = num_found + room
    return True
