"""Engines whose decode graphs are keyed by the batch alone: one function each, given and answered in rows."""

from __future__ import annotations

import json

from nanoserve_cli.emit.notes import dropped_unaligned, rows_above, span, widths_unused
from nanoserve_cli.emit.target import Emission, EmitTarget

TRTLLM_TOKEN_BUDGET = 8192
"""TensorRT-LLM's default max_num_tokens."""


def sglang(target: EmitTarget) -> Emission:
    """`bs` counts requests, drafts or not, and pins `max_bs` to its last; above it a step is eager.

    SGLang drops what is above the request pool, so `--max-running-requests` goes along.
    """
    sizes = target.rows
    config = {"decode": {"backend": "full", "max_bs": sizes[-1], "bs": list(sizes)}}
    limit = f"--max-running-requests {target.max_batch_size}"
    blocks = (
        ("flags of sglang.launch_server", f"{limit} --cuda-graph-bs-decode {_spaced(sizes)}"),
        ("the same as one JSON flag", f"{limit} --cuda-graph-config '{json.dumps(config)}'"),
    )
    warnings = (
        *widths_unused(target, "SGLang"),
        *rows_above(target, sizes[-1], "SGLang runs them eager"),
        *dropped_unaligned(
            sizes, sizes[-1], target.tensor_parallel, "where it gathers tokens over attention-TP ranks, SGLang"
        ),
    )
    return Emission("sglang", "SGLang 0.5.23", blocks, warnings, sizes)


def trtllm(target: EmitTarget) -> Emission:
    """`batch_sizes` alone inside `cuda_graph_config`: a `max_batch_size` beside it that differs is an error there.

    TensorRT-LLM cuts the list to the largest decode batch, `min(max_batch_size, max_num_tokens / tokens a row)`; it is
    cut so here. Raises ValueError where that holds no row.
    """
    budget = target.max_num_batched_tokens or TRTLLM_TOKEN_BUDGET
    reach = min(target.max_batch_size, budget // target.tokens_per_row)
    if reach < 1:
        raise ValueError(f"max_num_batched_tokens {budget} holds no row of {target.tokens_per_row} tokens")
    sizes = tuple(sorted({min(rows, reach) for rows in target.rows}))
    lines = [f"max_batch_size: {target.max_batch_size}"]
    if target.max_num_batched_tokens is not None:
        lines.append(f"max_num_tokens: {budget}")
    lines += ["cuda_graph_config:", "  enable_padding: true", f"  batch_sizes: [{', '.join(map(str, sizes))}]"]
    warnings = widths_unused(target, "TensorRT-LLM")
    if sizes[-1] < reach:
        warnings += rows_above(target, sizes[-1], "TensorRT-LLM runs them eager")
    if reach < target.max_batch_size:
        peak = target.max_batch_size * target.tokens_per_row
        warnings.append(
            f"one step of {budget} tokens does not hold {span(reach + 1, target.max_batch_size)} at "
            f"{target.tokens_per_row} tokens a row: the list ends at {sizes[-1]}; for the whole batch raise "
            f"max_num_tokens (max_num_batched_tokens here) to {peak}"
        )
    blocks = (("YAML for trtllm-serve --config", "\n".join(lines)),)
    return Emission("trtllm", "TensorRT-LLM 1.3 (PyTorch backend)", blocks, tuple(warnings), sizes)


def lmdeploy(target: EmitTarget) -> Emission:
    """LMDeploy drops sizes above the largest batch and always captures that batch."""
    sizes = target.rows
    flags = f"--max-batch-size {target.max_batch_size} --cudagraph-capture-batch-sizes {_spaced(sizes)}"
    then = f"LMDeploy adds {target.max_batch_size} to the list and pads them to it"
    warnings = (*widths_unused(target, "LMDeploy"), *rows_above(target, sizes[-1], then))
    effective = tuple(sorted({*sizes, target.max_batch_size}))
    blocks = (("flags of lmdeploy serve api_server --backend pytorch", flags),)
    return Emission("lmdeploy", "LMDeploy main after PR #4573", blocks, warnings, effective)


def tgi(target: EmitTarget) -> Emission:
    """Sizes in tokens, since drafts are further rows of TGI's input; largest first, with no maximum of its own."""
    sizes = tuple(rows * target.tokens_per_row for rows in target.rows)
    flags = f"--max-batch-size {target.max_batch_size} --cuda-graphs {','.join(map(str, reversed(sizes)))}"
    warnings = (
        *widths_unused(target, "TGI"),
        *rows_above(target, target.rows[-1], "TGI runs them eager"),
        "where capture runs out of memory TGI serves on without the sizes that were left, with one error in its log",
    )
    return Emission("tgi", "TGI 3", (("flags of text-generation-launcher", flags),), warnings, sizes)


def mini_sglang(target: EmitTarget) -> Emission:
    """A list is taken as it is, by the Python class alone: the server's flags have only a maximum."""
    sizes = target.rows
    call = f"LLM(model_path, max_running_req={target.max_batch_size}, cuda_graph_bs={list(sizes)})"
    warnings = (
        *widths_unused(target, "mini-sglang"),
        *rows_above(target, sizes[-1], "mini-sglang runs them eager"),
        "the server's --cuda-graph-max-bs cannot give this list: it means 1, 2, 4 and multiples of 8",
    )
    return Emission("mini-sglang", "mini-sglang 4403076", (("Python, minisgl.llm.LLM", call),), warnings, sizes)


def _spaced(sizes: tuple[int, ...]) -> str:
    return " ".join(map(str, sizes))
