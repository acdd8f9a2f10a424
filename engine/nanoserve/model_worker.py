"""The part of an engine that touches tensors: weights, pool, persistent inputs, a runner, and the draw."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanoserve.buckets import CaptureList, Shape
from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.decode import CaptureFailed, DecodeRunner
from nanoserve.inputs import StepInputs
from nanoserve.memory import available_host_bytes, check_pool_fits
from nanoserve.model.decoder import Decoder, PrefillInputs
from nanoserve.plan import DecodePlan
from nanoserve.sampling import Sampler
from nanoserve.storage import StorageWatch
from nanoserve.worker import Drawn

Ints = NDArray[np.int64]


def attach_pool(cache: BatchedPagedKVCache, decoder: Decoder) -> Tensor:
    """Gives a cache its pool, zeroed `[layers, 2, num_slots, kv_heads, head_dim]`, and its table a tensor to read.

    Raises DoesNotFit where the device has not the memory. On a CPU the tensor shares the table's memory.
    """
    config, device = decoder.config, decoder.device
    slot_bytes = config.num_layers * 2 * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    available = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_host_bytes()
    check_pool_fits(cache.num_blocks, cache.block_size, slot_bytes, cache.blocks_per_row, available)
    shape = (config.num_layers, 2, cache.num_slots, config.num_kv_heads, config.head_dim)
    pool = torch.zeros(shape, dtype=decoder.dtype, device=device)
    cache.pool = pool
    host = torch.from_numpy(cache.slot_table.host)
    if device.type == "cpu":
        cache.slot_table.attach(host, None)
    else:
        mirror = torch.empty_like(host, device=device)

        def upload(row: int, start: int, stop: int) -> None:
            mirror[row, start:stop].copy_(host[row, start:stop])

        cache.slot_table.attach(mirror, upload)
    return pool


class ModelWorker:
    """Runs prefills and planned decode steps of one decoder over one cache."""

    def __init__(
        self,
        decoder: Decoder,
        cache: BatchedPagedKVCache,
        inputs: StepInputs,
        runner: DecodeRunner,
        *,
        audit: bool = False,
    ) -> None:
        self.decoder = decoder
        self.cache = cache
        self.inputs = inputs
        self.runner = runner
        self._watch = StorageWatch(self.persistent()) if audit else None

    def persistent(self) -> dict[str, Tensor]:
        """What is allocated once and only written in place afterwards, by name."""
        return {
            "the input buffer": self.inputs.buffer,
            "the slot table": self.cache.slot_table.view,
            "the KV pool": self.cache.pool,
            "the RoPE table": self.decoder.rope,
        }

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.decoder.config.vocab_size

    @torch.no_grad()
    def forward(self, plan: DecodePlan, feed: Ints) -> Tensor:
        """Logits `[graph_rows, vocab_size]` of a planned step that feeds in `feed` int64 `[batch_size]`."""
        if self._watch is None:
            self.cache.slot_table.flush()
            return self.runner.run(self.inputs.write(plan, feed))
        self._watch.check_addresses(self.persistent())
        with self._watch:
            self.cache.slot_table.flush()
            inputs = self.inputs.write(plan, feed)
        return self.runner.run(inputs)

    @torch.no_grad()
    def decode(self, plan: DecodePlan, feed: Ints, samplers: Sequence[Sampler]) -> Drawn:
        """Runs a planned step and draws a token for each of its real rows."""
        try:
            return draw(self.forward(plan, feed)[: plan.batch_size], samplers)
        except BaseException as error:
            # A caller may keep the exception, and its frames the logits: a window that the next replay overwrites.
            traceback.clear_frames(error.__traceback__)
            raise

    @torch.no_grad()
    def prefill(self, first_row: int, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler]) -> Drawn:
        """Runs the prompts of the rows from `first_row` on, right-padded, and draws each one's next token."""
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        rectangle = (len(prompts), int(lengths.max()))
        input_ids = np.zeros(rectangle, dtype=np.int64)
        write_slots = np.full(rectangle, self.cache.sink_slot, dtype=np.int64)
        for index, prompt in enumerate(prompts):
            input_ids[index, : len(prompt)] = prompt
            write_slots[index, : len(prompt)] = self.cache.slot_table.host[first_row + index, : len(prompt)]
        tensors = (torch.from_numpy(array).to(self.decoder.device) for array in (input_ids, write_slots, lengths))
        return draw(self.decoder.prefill(PrefillInputs(*tensors), self.cache.pool), samplers)

    @torch.no_grad()
    def warm_up(self, shapes: Sequence[Shape], *, allow_partial: bool) -> Sequence[Shape]:
        """Prepares every shape, largest first, on its real window with nobody in it, then closes the runner."""
        done: list[Shape] = []
        for shape in sorted(shapes, key=lambda shape: (shape.cells, shape), reverse=True):
            try:
                self.prepare_shape(shape, self.runner)
                done.append(shape)
            except CaptureFailed as error:
                if not allow_partial:
                    raise CaptureFailed(f"shape {shape}, after {len(done)} of {len(shapes)} graphs: {error}") from error
        if shapes and not done:
            raise CaptureFailed(f"none of {len(shapes)} shapes could be captured")
        self.runner.close()
        return done

    def restrict(self, captures: CaptureList) -> None:
        """Says that only these shapes could be prepared: every other step runs eager."""
        self.runner.restrict(captures)

    def prepare_shape(self, shape: Shape, runner: DecodeRunner) -> None:
        """Has `runner` compile or capture one shape, on its real window, with a batch that is all padding."""
        self.cache.slot_table.flush()
        window = self.cache.slot_table.read(range(0), shape.width, pad_rows=shape.rows)
        runner.prepare(self.inputs.all_padding(shape, window.slots))


def draw(logits: Tensor, samplers: Sequence[Sampler]) -> Drawn:
    """A token for each row of `logits` `[rows, vocab_size]`, by argmax or the row's sampler; NaN and inf are marked."""
    tokens = logits.argmax(-1).tolist()
    finite = torch.isfinite(logits).all(-1).tolist()
    for row, sampler in enumerate(samplers):
        if finite[row] and not sampler.is_greedy:
            tokens[row] = sampler.draw(logits[row].float().cpu())
    return Drawn(tokens, finite)
