"""The decoder: Llama, Mistral, Qwen2 and Qwen3 in one module, with the KV pool as an argument.

Parameter names are Hugging Face's without the leading `model.`. Two ways through it: `prefill` takes
right-padded prompts and attends within the batch; `decode` takes one token a row and attends through the
pool. Both write K/V at the slots they are given and know nothing of requests, blocks or padding: a padded row
is a row whose length is 0 and whose slot is the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanoserve.model.config import ModelConfig, check_supports
from nanoserve.model.rope import rope_table, rotate
from nanoserve.reads.gather import GatherWindow, gather_attention, gather_window


class DecodeInputs(NamedTuple):
    """One decode step as the model sees it, all int64: `[rows]` four times, and `slots` `[rows, width]`.

    `context_lens` counts this step's token; 0 marks a padded row.
    """

    input_ids: Tensor
    positions: Tensor
    write_slots: Tensor
    slots: Tensor
    context_lens: Tensor


class PrefillInputs(NamedTuple):
    """Right-padded prompts, all int64: `[prompts, length]` twice, and `prompt_lens` `[prompts]`."""

    input_ids: Tensor
    write_slots: Tensor
    prompt_lens: Tensor


class LayerStep(NamedTuple):
    """What every layer of one decode step shares: the rotation of each row, its write slot, its window."""

    cos: Tensor
    sin: Tensor
    write_slots: Tensor
    window: GatherWindow


class PrefillStep(NamedTuple):
    """What every layer of one prefill shares: the rotation of each position, the slots to write."""

    cos: Tensor
    sin: Tensor
    write_slots: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 whatever the weights' dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[..., size]`, normed over its last dimension."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with optional q/k norm and biases; the read is chosen by the caller."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def qkv(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each `[..., heads, head_dim]`, of `[..., hidden_size]`."""
        heads = (*hidden.shape[:-1], -1, self.head_dim)
        query, key, value = (p(hidden).view(heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def decode(self, hidden: Tensor, k_pool: Tensor, v_pool: Tensor, step: LayerStep) -> Tensor:
        """`hidden` `[rows, hidden_size]`: write each token's K/V at its slot, attend over its window."""
        query, key, value = self.qkv(hidden, step.cos, step.sin)
        k_pool.index_put_((step.write_slots,), key)
        v_pool.index_put_((step.write_slots,), value)
        out: Tensor = self.o_proj(gather_attention(query, k_pool, v_pool, step.window).flatten(-2))
        return out

    def prefill(self, hidden: Tensor, k_pool: Tensor, v_pool: Tensor, step: PrefillStep) -> Tensor:
        """`hidden` `[prompts, length, hidden_size]`: write the K/V, attend causally within each prompt.

        Padding is on the right, so the causal mask alone keeps it from every real token.
        """
        query, key, value = self.qkv(hidden, step.cos, step.sin)
        k_pool.index_put_((step.write_slots,), key)
        v_pool.index_put_((step.write_slots,), value)
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        out: Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return out


class MLP(nn.Module):
    """The gated feed-forward: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` and the result are `[..., hidden_size]`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each normed before and added after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def decode(self, hidden: Tensor, k_pool: Tensor, v_pool: Tensor, step: LayerStep) -> Tensor:
        """One token a row, `[rows, hidden_size]` in and out: the region that `CompiledDecode` compiles."""
        hidden = hidden + self.self_attn.decode(self.input_layernorm(hidden), k_pool, v_pool, step)
        return self._feed_forward(hidden)

    def prefill(self, hidden: Tensor, k_pool: Tensor, v_pool: Tensor, step: PrefillStep) -> Tensor:
        """Whole prompts, `[prompts, length, hidden_size]` in and out."""
        hidden = hidden + self.self_attn.prefill(self.input_layernorm(hidden), k_pool, v_pool, step)
        return self._feed_forward(hidden)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


RunLayer = Callable[[DecoderLayer, Tensor, Tensor, Tensor, LayerStep], Tensor]


class Decoder(nn.Module):
    """A decoder-only language model over a paged KV pool.

    The pool is `[num_layers, 2, slots, kv_heads, head_dim]`, keys then values. Call `prepare(max_model_len)`
    once the weights are where they will stay: it makes the RoPE table, which a step only reads.
    """

    rope: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()
        # The device is named: under `torch.device("meta")` the default leaves a buffer that cannot be moved.
        self.register_buffer("rope", torch.empty(0, device="cpu"), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the KV pool that goes with them."""
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    def tie_weights(self) -> None:
        """Make the output projection the embedding itself, where the config says so.

        To be called again where either was replaced.
        """
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def prepare(self, max_model_len: int) -> None:
        """Make the cos/sin table of the positions below `max_model_len`: in float32, then the weights' dtype.

        A table that is long enough stays where it is: another engine over this decoder may have captured its address.
        Raises UnsupportedModel where the model cannot serve that many (`check_supports`).
        """
        check_supports(self.config, max_model_len)
        if self.rope.shape[0] >= max_model_len and (self.rope.device, self.rope.dtype) == (self.device, self.dtype):
            return
        self.rope = rope_table(self.config, max_model_len).to(device=self.device, dtype=self.dtype)

    def decode(self, inputs: DecodeInputs, pool: Tensor, run_layer: RunLayer = DecoderLayer.decode) -> Tensor:
        """Logits `[rows, vocab_size]` of one step. `run_layer` is how a layer runs: as it is, or compiled."""
        cos, sin = self.rope[inputs.positions].unsqueeze(2).unbind(1)
        window = gather_window(inputs.slots, inputs.context_lens, self.dtype)
        step = LayerStep(cos, sin, inputs.write_slots, window)
        hidden = self.embed_tokens(inputs.input_ids)
        for index, layer in enumerate(self.layers):
            hidden = run_layer(layer, hidden, pool[index, 0], pool[index, 1], step)  # type: ignore[arg-type]
        return self._logits(hidden)

    def prefill(self, inputs: PrefillInputs, pool: Tensor) -> Tensor:
        """Logits `[prompts, vocab_size]` after each prompt's last token."""
        cos, sin = self.rope[: inputs.input_ids.shape[1]].unsqueeze(2).unbind(1)
        step = PrefillStep(cos, sin, inputs.write_slots)
        hidden = self.embed_tokens(inputs.input_ids)
        for index, layer in enumerate(self.layers):
            hidden = layer.prefill(hidden, pool[index, 0], pool[index, 1], step)  # type: ignore[operator]
        prompts = torch.arange(hidden.shape[0], device=hidden.device)
        return self._logits(hidden[prompts, inputs.prompt_lens - 1])

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits
