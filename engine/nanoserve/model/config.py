"""What a decoder is: the sizes and switches of the Llama family, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from nanoserve.model.errors import UnsupportedModel


@dataclass(frozen=True)
class Llama3RopeScaling:
    """The `llama3` frequency rescaling of RoPE (Llama 3.1 and later), its fields named as in config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one decoder-only model.

    `qkv_bias` and `output_bias` say which attention projections carry a bias (Qwen2: q, k and v; Llama with
    `attention_bias`: all four). `qk_norm` is Qwen3's RMSNorm over each head before RoPE. `eos_token_ids` is
    the union of what generation_config, config and tokenizer name. `sliding_window` is the window of layers
    that do slide, None where none does. `rope_divisors` are GGUF's form of a RoPE rescaling: one number a
    frequency, which divides it.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: Llama3RopeScaling | None = None
    rope_divisors: tuple[float, ...] = ()
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} attention heads do not divide into {self.num_kv_heads} KV heads")
        if self.head_dim % 2:
            raise ValueError(f"RoPE rotates pairs: head_dim must be even, got {self.head_dim}")
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise ValueError(f"{len(self.rope_divisors)} RoPE divisors for {self.head_dim // 2} frequencies")


def check_supports(config: ModelConfig, max_model_len: int) -> None:
    """Refuse a context that `config` cannot serve faithfully.

    Raises UnsupportedModel where `max_model_len` exceeds the positions the model was made for, or an active
    sliding window, which this engine does not implement: up to its size a window changes nothing.
    """
    if max_model_len > config.max_position_embeddings:
        raise UnsupportedModel(
            f"max_model_len {max_model_len} is past the model's max_position_embeddings "
            f"{config.max_position_embeddings}: lower max_model_len to that or less"
        )
    if config.sliding_window is not None and max_model_len > config.sliding_window:
        raise UnsupportedModel(
            f"the model attends through a sliding window of {config.sliding_window} tokens, which is not "
            f"implemented: lower max_model_len from {max_model_len} to {config.sliding_window} or less"
        )
