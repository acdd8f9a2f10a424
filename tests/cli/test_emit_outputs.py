"""What each engine is given, to the character, and what is said beside it."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shape_strategies import capture_lists, policies

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape, StaircaseBuckets
from nanoserve_cli.emit import EMITTERS, Emission, EmitTarget, emit
from nanoserve_cli.policy_file import Policy, load_policy

ROWS = DecodeBuckets(12, 4096, rows=[1, 3, 12], widths=[4096])
PRODUCT = DecodeBuckets(8, 1024, rows=[1, 8], widths=[512, 1024])
STAIRCASE = StaircaseBuckets(8, 1000, {1: [100, 384, 1000], 8: [1000]})
PARTIAL = CaptureList([Shape(1, 512), Shape(4, 128), Shape(4, 256)])
WIDTHS_UNUSED = (
    "{} reads each row at its own length and its list has rows only: 4 shapes become 2 sizes; a list fitted to rows "
    "alone may serve it better"
)


def given_to(engine: str, policy: Policy = ROWS, **options: object) -> Emission:
    limits = {"max_batch_size": policy.max_batch_size, "max_model_len": policy.max_model_len} | options
    return emit(engine, EmitTarget(policy, **limits))  # type: ignore[arg-type]


def texts(emission: Emission) -> list[str]:
    return [text for _, text in emission.blocks]


def json_after(flag: str, command: str) -> object:
    """The argument of `flag` as a shell would hand it over."""
    words = shlex.split(command)
    return json.loads(words[words.index(flag) + 1])


class TestVLLM:
    def test_the_default_mode_keeps_the_sizes_above_the_batch_for_mixed_batches(self) -> None:
        emission = given_to("vllm")
        assert emission == Emission(
            engine="vllm",
            checked_against="vLLM 0.33.0",
            blocks=(
                ("flags of vllm serve", "--max-num-seqs 12 --cudagraph-capture-sizes 1 3 12 16 24"),
                (
                    "the same as one JSON flag",
                    "--max-num-seqs 12 --compilation-config '{\"cudagraph_capture_sizes\": [1, 3, 12, 16, 24]}'",
                ),
            ),
            warnings=(
                "up to 12 tokens this list serves mixed batches too, to which it was not fitted: it lacks 3 of vLLM's "
                "default sizes there: 2, 4, 8",
                "beside this list vLLM does not start with a max_cudagraph_capture_size other than 24, nor with a "
                "compile_sizes entry that the list would pad",
            ),
            effective_sizes=(1, 3, 12, 16, 24),
        )

    @pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
    def test_a_mode_that_captures_mixed_batches_keeps_them_too_and_is_named(self, mode: str) -> None:
        flags, as_json = texts(given_to("vllm", cudagraph_mode=mode))
        assert flags == f"--max-num-seqs 12 --cudagraph-capture-sizes 1 3 12 16 24 -cc.cudagraph_mode={mode}"
        assert json_after("--compilation-config", as_json) == {
            "cudagraph_mode": mode,
            "cudagraph_capture_sizes": [1, 3, 12, 16, 24],
        }

    def test_full_decode_only_captures_the_fitted_sizes_alone(self) -> None:
        emission = given_to("vllm", cudagraph_mode="FULL_DECODE_ONLY")
        assert texts(emission)[0] == (
            "--max-num-seqs 12 --cudagraph-capture-sizes 1 3 12 -cc.cudagraph_mode=FULL_DECODE_ONLY"
        )
        assert emission.effective_sizes == (1, 3, 12)
        assert [warning for warning in emission.warnings if "mixed" in warning] == []

    def test_mode_none_has_no_list(self) -> None:
        with pytest.raises(ValueError, match=r"^cudagraph_mode NONE captures nothing: there is no list to emit$"):
            given_to("vllm", cudagraph_mode="NONE")

    def test_drafts_multiply_the_sizes(self) -> None:
        emission = given_to("vllm", spec_tokens=2, cudagraph_mode="FULL_DECODE_ONLY")
        assert emission.effective_sizes == (3, 9, 36)
        assert given_to("vllm", spec_tokens=2).effective_sizes == (3, 9, 36, 40, 48, 56, 64, 72)

    def test_at_256_rows_the_default_list_goes_on_to_512(self) -> None:
        emission = given_to("vllm", DecodeBuckets(256, 64, rows=[256], widths=[64]))
        assert emission.effective_sizes == (256, *range(272, 513, 16))
        assert [warning for warning in emission.warnings if "Blackwell" in warning] == []

    def test_a_ceiling_that_is_higher_on_blackwell_is_said_with_the_sizes(self) -> None:
        emission = given_to("vllm", DecodeBuckets(272, 64, rows=[272], widths=[64]))
        assert (
            "on data-centre Blackwell vLLM's default list goes further for mixed batches: append 528 544"
            in emission.warnings
        )

    def test_a_batch_beyond_the_default_ceiling_is_captured_all_the_same(self) -> None:
        assert given_to("vllm", DecodeBuckets(700, 64, rows=[8, 700], widths=[64])).effective_sizes == (8, 700)

    def test_a_token_budget_below_the_batch_cuts_the_sizes_to_what_one_step_holds(self) -> None:
        emission = given_to("vllm", spec_tokens=2, max_num_batched_tokens=31)
        assert texts(emission)[0] == (
            "--max-num-seqs 12 --max-num-batched-tokens 31 --cudagraph-capture-sizes 3 9 30 31"
        )
        assert (
            "one step of 31 tokens does not hold batches of 11 to 12 at 3 tokens a row: decode sizes go up to 30; for "
            "the whole batch raise max_num_batched_tokens to 36" in emission.warnings
        )

    @pytest.mark.parametrize(("budget", "spec_tokens", "least"), [(11, 0, 12), (12, 12, 13)])
    def test_a_token_budget_with_which_vllm_does_not_start(self, budget: int, spec_tokens: int, least: int) -> None:
        with pytest.raises(ValueError, match=f"max_num_batched_tokens {budget} is too small .* at least {least}$"):
            given_to("vllm", max_num_batched_tokens=budget, spec_tokens=spec_tokens)

    def test_an_unknown_budget_is_named_where_a_default_would_drop_sizes(self) -> None:
        large = DecodeBuckets(1024, 64, rows=[1024], widths=[64])
        warning = (
            "vLLM drops sizes above max_num_batched_tokens, 2048 by default on some GPUs: give one of at least 3072 to "
            "vLLM and here"
        )
        assert warning in given_to("vllm", large, spec_tokens=2).warnings
        assert warning not in given_to("vllm", large, spec_tokens=2, max_num_batched_tokens=3072).warnings
        assert warning not in given_to("vllm", large, spec_tokens=1).warnings

    def test_sequence_parallelism_drops_what_is_no_multiple(self) -> None:
        warnings = given_to("vllm", tensor_parallel=8).warnings
        assert (
            "with sequence parallelism on, vLLM drops sizes that are no multiple of 8: 1, 3, 12; 12, the peak batch, "
            "is one: choose a largest batch that is a multiple" in warnings
        )
        assert "with sequence parallelism on, vLLM drops sizes that are no multiple of 4: 1, 3" in (
            given_to("vllm", tensor_parallel=4).warnings
        )

    def test_an_incomplete_list_leaves_its_large_batches_to_the_default_sizes(self) -> None:
        emission = given_to("vllm", PARTIAL, max_batch_size=12)
        assert emission.effective_sizes == (1, 4, 8, 12, 16, 24)
        assert "batches of 5 to 12 are above the list: they run at vLLM's default sizes, kept for mixed batches" in (
            emission.warnings
        )

    def test_or_to_no_graph_where_there_are_none(self) -> None:
        alone = given_to("vllm", PARTIAL, max_batch_size=12, cudagraph_mode="FULL_DECODE_ONLY")
        assert alone.effective_sizes == (1, 4)
        assert "batches of 5 to 12 are above the list: vLLM runs them without a graph" in alone.warnings
        beyond = given_to("vllm", PARTIAL, max_batch_size=600)
        assert beyond.effective_sizes is not None
        assert beyond.effective_sizes[-1] == 512
        assert "batches of 513 to 600 are above the list: vLLM runs them without a graph" in beyond.warnings


class TestSGLang:
    def test_it_takes_flags_or_one_json(self) -> None:
        assert given_to("sglang") == Emission(
            engine="sglang",
            checked_against="SGLang 0.5.23",
            blocks=(
                ("flags of sglang.launch_server", "--max-running-requests 12 --cuda-graph-bs-decode 1 3 12"),
                (
                    "the same as one JSON flag",
                    "--max-running-requests 12 --cuda-graph-config "
                    '\'{"decode": {"backend": "full", "max_bs": 12, "bs": [1, 3, 12]}}\'',
                ),
            ),
            warnings=(),
            effective_sizes=(1, 3, 12),
        )

    def test_attention_tensor_parallelism_may_drop_sizes(self) -> None:
        assert given_to("sglang", tensor_parallel=2).warnings == (
            "where it gathers tokens over attention-TP ranks, SGLang drops sizes that are no multiple of 2: 1, 3",
        )

    def test_drafts_do_not_change_sizes_that_count_requests(self) -> None:
        emission = given_to("sglang", spec_tokens=3)
        assert emission.blocks == given_to("sglang").blocks
        assert emission.warnings == ("what sglang is given is the same for any spec_tokens",)


class TestTensorRTLLM:
    def test_batch_sizes_stand_alone_in_the_graph_section(self) -> None:
        text = "max_batch_size: 12\ncuda_graph_config:\n  enable_padding: true\n  batch_sizes: [1, 3, 12]"
        emission = given_to("trtllm")
        assert emission.blocks == (("YAML for trtllm-serve --config", text),)
        assert (emission.warnings, emission.effective_sizes) == ((), (1, 3, 12))
        assert yaml.safe_load(text) == {
            "max_batch_size": 12,
            "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 3, 12]},
        }

    def test_a_token_budget_cuts_the_list_where_the_engine_would(self) -> None:
        emission = given_to("trtllm", spec_tokens=2, max_num_batched_tokens=17)
        assert yaml.safe_load(texts(emission)[0]) == {
            "max_batch_size": 12,
            "max_num_tokens": 17,
            "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 3, 5]},
        }
        assert emission.warnings == (
            "one step of 17 tokens does not hold batches of 6 to 12 at 3 tokens a row: the list ends at 5; for the "
            "whole batch raise max_num_tokens (max_num_batched_tokens here) to 36",
        )

    def test_a_budget_that_is_not_given_is_the_engines_default(self) -> None:
        emission = given_to("trtllm", DecodeBuckets(512, 64, rows=[1, 512], widths=[64]), spec_tokens=19)
        assert emission.effective_sizes == (1, 409)
        assert "max_num_tokens" not in texts(emission)[0]

    def test_a_budget_for_no_row_at_all(self) -> None:
        with pytest.raises(ValueError, match=r"^max_num_batched_tokens 2 holds no row of 3 tokens$"):
            given_to("trtllm", spec_tokens=2, max_num_batched_tokens=2)


class TestLMDeploy:
    def test_its_flags(self) -> None:
        flags = "--max-batch-size 12 --cudagraph-capture-batch-sizes 1 3 12"
        emission = given_to("lmdeploy")
        assert emission.blocks == (("flags of lmdeploy serve api_server --backend pytorch", flags),)
        assert (emission.warnings, emission.effective_sizes) == ((), (1, 3, 12))

    def test_the_maximum_is_added_to_an_incomplete_list(self) -> None:
        emission = given_to("lmdeploy", CaptureList([Shape(2, 64)], max_batch_size=9))
        assert texts(emission) == ["--max-batch-size 9 --cudagraph-capture-batch-sizes 2"]
        assert emission.effective_sizes == (2, 9)
        assert emission.warnings == (
            "batches of 3 to 9 are above the list: LMDeploy adds 9 to the list and pads them to it",
        )


class TestTGI:
    def test_largest_first_and_drafts_are_rows(self) -> None:
        emission = given_to("tgi")
        assert emission.blocks == (("flags of text-generation-launcher", "--max-batch-size 12 --cuda-graphs 12,3,1"),)
        assert emission.warnings == (
            "where capture runs out of memory TGI serves on without the sizes that were left, with one error in its "
            "log",
        )
        assert texts(given_to("tgi", spec_tokens=1)) == ["--max-batch-size 12 --cuda-graphs 24,6,2"]


class TestMiniSGLang:
    def test_a_list_goes_in_by_the_class(self) -> None:
        emission = given_to("mini-sglang")
        call = "LLM(model_path, max_running_req=12, cuda_graph_bs=[1, 3, 12])"
        assert emission.blocks == (("Python, minisgl.llm.LLM", call),)
        assert emission.warnings == (
            "the server's --cuda-graph-max-bs cannot give this list: it means 1, 2, 4 and multiples of 8",
        )
        parsed = ast.parse(call, mode="eval").body
        assert isinstance(parsed, ast.Call)
        assert {word.arg: ast.literal_eval(word.value) for word in parsed.keywords} == {
            "max_running_req": 12,
            "cuda_graph_bs": [1, 3, 12],
        }


class TestGaudi:
    def test_a_staircase_is_one_bucket_a_line_in_blocks_of_all_rows(self) -> None:
        emission = given_to("gaudi", STAIRCASE)
        assert emission.blocks == (
            (
                "the file that VLLM_BUCKETING_FROM_FILE names, decode part",
                "(1, 1, 1)\n(1, 1, 3)\n(1, 1, 8)\n(8, 1, 64)",
            ),
            ("flags of vllm serve", "--max-num-seqs 8 --max-model-len 1000 --block-size 128"),
        )
        assert emission.effective_sizes is None
        assert [warning.split(":")[0] for warning in emission.warnings] == [
            "the file replaces the prompt buckets too, and Gaudi does not start with none",
            "Gaudi adds up the blocks of all rows where this policy takes the longest row for each",
            "no total was cut to the server's KV cache",
            "with VLLM_CONTIGUOUS_PA=true Gaudi looks up the highest block in use, not their number",
        ]

    def test_widths_within_one_block_are_one_bucket(self) -> None:
        emission = given_to("gaudi", STAIRCASE, block_size=400)
        assert texts(emission)[0] == "(1, 1, 1)\n(1, 1, 3)\n(8, 1, 24)"
        assert "in blocks of 400 tokens the 4 shapes are 3 buckets" in emission.warnings

    def test_an_incomplete_list_compiles_while_serving(self) -> None:
        emission = given_to("gaudi", PARTIAL, max_batch_size=6)
        assert texts(emission)[0] == "(1, 1, 4)\n(4, 1, 4)\n(4, 1, 8)"
        assert emission.warnings[0] == (
            "batches of 2 to 4 above width 256; batches of 5 to 6 are off the list: Gaudi compiles a fallback bucket "
            "for such steps while serving"
        )


class TestNeuron:
    def test_two_lists_with_the_full_width_left_to_its_fallback(self) -> None:
        emission = given_to("neuron", PRODUCT)
        assert emission.blocks == (
            (
                "flags of vllm serve",
                "--max-num-seqs 8 --max-model-len 1024 --additional-config "
                '\'{"neuron_config": {"num_seqs_buckets": [1, 8], "decode_context_length_buckets": [512]}}\'',
            ),
        )
        assert (emission.warnings, emission.effective_sizes) == ((), None)

    def test_a_list_of_the_full_width_alone_gives_none(self) -> None:
        (flags,) = texts(given_to("neuron"))
        assert json_after("--additional-config", flags) == {"neuron_config": {"num_seqs_buckets": [1, 3, 12]}}

    def test_a_staircase_is_compiled_as_a_product_in_tiles(self) -> None:
        emission = given_to("neuron", STAIRCASE)
        assert json_after("--additional-config", texts(emission)[0]) == {
            "neuron_config": {"num_seqs_buckets": [1, 8], "decode_context_length_buckets": [128, 384]}
        }
        assert emission.warnings == (
            "Neuron takes multiples of 128 alone: widths were rounded up, 100 to 128",
            "Neuron compiles every batch with every width, max_model_len included: 6 graphs, where the policy has 4 "
            "shapes",
        )

    def test_a_width_that_rounds_past_the_maximum_is_the_fallback(self) -> None:
        emission = given_to("neuron", DecodeBuckets(1, 1000, widths=[900, 1000]))
        assert json_after("--additional-config", texts(emission)[0]) == {"neuron_config": {"num_seqs_buckets": [1]}}
        assert emission.warnings == ("Neuron takes multiples of 128 alone: widths were rounded up, 900 to 1000",)

    def test_the_largest_batch_is_added(self) -> None:
        emission = given_to("neuron", CaptureList([Shape(2, 128)], max_batch_size=3))
        assert json_after("--additional-config", texts(emission)[0]) == {"neuron_config": {"num_seqs_buckets": [2, 3]}}
        assert emission.warnings[0] == (
            "batches of 3 are above the list: 3 was added, since Neuron wants max_num_seqs as the largest"
        )

    def test_drafts_count_toward_the_width(self) -> None:
        assert given_to("neuron", PRODUCT, spec_tokens=2).warnings == (
            "Neuron looks a step up with its 2 draft tokens added, so the last 2 columns of each width fall to the "
            "next",
        )


class TestNanoserve:
    def test_a_policy_file(self) -> None:
        emission = given_to("nanoserve", STAIRCASE)
        text = "schema_version: 1\nmax_batch_size: 8\nmax_model_len: 1000\nladders:\n  1: [100, 384, 1000]\n  8: [1000]"
        assert emission.blocks == (("a file for nanoserve bench --policy", text),)
        assert (emission.warnings, emission.effective_sizes) == ((), None)

    @given(policy=st.one_of(policies(), capture_lists()))
    def test_it_reads_back_equal(self, policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.getbasetemp() / "emitted.yaml"
        path.write_text(texts(given_to("nanoserve", policy))[0], encoding="utf-8")
        assert load_policy(path) == policy

    def test_a_list_is_written_under_the_servers_limits(self, tmp_path: Path) -> None:
        emission = given_to("nanoserve", PARTIAL, max_batch_size=6, max_model_len=600)
        (tmp_path / "p.yaml").write_text(texts(emission)[0], encoding="utf-8")
        assert load_policy(tmp_path / "p.yaml") == CaptureList(PARTIAL.shapes, max_batch_size=6, max_model_len=600)
        assert emission.warnings == (
            "batches of 1 above width 512; batches of 2 to 4 above width 256; batches of 5 to 6 are off the list: such "
            "steps run eager",
        )


class TestOfAllEngines:
    @pytest.mark.parametrize("engine", EMITTERS)
    @pytest.mark.parametrize("policy", [ROWS, PRODUCT, STAIRCASE, PARTIAL])
    def test_an_emission_names_its_engine_and_speaks_in_single_lines(self, engine: str, policy: Policy) -> None:
        emission = given_to(engine, policy)
        assert emission.engine == engine
        assert emission.checked_against
        assert emission.blocks
        assert all("\n" not in line for line in (*emission.warnings, *(title for title, _ in emission.blocks)))
        assert not any(text.endswith("\n") for text in texts(emission))

    @pytest.mark.parametrize(
        ("engine", "name"),
        [
            ("vllm", "vLLM"),
            ("sglang", "SGLang"),
            ("trtllm", "TensorRT-LLM"),
            ("lmdeploy", "LMDeploy"),
            ("tgi", "TGI"),
            ("mini-sglang", "mini-sglang"),
        ],
    )
    def test_several_widths_are_said_to_be_unused(self, engine: str, name: str) -> None:
        assert given_to(engine, PRODUCT).warnings[0] == WIDTHS_UNUSED.format(name)
        assert not any("rows only" in warning for warning in given_to(engine).warnings)

    @pytest.mark.parametrize(
        ("engine", "name"), [("sglang", "SGLang"), ("trtllm", "TensorRT-LLM"), ("tgi", "TGI"), ("mini-sglang",) * 2]
    )
    def test_batches_above_an_incomplete_list_are_said_to_be_eager(self, engine: str, name: str) -> None:
        emission = given_to(engine, CaptureList([Shape(1, 64), Shape(4, 64)], max_batch_size=5))
        assert emission.warnings[0] == f"batches of 5 are above the list: {name} runs them eager"
        assert emission.effective_sizes == (1, 4)

    @pytest.mark.parametrize("engine", EMITTERS)
    def test_a_setting_changes_what_is_given_or_is_named(self, engine: str) -> None:
        settings: dict[str, object] = {
            "cudagraph_mode": "PIECEWISE",
            "spec_tokens": 4095,
            "tensor_parallel": 3,
            "max_num_batched_tokens": 20,
            "block_size": 16,
        }
        plain = given_to(engine, PRODUCT)
        for setting, value in settings.items():
            emission = given_to(engine, PRODUCT, **{setting: value})
            named = f"what {engine} is given is the same for any {setting}" in emission.warnings
            assert named == (setting not in EMITTERS[engine].options)
            assert (emission.blocks, emission.warnings) != (plain.blocks, plain.warnings)
            assert not named or emission.blocks == plain.blocks
