"""Does what is asked for fit in memory: asked before allocating, so that the answer is a sentence."""

from __future__ import annotations

import os
from pathlib import Path


class DoesNotFit(ValueError):
    """An allocation larger than the memory that is available."""


def available_host_bytes() -> int | None:
    """Bytes of host memory a process can still get, or None where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_tables_fit(max_batch_size: int, max_model_len: int, num_blocks: int) -> int:
    """Bytes of a slot table and a list of blocks (int64). Raises DoesNotFit where the host has not that much."""
    table, ledger = max_batch_size * max_model_len * 8, num_blocks * 8
    available = available_host_bytes()
    if available is not None and table > available:
        raise DoesNotFit(
            f"a slot table of {max_batch_size} rows by {max_model_len} tokens is {mib(table)}, {mib(available)} are "
            "available: lower max_batch_size or max_model_len"
        )
    if available is not None and table + ledger > available:
        raise DoesNotFit(
            f"the list of {num_blocks} blocks is {mib(ledger)}, {mib(available)} are available: "
            f"num_blocks={max_batch_size * max_model_len} holds every row with blocks of one token"
        )
    return table + ledger


def check_columns_fit(requests: int) -> int:
    """Bytes of drawn requests' columns and the draws behind them. Raises DoesNotFit where the host has less."""
    needed, available = requests * 64, available_host_bytes()
    if available is not None and needed > available:
        raise DoesNotFit(f"{requests:,} requests take {mib(needed)}, {mib(available)} are available: draw fewer")
    return needed


def check_pool_fits(
    num_blocks: int, block_size: int, slot_bytes: int, blocks_per_row: int, available: int | None
) -> int:
    """Bytes of a KV pool of `num_blocks` blocks and the sink. Raises DoesNotFit, naming a `num_blocks` that would."""
    needed = (num_blocks * block_size + 1) * slot_bytes
    if available is None or needed <= available:
        return needed
    # A tenth is left for activations and everybody else.
    fitting = int(available * 0.9 - slot_bytes) // (block_size * slot_bytes)
    advice = (
        f"num_blocks={fitting} would fit"
        if fitting >= blocks_per_row
        else f"not even one request of max_model_len fits ({blocks_per_row} blocks): lower max_model_len"
    )
    raise DoesNotFit(f"a KV pool of {num_blocks} blocks is {mib(needed)}, {mib(available)} are available: {advice}")


def mib(count: int) -> str:
    """Bytes as a figure with a unit."""
    return f"{count:,} bytes ({count / 2**20:,.0f} MiB)"
