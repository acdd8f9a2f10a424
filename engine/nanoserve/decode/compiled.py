"""torch.compile over a closed set of shapes: one compile a shape, counted, and an error afterwards.

Counts come from wrapping the back end, which dynamo calls once for every graph, and from dynamo's own frame counters.
Its limits (8 graphs a code object, 256 in all) are raised to the size of the closed set while it is warmed up:
the default product at 256 rows and 8192 tokens is 576 shapes and passes both.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from nanoserve.buckets import CaptureList, DecodePolicy, GateError, Shape
from nanoserve.decode import COMPILE_BACKENDS, DYNAMIC, CompilerMissing
from nanoserve.gates import check_shape_in_set
from nanoserve.model.decoder import DecodeInputs, Decoder, DecoderLayer


class StepRecompiled(GateError):
    """A step after warm-up that would have compiled. Names the shape."""


class _Closed(Exception):
    """Raised by the back end to stop a compile after warm-up before it costs anything."""


class CountingBackend:
    """A torch.compile back end that counts its calls. `count` runs the traced graph as it is and makes no code."""

    def __init__(self, name: str) -> None:
        if name not in COMPILE_BACKENDS:
            raise ValueError(f"compile backend {name!r} is unknown; choose one of {', '.join(COMPILE_BACKENDS)}")
        self.name = name
        self.compiles = 0
        self.closed = False
        self._inner = torch._dynamo.lookup_backend(name) if name != "count" else None

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """What dynamo calls once a graph."""
        if self.closed:
            raise _Closed
        self.compiles += 1
        if self._inner is None:
            return graph.forward
        compiled: Callable[..., Any] = self._inner(graph, list(example_inputs))
        return compiled


class CompiledRegion:
    """A function compiled for the shapes of a policy, or openly where there is none.

    Under a policy: `fullgraph=True`, limits from the size of the set, and after `close` any recompile raises
    StepRecompiled. Openly: dynamo's defaults, so that the frame is given up after 8 graphs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        policy: DecodePolicy | CaptureList | None,
        *,
        backend: str = "inductor",
        dynamic: str = "off",
    ) -> None:
        if dynamic not in DYNAMIC:
            raise ValueError(f"dynamic {dynamic!r} is unknown; choose one of {', '.join(DYNAMIC)}")
        self.policy = policy
        self.distinct: set[Shape] = set()
        self._backend = CountingBackend(backend)
        self._compiled_at_close = 0
        self._frames_before = _frame_counts()
        self._fn = torch.compile(
            _own_code(fn), backend=self._backend, dynamic=DYNAMIC[dynamic], fullgraph=policy is not None
        )

    @property
    def compiles(self) -> int:
        """Graphs made."""
        return self._backend.compiles

    @property
    def recompiles(self) -> int:
        """Graphs made after `close`. Above 0 only where an error was swallowed."""
        return self.compiles - self._compiled_at_close if self._backend.closed else 0

    @property
    def abandoned(self) -> int:
        """Frames that dynamo gave up since this region was made, and has run eager ever since."""
        total, compiled = _frame_counts()
        before_total, before_compiled = self._frames_before
        return (total - before_total) - (compiled - before_compiled)

    def close(self) -> None:
        """Says that every shape is compiled; compiling one more is an error from here on."""
        self._backend.closed = True
        self._compiled_at_close = self.compiles

    def __call__(self, shape: Shape, *args: Any) -> Any:
        """Runs the function on `args`, which have `shape`. Raises BucketsUnsound for a shape outside the set."""
        if shape not in self.distinct:
            if self.policy is not None:
                check_shape_in_set(shape, self.policy)
            self.distinct.add(shape)
        if self._backend.closed or self.policy is None:
            return self._run(shape, args)
        with _limits(self.policy.count):
            return self._run(shape, args)

    def warm_up(self, make_args: Callable[[Shape], Sequence[Any]]) -> int:
        """Compiles every shape, largest first, on `make_args(shape)`, then closes. Returns the compiles it took.

        Make the arguments as you will when serving, from the same persistent storage: a window of a larger buffer has
        other strides than a fresh tensor of its shape, and is another graph.
        """
        if self.policy is None:
            raise ValueError("an open region has no closed set to warm up: give it a policy")
        before = self.compiles
        for shape in reversed(self.policy.shapes):
            self(shape, *make_args(shape))
        self.close()
        return self.compiles - before

    def _run(self, shape: Shape, args: Sequence[Any]) -> Any:
        try:
            return self._fn(*args)
        except (torch._dynamo.exc.BackendCompilerFailed, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            if not self._backend.closed:
                if isinstance(error, torch._dynamo.exc.BackendCompilerFailed) and self._backend.name == "inductor":
                    reason = str(error).strip().splitlines()[0]
                    raise CompilerMissing(f"inductor could not compile a step of shape {shape}: {reason}") from error
                raise
            raise StepRecompiled(
                f"a step of shape {shape} would compile after warm-up ({self.compiles} graphs for {len(self.distinct)} "
                "shapes): its arguments differ from the warm-up's in strides, dtype, grad mode or a Python value",
                figure=self.compiles + 1,
                limit=self.compiles,
            ) from error


def compiled(fn: Callable[..., Any], policy: DecodePolicy, *, backend: str = "inductor") -> CompiledRegion:
    """Somebody's own decode function, compiled once for each shape of `policy` and never again.

    Call `warm_up(make_args)` first, then `region(shape, *args)` with `shape = policy.shape_for(rows, width)`. Raises
    CompilerMissing where Inductor has nothing to compile with.
    """
    check_compiler(backend, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return CompiledRegion(fn, policy, backend=backend)


class CompiledDecode:
    """Decode steps with each decoder layer compiled; embedding, masks and the head run eager and are not counted.

    The layer is the region, since one compile of a shape serves every layer of the model.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: Tensor,
        policy: DecodePolicy | CaptureList | None,
        *,
        backend: str = "count",
        dynamic: str = "off",
    ) -> None:
        check_compiler(backend, decoder.device)
        self._decoder = decoder
        self._pool = pool
        self.region = CompiledRegion(DecoderLayer.decode, policy, backend=backend, dynamic=dynamic)

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Logits `[graph_rows, vocab_size]`, eager off a capture list. StepRecompiled where a closed one compiles."""
        shape = Shape(*inputs.slots.shape)
        if isinstance(self.region.policy, CaptureList) and shape not in self.region.policy.shapes:
            return self._decoder.decode(inputs, self._pool)

        def run_layer(*layer_args: Any) -> Tensor:
            hidden: Tensor = self.region(shape, *layer_args)
            return hidden

        return self._decoder.decode(inputs, self._pool, run_layer)

    def prepare(self, inputs: DecodeInputs) -> None:
        """Runs the step, which compiles its shape if that is new."""
        self.run(inputs)

    def close(self) -> None:
        """Says that every shape is compiled."""
        self.region.close()

    def restrict(self, captures: CaptureList) -> None:
        """Says that only these shapes are compiled: every other step runs eager."""
        self.region.policy = captures


def check_compiler(backend: str, device: torch.device) -> None:
    """Raises CompilerMissing where `backend` is Inductor, the device a CPU, and no C++ compiler is on the path."""
    chosen = os.environ.get("CXX")
    names = (chosen,) if chosen else ("g++", "clang++", "c++")
    if backend == "inductor" and device.type == "cpu" and not any(shutil.which(name) for name in names):
        raise CompilerMissing(
            f"inductor needs a C++ compiler on a CPU and found no {' or '.join(names)}: install g++, or set CXX"
        )


@contextmanager
def quiet_dynamo() -> Iterator[None]:
    """Keeps dynamo's own warning about its limit off the terminal while a run is meant to meet it."""
    logger = logging.getLogger("torch._dynamo.convert_frame")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def reset_dynamo() -> None:
    """Forgets every compiled graph and counter of the process: else the second of two measured modes looks free."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def _limits(shapes: int) -> Any:
    config = torch._dynamo.config
    return config.patch(
        recompile_limit=max(shapes, config.recompile_limit),
        accumulated_recompile_limit=max(shapes, config.accumulated_recompile_limit),
    )


def _frame_counts() -> tuple[int, int]:
    frames = torch._dynamo.utils.counters["frames"]
    return int(frames["total"]), int(frames["ok"])


def _own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a plain function with its own code object: dynamo's limit counts by code object, not by call."""
    if not isinstance(fn, FunctionType):
        return fn
    code = fn.__code__.replace(co_name=f"{fn.__code__.co_name}_{uuid4().hex[:8]}")
    copy = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
