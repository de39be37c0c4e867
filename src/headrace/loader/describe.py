"""What `explain()` says beneath the plan: order, ranks, threads, memory."""

from __future__ import annotations

from headrace._native import ffi
from headrace._native.decoders import decoder_choice
from headrace.order.batches import OrderedBatches
from headrace.order.progress import Batches
from headrace.order.shard import detect_rank


def sharing_text(batches: Batches, seed: int | None, *, rank_given: bool) -> str:
    """Which sample comes when, and what of it is this rank's.

    Args:
        seed: of the order; None: drawn for each epoch.
        rank_given: whether the user said something of ranks.
    """
    order = f"order: {batches.identity()}"
    if isinstance(batches, OrderedBatches) and batches.shuffles:
        order += ", seed drawn by torch for each epoch" if seed is None else f", seed {seed}"
    if not isinstance(batches, OrderedBatches):
        why = ", as rank='auto' shares what nobody else does" if rank_given else ""
        return f"{order}\nranks: left to it{why}"
    shard = batches.shard
    if shard.world_size == 1:
        others = 1 if rank_given else detect_rank()[1]
        return f"{order}\nranks: not shared" + (f", though there are {others}" if others > 1 else "")
    return (
        f"{order}\nranks: {shard.rank} of {shard.world_size}, global batches of {shard.global_batch},"
        f" remainder {'dropped' if shard.drop_last else shard.remainder}"
    )


def native_text(
    *, threads: int, readers: int, depth: int, batch_nbytes: int, pinned: bool, budget: int, decoder: str
) -> str:
    """What the native engine uses."""
    return (
        f"threads: {threads} decode, {readers} more to read ahead once reads block\n"
        f"memory: up to {depth} batches in flight of {batch_nbytes / 1e6:.1f} MB"
        f"{', pinned' if pinned else ''}; budget {budget / 1e6:,.0f} MB\n"
        f"decoders: {', '.join(decoder_choice(decoder))} ({ffi.simd_active()})"
    )
