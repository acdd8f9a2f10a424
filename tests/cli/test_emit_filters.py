"""Each engine's own filter, written out the slow way, leaves the emitted list as it is and every batch with a graph."""

from __future__ import annotations

import ast
import json
import shlex

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shape_strategies import capture_lists, policies

from nanoserve.buckets import DecodeBuckets, StaircaseBuckets
from nanoserve_cli.emit import Emission, EmitTarget, emit
from nanoserve_cli.policy_file import Policy

MIXED_MODES = ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE")


@st.composite
def row_policies(draw: st.DrawFn) -> DecodeBuckets:
    """Of servers small and large: vLLM's own ladder changes its stride at 256 tokens and ends at 512."""
    most = draw(st.one_of(st.integers(1, 40), st.integers(1, 600)))
    rows = draw(st.sets(st.integers(1, most), max_size=8)) | {most}
    return DecodeBuckets(most, 64, rows=sorted(rows), widths=[64])


def for_server(policy: Policy, **options: object) -> EmitTarget:
    return EmitTarget(policy, policy.max_batch_size, policy.max_model_len, **options)  # type: ignore[arg-type]


def numbers_after(flag: str, command: str) -> list[int]:
    words = shlex.split(command)
    sizes = []
    for word in words[words.index(flag) + 1 :]:
        if not word.isdigit():
            break
        sizes.append(int(word))
    return sizes


def graph_of(size: int, sizes: list[int]) -> int | None:
    """The size that a batch of `size` is padded to, or None: eager."""
    return next((captured for captured in sizes if captured >= size), None)


def vllm_captures(sizes: list[int], max_num_batched_tokens: int) -> list[int]:
    return sorted({size for size in sizes if size <= max_num_batched_tokens})


def vllm_default(max_num_seqs: int, q: int, max_num_batched_tokens: int) -> list[int]:
    most = min(max_num_seqs * q * 2, 512)
    counts = [n for n in range(1, 513) if n in (1, 2, 4) or (n < 256 and n % 8 == 0) or (n >= 256 and n % 16 == 0)]
    requests = {n for n in counts if n <= min(max_num_seqs, 512)} | {min(max_num_seqs, 512)}
    uniform = {n * q for n in requests if n * q <= most}
    most_within = min(max_num_batched_tokens, most)
    sizes = {n for n in counts if n <= most_within}
    if max_num_batched_tokens <= most_within:
        sizes.add(max_num_batched_tokens)
    return sorted(sizes | {size for size in uniform if size <= max_num_batched_tokens})


class TestVLLM:
    @settings(max_examples=200)
    @given(
        policy=row_policies(),
        q=st.integers(1, 5),
        mode=st.sampled_from((*MIXED_MODES, "FULL_DECODE_ONLY")),
        budget=st.one_of(st.none(), st.integers(1, 3000)),
    )
    def test_every_decode_batch_has_its_own_graph_and_no_mixed_batch_loses(
        self, policy: DecodeBuckets, q: int, mode: str, budget: int | None
    ) -> None:
        assume(budget is None or budget >= max(policy.max_batch_size, q))
        target = for_server(policy, spec_tokens=q - 1, cudagraph_mode=mode, max_num_batched_tokens=budget)
        emission = emit("vllm", target)
        flags, as_json = (text for _, text in emission.blocks)
        sizes = numbers_after("--cudagraph-capture-sizes", flags)
        words = shlex.split(as_json)
        assert json.loads(words[words.index("--compilation-config") + 1])["cudagraph_capture_sizes"] == sizes
        assert numbers_after("--max-num-seqs", flags) == [policy.max_batch_size]

        tokens = budget or 10**6
        captured = vllm_captures(sizes, tokens)
        assert captured == sizes == list(emission.effective_sizes or ())

        reach = min(policy.max_batch_size, tokens // q)
        for rows in range(1, reach + 1):
            assert graph_of(rows * q, captured) == min(policy.row_bucket(rows), reach) * q
        default = vllm_default(policy.max_batch_size, q, tokens)
        for size in range(reach * q + 1, default[-1] + 1):
            own = graph_of(size, default)
            assert own is not None
            assert graph_of(size, captured) == (None if mode == "FULL_DECODE_ONLY" else own)

    @settings(max_examples=200)
    @given(policy=row_policies(), q=st.integers(1, 5), parallel=st.integers(1, 8))
    def test_what_sequence_parallelism_would_drop_is_named(self, policy: DecodeBuckets, q: int, parallel: int) -> None:
        emission = emit("vllm", for_server(policy, spec_tokens=q - 1, tensor_parallel=parallel))
        sizes = list(emission.effective_sizes or ())
        check_dropped_are_named(emission, [size for size in sizes if size % parallel == 0], sizes, parallel)
        assert any("peak batch" in line for line in emission.warnings) == bool(policy.max_batch_size * q % parallel)


def check_dropped_are_named(emission: Emission, kept: list[int], sizes: list[int], parallel: int) -> None:
    start = f"drops sizes that are no multiple of {parallel}: "
    named = [line.partition(start)[2].partition(";")[0] for line in emission.warnings if start in line]
    dropped = [size for size in sizes if size not in kept]
    assert bool(named) == bool(dropped)
    if named:
        first, _, more = named[0].partition(" and ")
        assert [int(size) for size in first.split(", ")] == dropped[:8]
        assert int(more.removesuffix(" more") or 0) == len(dropped[8:])


def sglang_captures(bs: list[int], pool: int, alignment: int) -> list[int]:
    aligned_pool = -(-pool // alignment) * alignment
    if max(bs) > aligned_pool:
        bs = [*bs, aligned_pool]
    return sorted({size for size in bs if size % alignment == 0 and size <= aligned_pool})


class TestSGLang:
    @settings(max_examples=200)
    @given(policy=row_policies(), parallel=st.integers(1, 8))
    def test_every_batch_has_its_own_graph_and_dropped_sizes_are_named(
        self, policy: DecodeBuckets, parallel: int
    ) -> None:
        emission = emit("sglang", for_server(policy, tensor_parallel=parallel))
        flags, as_json = (text for _, text in emission.blocks)
        sizes = numbers_after("--cuda-graph-bs-decode", flags)
        (pool,) = numbers_after("--max-running-requests", flags)
        words = shlex.split(as_json)
        assert json.loads(words[words.index("--cuda-graph-config") + 1]) == {
            "decode": {"backend": "full", "max_bs": max(sizes), "bs": sizes}
        }
        captured = sglang_captures(sizes, pool, 1)
        assert captured == list(emission.effective_sizes or ())
        for rows in range(1, pool + 1):
            assert graph_of(rows, captured) == policy.row_bucket(rows)
        check_dropped_are_named(emission, sglang_captures(sizes, pool, parallel), sizes, parallel)


def trtllm_captures(batch_sizes: list[int], max_batch_size: int, max_num_tokens: int, draft: int) -> list[int]:
    most = min(max_batch_size, max_num_tokens // (1 + draft))
    kept = []
    for size in batch_sizes:
        if size <= most:
            kept.append(size)
        elif most not in kept:
            kept.append(most)
    return kept


class TestTensorRTLLM:
    @settings(max_examples=200)
    @given(policy=row_policies(), draft=st.integers(0, 20), budget=st.one_of(st.none(), st.integers(21, 3000)))
    def test_it_is_what_the_engine_would_cut_the_policy_to(
        self, policy: DecodeBuckets, draft: int, budget: int | None
    ) -> None:
        emission = emit("trtllm", for_server(policy, spec_tokens=draft, max_num_batched_tokens=budget))
        document = yaml.safe_load(emission.blocks[0][1])
        assert document["cuda_graph_config"].keys() == {"batch_sizes", "enable_padding"}
        sizes = document["cuda_graph_config"]["batch_sizes"]
        tokens = document.get("max_num_tokens", 8192)
        captured = trtllm_captures(sizes, document["max_batch_size"], tokens, draft)
        assert captured == trtllm_captures(list(policy.rows), document["max_batch_size"], tokens, draft)
        assert captured == sizes == list(emission.effective_sizes or ())
        reach = min(policy.max_batch_size, tokens // (1 + draft))
        for rows in range(1, reach + 1):
            assert graph_of(rows, captured) == min(policy.row_bucket(rows), reach)
        assert any("does not hold" in line for line in emission.warnings) == (reach < policy.max_batch_size)


class TestLMDeploy:
    @given(policy=st.one_of(row_policies(), capture_lists()), more=st.integers(0, 3))
    def test_the_engines_normal_form(self, policy: Policy, more: int) -> None:
        most = policy.max_batch_size + (0 if isinstance(policy, DecodeBuckets) else more)
        emission = emit("lmdeploy", EmitTarget(policy, most, policy.max_model_len))
        flags = emission.blocks[0][1]
        assert numbers_after("--max-batch-size", flags) == [most]
        given_sizes = numbers_after("--cudagraph-capture-batch-sizes", flags)
        assert sorted({size for size in given_sizes if size <= most} | {most}) == list(emission.effective_sizes or ())


def gaudi_buckets(text: str, max_model_len: int, block_size: int) -> list[tuple[int, int, int]]:
    """As read from the file and corrected without contiguous PA."""
    read = [ast.literal_eval(line) for line in text.splitlines()]
    row_blocks = -(-max_model_len // block_size)
    return sorted({(bs, q, min(ctx, bs * row_blocks)) for bs, q, ctx in read if q == 1 and bs <= ctx})


class TestGaudi:
    @settings(max_examples=200)
    @given(data=st.data(), policy=policies(), block_size=st.integers(1, 20))
    def test_a_step_finds_a_bucket_no_larger_than_the_policys_shape(
        self, data: st.DataObject, policy: DecodeBuckets | StaircaseBuckets, block_size: int
    ) -> None:
        text = emit("gaudi", for_server(policy, block_size=block_size)).blocks[0][1]
        buckets = gaudi_buckets(text, policy.max_model_len, block_size)
        assert [str(bucket) for bucket in buckets] == text.splitlines()

        lengths = data.draw(st.lists(st.integers(1, policy.max_model_len), min_size=1, max_size=policy.max_batch_size))
        blocks = sum(-(-length // block_size) for length in lengths)
        found = next(bucket for bucket in buckets if bucket[0] >= len(lengths) and bucket[2] >= blocks)
        shape = policy.shape_for(len(lengths), max(lengths))
        assert found[0] == shape.rows
        assert found[2] <= shape.rows * -(-shape.width // block_size)


class TestNeuron:
    @settings(max_examples=200)
    @given(rows=st.integers(1, 20), length=st.integers(1, 3000), data=st.data())
    def test_the_lists_are_ones_that_it_starts_with_and_cover_every_step(
        self, rows: int, length: int, data: st.DataObject
    ) -> None:
        ladder = st.sets(st.integers(1, length), max_size=6)
        ladders = {row: sorted(data.draw(ladder) | {length}) for row in sorted({1, rows})}
        policy = StaircaseBuckets(rows, length, ladders)
        words = shlex.split(emit("neuron", for_server(policy)).blocks[0][1])
        config = json.loads(words[words.index("--additional-config") + 1])["neuron_config"]
        assert config["num_seqs_buckets"] == list(policy.rows)

        contexts = config.get("decode_context_length_buckets", [])
        assert "decode_context_length_buckets" not in config or contexts
        assert contexts == sorted(set(contexts))
        assert all(width > 0 and width % 128 == 0 and width < length for width in contexts)
        for width in range(1, length + 1):
            own = policy.shape_for(rows, width).width
            graph = graph_of(width, [*contexts, length])
            assert graph is not None
            assert graph <= min(-(-own // 128) * 128, length)
