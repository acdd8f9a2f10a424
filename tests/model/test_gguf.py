"""GGUF files: every quantization to the value, the row order of q and k, the header's own soundness."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Quant
from gguf_files import permuted, write_file, write_model
from pool_runner import PoolRunner
from test_oracle import FAMILIES, LLAMA3_ROPE, STEPS, TOLERANCE, assert_same_choices, oracle_logits, prompts, randomized

from nanoserve.cache_dir import cached_model
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.gguf_file import dequantized, gguf_config, load_gguf, unpermuted
from nanoserve.model.gguf_header import GGUFTensor, is_gguf, read_header
from nanoserve.model.load import SMOLLM2_FILE, load_model

WRITABLE = [Quant.F32, Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1, Quant.Q5_0, Quant.Q5_1]
READ_ONLY = [Quant.Q4_K, Quant.Q5_K, Quant.Q6_K, Quant.IQ4_NL]


def slow_dequantized(raw: bytes, quant: Quant) -> list[float]:
    """The formulas of ggml-quants.c, a value at a time: 32 values a block, after a float16 scale and offset."""
    values: list[float] = []
    size = {Quant.Q8_0: 34, Quant.Q4_0: 18, Quant.Q4_1: 20}[quant]
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        scale = float(np.frombuffer(block[:2], np.float16)[0])
        if quant is Quant.Q8_0:
            values += [scale * code for code in np.frombuffer(block[2:], np.int8).tolist()]
            continue
        offset = -8 * scale if quant is Quant.Q4_0 else float(np.frombuffer(block[2:4], np.float16)[0])
        codes = block[-16:]
        values += [scale * (code & 15) + offset for code in codes]
        values += [scale * (code >> 4) + offset for code in codes]
    return values


def bytes_of(quant: Quant, rows: int = 3, columns: int = 256) -> np.ndarray:
    """Random values quantized, or random bytes where the gguf package can only read the type."""
    generator = np.random.default_rng(3)
    if quant in WRITABLE:
        values = generator.normal(size=(rows, columns)).astype(np.float32)
        return gguf.quantize(values, quant).view(np.uint8).reshape(-1)
    shape = gguf.quant_shape_to_byte_shape((rows, columns), quant)
    return generator.integers(0, 60, shape, dtype=np.uint8).reshape(-1)


def read_back(raw: np.ndarray, quant: Quant) -> torch.Tensor:
    return dequantized(raw, GGUFTensor("w", (3, 256), quant, 0, raw.size), Path("made"))


@pytest.mark.parametrize("quant", [*WRITABLE, *READ_ONLY])
def test_values_are_those_of_the_gguf_package(quant: Quant) -> None:
    raw = bytes_of(quant)
    expected = gguf.dequantize(raw.reshape(3, -1), quant)
    assert np.array_equal(read_back(raw, quant).numpy(), expected)


@pytest.mark.parametrize("quant", [Quant.Q8_0, Quant.Q4_0, Quant.Q4_1])
def test_values_are_those_of_the_formula(quant: Quant) -> None:
    raw = bytes_of(quant)
    expected = torch.tensor(slow_dequantized(raw.tobytes(), quant)).view(3, 256)
    assert torch.allclose(read_back(raw, quant), expected, rtol=1e-6, atol=1e-7)


def test_unpermuted_undoes_the_converter() -> None:
    weight, bias = torch.randn(24, 5), torch.randn(24)
    assert torch.equal(unpermuted(permuted(weight, 3), 3), weight)
    assert torch.equal(unpermuted(permuted(bias, 3), 3), bias)
    assert not torch.equal(permuted(weight, 3), weight)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("llama-llama3-rope", "qwen3-bias")])
def test_every_family_agrees_with_transformers(family: str, tmp_path: Path) -> None:
    """Through the file, in float32: a wrong row order or a lost bias shows at the first token."""
    oracle = randomized(FAMILIES[family]())
    assert_agrees(write_model(tmp_path / "model", oracle), oracle)


def test_a_file_without_the_converters_row_order_does_not_agree(tmp_path: Path) -> None:
    oracle = randomized(FAMILIES["llama"]())
    with pytest.raises(AssertionError):
        assert_agrees(write_model(tmp_path / "model", oracle, permute=False), oracle)


def test_llama3_scaling_comes_as_a_tensor_of_divisors(tmp_path: Path) -> None:
    oracle = randomized(FAMILIES["llama-llama3-rope"]())
    factors = np.array([llama3_divisor(index, 16) for index in range(8)], np.float32)
    path = write_model(tmp_path / "model", oracle, extra={"rope_freqs.weight": factors})
    assert_agrees(path, oracle)
    with pytest.raises(AssertionError):
        assert_agrees(write_model(tmp_path / "plain", oracle), oracle)


def llama3_divisor(index: int, head_dim: int) -> float:
    """What llama.cpp's converter writes for frequency `index` (`LlamaModel.generate_extra_tensors`)."""
    rope: dict[str, Any] = LLAMA3_ROPE
    wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * index / head_dim)
    turns = rope["original_max_position_embeddings"] / wavelength
    if turns > rope["high_freq_factor"]:
        return 1.0
    if turns < rope["low_freq_factor"]:
        return float(rope["factor"])
    smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    return float(1 / ((1 - smooth) / rope["factor"] + smooth))


def assert_agrees(path: Path, oracle: transformers.PreTrainedModel, steps: int = STEPS) -> None:
    runner = PoolRunner(load_gguf(path), rows=4, capacity=100, pad_rows=1)
    batch = prompts(oracle.config.vocab_size)
    tokens, logits = runner.greedy(batch, steps)
    for row, prompt in enumerate(batch):
        expected = oracle_logits(oracle, prompt, tokens[row])
        assert (logits[row] - expected).abs().max() < TOLERANCE
        assert_same_choices(expected, tokens[row])


@pytest.mark.parametrize("quant", WRITABLE)
def test_a_model_of_every_type_loads(quant: Quant, tmp_path: Path) -> None:
    oracle = randomized(FAMILIES["qwen2-tied"]())
    decoder = load_gguf(write_model(tmp_path / "model", oracle, quant), dtype=torch.bfloat16)
    assert decoder.dtype == torch.bfloat16
    assert decoder.lm_head.weight is decoder.embed_tokens.weight
    written = gguf.quantize(oracle.get_input_embeddings().weight.detach().numpy(), quant)
    expected = torch.tensor(gguf.dequantize(written, quant)).bfloat16()
    assert torch.equal(decoder.embed_tokens.weight, expected)


class TestHeader:
    def test_it_is_what_the_gguf_packages_reader_finds(self, tmp_path: Path) -> None:
        path = write_model(
            tmp_path / "model", randomized(FAMILIES["llama"]()), Quant.Q8_0, **{"some.names": ["a", "β", ""]}
        )
        header, reader = read_header(path), gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        assert header.metadata == fields
        assert [(t.name, t.shape, t.type, t.start, t.size) for t in header.tensors] == [
            (t.name, tuple(int(n) for n in t.shape[::-1]), t.tensor_type, t.data_offset, t.n_bytes)
            for t in reader.tensors
        ]

    def test_a_file_cut_anywhere_is_refused_in_one_line(self, tmp_path: Path) -> None:
        whole = write_model(tmp_path / "model", randomized(FAMILIES["llama"]())).read_bytes()
        cut = tmp_path / "cut"
        for size in (5, 20, 100, 700, 1500, len(whole) // 2, len(whole) - 1):
            cut.write_bytes(whole[:size])
            with pytest.raises(CheckpointError, match=r"cut short.*fetch it again") as refused:
                load_gguf(cut)
            assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"GGU"])
    def test_another_file(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        assert not is_gguf(path)
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            load_gguf(path)

    def test_another_version(self, tmp_path: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
        with pytest.raises(UnsupportedModel, match="GGUF version 1 is not implemented"):
            load_gguf(path)


class TestRefusals:
    def refusal(self, path: Path, kind: type[ValueError]) -> str:
        with pytest.raises(kind) as refused:
            load_gguf(path)
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({".rope.scaling.type": "yarn"}, "RoPE scaling type 'yarn' is not implemented"),
            ({".rope.scale_linear": 2.0}, "linear RoPE scaling"),
            ({".expert_count": 8}, "mixture of experts (expert_count) is not implemented"),
            ({".logit_scale": 0.5}, "a scale on the logits (logit_scale) is not implemented"),
            ({".rope.dimension_count": 8}, "partial rotary embedding (rope.dimension_count)"),
            ({".attention.value_length": 8}, "values of another length than keys"),
            ({".attention.head_count_kv": [2, 2, 1]}, "attention.head_count_kv that differs by layer"),
            ({"split.count": 2}, "one part of a split GGUF"),
        ],
    )
    def test_settings_that_are_not_implemented(self, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
        path = write_model(tmp_path / "model", randomized(FAMILIES["llama"]()), **changes)
        assert message in self.refusal(path, UnsupportedModel)

    def test_another_architecture(self, tmp_path: Path) -> None:
        path = write_file(tmp_path / "model", "gemma3", {}, {"token_embd.weight": np.zeros((4, 4), np.float32)})
        message = self.refusal(path, UnsupportedModel)
        assert message.endswith("architecture 'gemma3' is not implemented, only llama, qwen2, qwen3")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({".block_count": None}, "block_count is absent, a positive integer is needed"),
            ({".attention.head_count": 8}, "wrongly shaped tensors ("),
            ({".attention.head_count_kv": 3}, "4 attention heads do not divide into 3 KV heads"),
            (
                {".block_count": 4},
                "missing tensors (9): layers.3.input_layernorm.weight, layers.3.self_attn.q_proj.weight",
            ),
            ({".block_count": 2}, "unexpected tensors (9): layers.2."),
            (
                {".feed_forward_length": 64},
                "wrongly shaped tensors (9): layers.0.",
            ),
        ],
    )
    def test_a_file_that_does_not_fit_its_metadata(self, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
        path = write_model(tmp_path / "model", randomized(FAMILIES["llama"]()), **changes)
        assert message in self.refusal(path, CheckpointError)

    def test_a_tensor_the_decoder_has_no_place_for(self, tmp_path: Path) -> None:
        extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
        path = write_model(tmp_path / "model", randomized(FAMILIES["llama"]()), extra=extra)
        assert "unexpected tensors (1): blk.0.attn_sinks.weight" in self.refusal(path, CheckpointError)

    def test_a_type_the_gguf_package_cannot_dequantize(self) -> None:
        tensor = GGUFTensor("blk.0.ffn_up.weight", (1, 32), Quant.Q8_1, 0, 40)
        with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight is Q8_1, which the gguf package cannot"):
            dequantized(np.zeros(40, np.uint8), tensor, Path("made"))

    def test_rope_divisors_of_another_number(self, tmp_path: Path) -> None:
        extra = {"rope_freqs.weight": np.ones(5, np.float32)}
        path = write_model(tmp_path / "model", randomized(FAMILIES["llama"]()), extra=extra)
        assert "5 RoPE divisors for 8 frequencies" in self.refusal(path, CheckpointError)


def test_a_window_in_the_metadata_is_kept(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", randomized(FAMILIES["llama"]()), **{".attention.sliding_window": 64})
    assert gguf_config(read_header(path)).sliding_window == 64


smollm2 = pytest.mark.skipif(
    not cached_model(SMOLLM2_FILE).is_file(), reason="SmolLM2 is not here: run `nanoserve fetch smollm2`"
)


@smollm2
class TestSmolLM2:
    @pytest.fixture
    def oracle(self) -> transformers.PreTrainedModel:
        """Transformers' Llama on the weights as the gguf package reads, names and dequantizes them."""
        config = transformers.LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            tie_word_embeddings=True,
        )
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(cached_model(SMOLLM2_FILE)).tensors}
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
        state = {}
        for name in model.state_dict():
            if name == "lm_head.weight":
                continue
            tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
            weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
            heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2])
            # The converter's order applied to the row numbers, and inverted.
            state[name] = weight if heads is None else weight[permuted(torch.arange(len(weight)), heads).argsort()]
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state, assign=True)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        return model.eval()

    def test_it_answers_and_agrees_with_transformers(self, oracle: transformers.PreTrainedModel) -> None:
        model = load_model("smollm2")
        assert model.tokenizer is not None
        prompt = model.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
        runner = PoolRunner(model.decoder, rows=1, capacity=64)
        tokens, logits = runner.greedy([prompt], 8)
        expected = oracle_logits(oracle, prompt, tokens[0])
        assert (logits[0] - expected).abs().max() < 1e-3
        assert_same_choices(expected, tokens[0])
        assert model.tokenizer.decode(tokens[0]) == "The capital of France is Paris."
        assert tokens[0][-1] in model.decoder.config.eos_token_ids
