"""`nanoserve generate`: a prompt in, text out, through the engine that everything else measures."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import reported


def generate(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="What to ask; several run as one batch.")],
    model: Annotated[str, typer.Option(help="smollm2, a checkpoint directory or a GGUF file.")] = "smollm2",
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 64,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that together reach this.")] = 1.0,
    bucket_decode: Annotated[
        bool, typer.Option("--bucket-decode", help="Decode at the shapes of a closed set.")
    ] = False,
    max_model_len: Annotated[int, typer.Option(min=1, help="Tokens of a row, prompt and answer.")] = 2048,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    seed: opt.Seed = 0,
    json_: opt.Json = False,
) -> None:
    """Answer prompts with a real model. The chat template of the model is applied unless --raw is given."""
    with reported():
        from nanoserve.engine import Engine
        from nanoserve.sampling import SamplingParams
        from nanoserve_cli.model_choice import choose_model

        for prompt in prompts:
            if any("\ud800" <= character <= "\udfff" for character in prompt):
                raise ValueError(f"the prompt {prompt!r} is no UTF-8 text")
        sampling = SamplingParams(temperature, top_p, seed)
        choice = choose_model(model, device=device, dtype=dtype, seed=seed)
        tokenizer = choice.tokenizer
        if tokenizer is None:
            raise ValueError(f"{model} cannot answer in text: {choice.tokenizer_problem}")
        if tokenizer.chat_template is None and not raw:
            raise ValueError(f"{model} has no chat template: add --raw to continue the text as it is")
        encoded = [tokenizer.encode(p) if raw else tokenizer.chat([{"role": "user", "content": p}]) for p in prompts]
        engine = Engine.build(choice.decoder, len(prompts), max_model_len, bucket_decode=bucket_decode)
        outputs = engine.generate(encoded, max_tokens=max_tokens, sampling=sampling)
        answers: list[dict[str, Any]] = [
            {
                "prompt": prompt,
                "text": tokenizer.decode(output.tokens),
                "tokens": list(output.tokens),
                "finish": output.reason,
            }
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        if json_:
            sys.stdout.write(json.dumps(answers, indent=2) + "\n")
            return
        for answer in answers:
            sys.stdout.write(f"> {answer['prompt']}\n" if len(answers) > 1 else "")
            sys.stdout.write(answer["text"].strip() + "\n")
