"""The bill before the capture: the arithmetic to the byte, and live sets that a real capture confirms."""

from __future__ import annotations

import resource
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from nanoserve import DecodeBuckets, Engine, Shape

torch = pytest.importorskip("torch")

from nanoserve import UnsupportedModel  # noqa: E402
from nanoserve.capture_bill import input_bytes, persistent_bytes, price_shapes  # noqa: E402
from nanoserve.model.config import ModelConfig  # noqa: E402
from nanoserve.model.presets import PRESETS, preset_decoder  # noqa: E402

TINY, SMALL = PRESETS["tiny"], PRESETS["small"]
SEVEN_B = ModelConfig(
    family="llama",
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    max_position_embeddings=8192,
)
GIB = 2**30


# The arithmetic of issue 3.


def test_one_set_of_inputs_for_256_rows_is_8192_bytes_and_a_set_a_shape_65408() -> None:
    policy = DecodeBuckets(256, 8192, width_multiple=2048)
    assert policy.count == 36
    assert input_bytes([256]) == 8_192
    assert input_bytes(shape.rows for shape in policy.shapes) == 65_408


def test_the_slot_table_of_256_rows_and_8192_tokens_is_16_mib() -> None:
    persistent = persistent_bytes(TINY, torch.float32, 256, 8192, 256 * 8192 + 1)
    assert persistent.inputs == 8_192
    assert persistent.slot_table == 16_777_216


def test_the_small_models_pool_at_256_by_8192_is_32_gib_and_a_slot() -> None:
    persistent = persistent_bytes(SMALL, torch.float32, 256, 8192, 256 * 8192 + 1)
    slot = 8 * 2 * 4 * 64 * 4
    assert persistent.kv_pool == 32 * GIB + slot
    assert persistent.logits == 256 * 8192 * 4
    assert persistent.total == sum(
        (persistent.inputs, persistent.slot_table, persistent.kv_pool, persistent.logits, persistent.weights)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_persistent_bytes_are_what_an_engine_allocates(dtype: str) -> None:
    decoder = preset_decoder("tiny", dtype=getattr(torch, dtype))
    engine = Engine.build(decoder, 8, 96, device="cpu", runner="graphs", bucket_decode=True)
    worker: Any = engine.worker
    persistent = persistent_bytes(TINY, decoder.dtype, 8, 96, engine.cache.num_slots)
    assert persistent.inputs == worker.inputs.buffer.nbytes == 256
    assert persistent.slot_table == engine.cache.slot_table.view.nbytes == 8 * 96 * 8
    assert persistent.kv_pool == engine.cache.pool.nbytes
    assert persistent.logits == worker.runner._logits.nbytes == 8 * 512 * decoder.dtype.itemsize
    assert persistent.weights == sum(parameter.nbytes for parameter in decoder.parameters())


def test_tied_weights_are_counted_once() -> None:
    tied = persistent_bytes(replace(TINY, tie_word_embeddings=True), torch.float32, 1, 16, 17).weights
    untied = persistent_bytes(TINY, torch.float32, 1, 16, 17).weights
    assert untied - tied == TINY.vocab_size * TINY.hidden_size * 4


# Priced equals captured.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_priced_live_set_is_the_captured_graphs(dtype: str) -> None:
    """At the ends and the middle of the set, over windows of larger tables as an engine has them."""
    decoder = preset_decoder("tiny", dtype=getattr(torch, dtype))
    policy = DecodeBuckets(8, 100, width_multiple=32)
    engine = Engine.build(decoder, 8, 100, device="cpu", runner="graphs", policy=policy)
    engine.warm_up()
    runner: Any = engine.worker.runner  # type: ignore[attr-defined]
    priced = price_shapes(TINY, policy.shapes, decoder.dtype)
    assert [price.shape for price in priced] == list(policy.shapes)
    assert {price.shape: price.live_bytes for price in priced} == {
        shape: captured.graph.live_bytes for shape, captured in runner._graphs.items()
    }
    assert max(price.live_bytes for price in priced) <= runner.backend.pool_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"tie_word_embeddings": True},
        {"qk_norm": True},
        {"qkv_bias": True, "output_bias": True},
        {"num_kv_heads": 4},
        {"num_kv_heads": 1},
        {"num_layers": 1},
    ],
    ids=str,
)
def test_every_kind_of_layer_is_priced_as_it_is_captured(change: dict[str, Any]) -> None:
    from nanoserve.model.decoder import Decoder

    config = replace(TINY, **change)
    policy = DecodeBuckets(4, 64, rows=[1, 4], widths=[64])
    engine = Engine.build(
        Decoder(config).eval().requires_grad_(False), 4, 64, device="cpu", runner="graphs", policy=policy
    )
    engine.warm_up()
    graphs: Any = engine.worker.runner._graphs  # type: ignore[attr-defined]
    for price in price_shapes(config, policy.shapes, torch.float32):
        assert price.live_bytes == graphs[price.shape].graph.live_bytes


@pytest.mark.parametrize("shape", [Shape(1, 16), Shape(8, 512)], ids=str)
def test_two_layers_stand_for_all(shape: Shape) -> None:
    """Layers are alike and only the hidden state outlives one. Traced here with all five."""
    from nanoserve.decode.recorded import RecordedGraphs
    from nanoserve.model.decoder import DecodeInputs, Decoder

    peaks = []
    for layers in (2, 5):
        decoder = Decoder(replace(TINY, num_layers=layers)).requires_grad_(False)
        decoder.prepare(shape.width)
        pool = torch.zeros(layers, 2, shape.cells + 1, TINY.num_kv_heads, TINY.head_dim)
        vectors, table = torch.zeros(4, shape.rows, dtype=torch.int64), torch.zeros(tuple(vars(shape).values())[:2])
        table = table.long()
        logits = torch.zeros(shape.rows, TINY.vocab_size)
        named = {"pool": pool, "vectors": vectors, "table": table, "logits": logits, "rope": decoder.rope}
        ids, positions, writes, lens = vectors.unbind(0)
        step = DecodeInputs(ids, positions, writes, table, lens)
        graph = RecordedGraphs(torch.device("cpu")).capture(
            lambda decoder=decoder, step=step, pool=pool, logits=logits: logits.copy_(decoder.decode(step, pool)),
            {**named, **dict(decoder.named_parameters())},
        )
        peaks.append(graph.live_bytes)
    (priced,) = price_shapes(replace(TINY, num_layers=5), [shape], torch.float32)
    assert peaks == [priced.live_bytes] * 2


def test_the_price_does_not_depend_on_the_company_it_is_priced_in() -> None:
    """A shape alone, and as a window of the tables of a larger set."""
    shapes = [Shape(1, 16), Shape(4, 64), Shape(8, 128)]
    together = price_shapes(TINY, shapes, torch.float32)
    assert together == tuple(price for shape in shapes for price in price_shapes(TINY, [shape], torch.float32))


def test_the_price_grows_with_rows_width_and_the_size_of_an_element() -> None:
    def price(shape: Shape, dtype: Any) -> int:
        return price_shapes(TINY, [shape], dtype)[0].live_bytes

    assert (
        price(Shape(8, 512), torch.float32) > price(Shape(8, 256), torch.float32) > price(Shape(4, 256), torch.float32)
    )
    assert price(Shape(8, 512), torch.float32) > price(Shape(8, 512), torch.bfloat16)


# Sizes that no machine here could hold.


def test_a_7b_model_at_256_by_8192_is_priced_in_seconds_and_allocates_nothing() -> None:
    """Its pool alone is a terabyte."""
    policy, before, start = DecodeBuckets(256, 8192, width_multiple=4096), _peak_rss(), perf_counter()
    priced = price_shapes(SEVEN_B, policy.shapes, torch.bfloat16)
    assert perf_counter() - start < 20
    assert _peak_rss() - before < GIB
    largest = max(price.live_bytes for price in priced)
    window = 256 * 8192 * 32 * 128 * 2
    assert 3 * window <= largest < 4 * window, "keys and values gathered, and one of them once more with zeros"
    persistent = persistent_bytes(SEVEN_B, torch.bfloat16, 256, 8192, 256 * 8192 + 1)
    assert persistent.kv_pool == 1024 * GIB + 32 * 2 * 32 * 128 * 2
    assert 13.4e9 < persistent.weights < 13.6e9


def _peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_pricing_leaves_the_default_dtype_and_reports_progress() -> None:
    seen: list[Shape] = []
    price_shapes(TINY, [Shape(1, 16), Shape(2, 16)], torch.bfloat16, progress=seen.append)
    assert seen == [Shape(1, 16), Shape(2, 16)]
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(UnsupportedModel):
        price_shapes(SEVEN_B, [Shape(1, 8193)], torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32


def test_a_kernel_that_may_allocate_inside_itself_is_named_unpriced() -> None:
    (price,) = price_shapes(TINY, [Shape(1, 16)], torch.float32)
    assert len(price.unpriced) == 1
    assert price.unpriced[0].startswith("_scaled_dot_product")
