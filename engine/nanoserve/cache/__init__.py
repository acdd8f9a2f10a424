"""The paged KV cache: who owns which block, where each token's K/V lies, and the persistent table a step reads."""

from nanoserve.cache.blocks import BlockAllocator, BlocksUnsound, BlockTable, KVCacheExhausted
from nanoserve.cache.kv import BatchedPagedKVCache, audit_blocks
from nanoserve.cache.slots import SlotsUnsound, SlotTable, SlotTableFull

__all__ = [
    "BatchedPagedKVCache",
    "BlockAllocator",
    "BlockTable",
    "BlocksUnsound",
    "KVCacheExhausted",
    "SlotTable",
    "SlotTableFull",
    "SlotsUnsound",
    "audit_blocks",
]
