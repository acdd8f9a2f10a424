"""Engines that bucket the width of a decode step as well: one function each."""

from __future__ import annotations

import json

from nanoserve.buckets import CaptureList, round_up
from nanoserve_cli.emit.notes import cells_off_list, listed, rows_above
from nanoserve_cli.emit.target import Emission, EmitTarget
from nanoserve_cli.policy_file import SCHEMA_VERSION, policy_document

NEURON_TILE = 128
"""Neuron's context buckets are multiples of this many tokens."""


def nanoserve(target: EmitTarget) -> Emission:
    """The policy file that `load_policy` reads back: an equal policy, or the same list under the server's limits."""
    import yaml

    policy = target.policy
    if isinstance(policy, CaptureList):
        policy = CaptureList(policy.shapes, max_batch_size=target.max_batch_size, max_model_len=target.max_model_len)
    text = yaml.safe_dump(policy_document(policy), sort_keys=False, default_flow_style=None, width=120)
    return Emission(
        "nanoserve",
        f"policy file schema {SCHEMA_VERSION}",
        (("a file for nanoserve bench --policy", text.rstrip("\n")),),
        tuple(cells_off_list(target, "such steps run eager")),
        None,
    )


def gaudi(target: EmitTarget) -> Emission:
    """`(batch, 1, KV blocks of all rows)` a line, looked up as a staircase is: the least batch, then the least total.

    `rows` rows of at most `width` tokens have at most `rows * ceil(width / block_size)` blocks, so a step never runs in
    a larger bucket than the policy gives it.
    """
    buckets = sorted({(s.rows, 1, s.rows * -(-s.width // target.block_size)) for s in target.policy.shapes})
    limits = f"--max-num-seqs {target.max_batch_size} --max-model-len {target.max_model_len}"
    blocks = (
        ("the file that VLLM_BUCKETING_FROM_FILE names, decode part", "\n".join(map(str, buckets))),
        ("flags of vllm serve", f"{limits} --block-size {target.block_size}"),
    )
    warnings = (
        *cells_off_list(target, "Gaudi compiles a fallback bucket for such steps while serving"),
        *_same_in_blocks(target, len(buckets)),
        "the file replaces the prompt buckets too, and Gaudi does not start with none: append those that its log lists "
        'as "Generated ... prompt buckets", one (batch, query, blocks) a line',
        "Gaudi adds up the blocks of all rows where this policy takes the longest row for each: a step may run in a "
        "smaller bucket than it was priced at",
        "no total was cut to the server's KV cache: replace those above 3 x its KV blocks by that figure, as Gaudi's "
        "own rule does",
        "with VLLM_CONTIGUOUS_PA=true Gaudi looks up the highest block in use, not their number: then add a line "
        "(batch, 1, KV blocks) for each batch size",
    )
    return Emission("gaudi", "vllm-gaudi 091bbadd", blocks, warnings, None)


def _same_in_blocks(target: EmitTarget, buckets: int) -> list[str]:
    if buckets == target.policy.count:
        return []
    return [f"in blocks of {target.block_size} tokens the {target.policy.count} shapes are {buckets} buckets"]


def neuron(target: EmitTarget) -> Emission:
    """Two lists, compiled as their product, with `max_model_len` as an implicit last width.

    The largest of `num_seqs_buckets` must be `max_num_seqs`; widths are multiples of 128 below `max_model_len`.
    """
    batches = tuple(sorted({*target.rows, target.max_batch_size}))
    contexts = _neuron_contexts(target)
    config: dict[str, list[int]] = {"num_seqs_buckets": list(batches)}
    if contexts:
        config["decode_context_length_buckets"] = list(contexts)
    flags = (
        f"--max-num-seqs {target.max_batch_size} --max-model-len {target.max_model_len} "
        f"--additional-config '{json.dumps({'neuron_config': config})}'"
    )
    return Emission(
        "neuron",
        "vLLM Neuron, documentation of 2026-06-23",
        (("flags of vllm serve", flags),),
        tuple(_neuron_warnings(target, len(batches) * (len(contexts) + 1))),
        None,
    )


def _neuron_contexts(target: EmitTarget) -> tuple[int, ...]:
    rounded = {round_up(width, NEURON_TILE) for width in target.widths}
    return tuple(sorted(width for width in rounded if width < target.max_model_len))


def _neuron_warnings(target: EmitTarget, graphs: int) -> list[str]:
    added = f"{target.max_batch_size} was added, since Neuron wants max_num_seqs as the largest"
    warnings = rows_above(target, target.rows[-1], added)
    off_tile = [width for width in target.widths if width % NEURON_TILE and width < target.max_model_len]
    if off_tile:
        moved = [f"{width} to {min(round_up(width, NEURON_TILE), target.max_model_len)}" for width in off_tile]
        warnings.append(f"Neuron takes multiples of {NEURON_TILE} alone: widths were rounded up, {listed(moved)}")
    if graphs > target.policy.count:
        warnings.append(
            f"Neuron compiles every batch with every width, max_model_len included: {graphs} graphs, where the policy "
            f"has {target.policy.count} shapes"
        )
    if target.spec_tokens:
        warnings.append(
            f"Neuron looks a step up with its {target.spec_tokens} draft tokens added, so the last "
            f"{target.spec_tokens} columns of each width fall to the next"
        )
    return warnings
