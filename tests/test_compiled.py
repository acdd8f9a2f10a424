"""torch.compile over a closed set: one compile a shape, counted; then none, and an error that names the shape.

The back end is `count` throughout: it traces and counts, and generates no code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanoserve import BucketsUnsound, DecodeBuckets, Engine, GateError, Shape

torch = pytest.importorskip("torch")

from nanoserve import CompiledRegion, CompilerMissing, StepRecompiled, compiled  # noqa: E402
from nanoserve.decode.compiled import check_compiler, quiet_dynamo, reset_dynamo  # noqa: E402
from nanoserve.decode.counting import count_compiles  # noqa: E402

Build = Callable[..., Engine]
BUCKETS = DecodeBuckets(4, 64, rows=[2, 4], widths=[16, 32, 64])


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Any:
    reset_dynamo()
    yield
    reset_dynamo()


def widen(window: Any) -> Any:
    return window * 2 + 1


class Windows:
    """A persistent table as a server has one: every shape is a window on it."""

    def __init__(self, rows: int, width: int) -> None:
        self.table = torch.zeros(rows, width)

    def __call__(self, shape: Shape) -> tuple[Any]:
        return (self.table[: shape.rows, : shape.width],)


def region_of(policy: Any, fn: Callable[..., Any] = widen, **options: Any) -> CompiledRegion:
    return CompiledRegion(fn, policy, backend="count", **options)


# Counts.


def test_a_closed_set_costs_one_compile_a_shape() -> None:
    region, windows = region_of(BUCKETS), Windows(4, 64)
    assert region.warm_up(windows) == 6
    assert (region.compiles, region.recompiles, region.abandoned, len(region.distinct)) == (6, 0, 0, 6)
    for shape in BUCKETS.shapes * 3:
        (window,) = windows(shape)
        assert torch.equal(region(shape, window), window * 2 + 1)
    assert (region.compiles, region.recompiles, region.abandoned) == (6, 0, 0)


def test_a_second_warm_up_compiles_nothing() -> None:
    region, windows = region_of(BUCKETS), Windows(4, 64)
    assert (region.warm_up(windows), region.warm_up(windows)) == (6, 0)


def test_an_open_run_compiles_eight_and_is_abandoned() -> None:
    """dynamo's limit: the ninth shape and all after it run eager, silently but for one log line."""
    region, windows = region_of(None), Windows(4, 64)
    with quiet_dynamo():
        for width in range(1, 21):
            shape = Shape(3, width)
            assert torch.equal(region(shape, *windows(shape)), torch.ones(3, width))
    assert (region.compiles, region.abandoned, len(region.distinct)) == (8, 1, 20)


@pytest.mark.parametrize(("count", "abandoned"), [(8, 0), (9, 1)])
def test_the_limit_is_met_by_the_ninth_shape(count: int, abandoned: int) -> None:
    region, windows = region_of(None), Windows(4, 64)
    with quiet_dynamo():
        for width in range(1, count + 1):
            region(Shape(1, width), *windows(Shape(1, width)))
    assert (region.compiles, region.abandoned) == (8, abandoned)


def test_a_closed_set_larger_than_the_limit_compiles_all_of_it() -> None:
    policy = DecodeBuckets(1, 20, width_multiple=1)
    region, windows = region_of(policy), Windows(1, 20)
    assert region.warm_up(windows) == 20
    for shape in policy.shapes:
        region(shape, *windows(shape))
    assert (region.compiles, region.recompiles, region.abandoned) == (20, 0, 0)


def warm_all(count: int) -> CompiledRegion:
    policy = DecodeBuckets(1, count, width_multiple=1)
    region, windows = region_of(policy), Windows(1, count)
    assert region.warm_up(windows) == count
    for shape in policy.shapes[::29]:
        region(shape, *windows(shape))
    return region


def test_a_set_larger_than_the_accumulated_limit_compiles_all_of_it() -> None:
    """Both of dynamo's limits come from the set; here the second is set low, so that the test is quick."""
    with torch._dynamo.config.patch(accumulated_recompile_limit=16):
        region = warm_all(30)
        assert torch._dynamo.config.accumulated_recompile_limit == 16, "and are as they were afterwards"
    assert torch._dynamo.config.recompile_limit == 8
    assert (region.compiles, region.recompiles) == (30, 0)


@pytest.mark.slow
def test_a_set_of_300_passes_the_accumulated_limit_of_256() -> None:
    """576 shapes are the default at 256 rows and 8,192 tokens; dynamo stops at 256 graphs whatever the first limit."""
    assert torch._dynamo.config.accumulated_recompile_limit == 256
    region = warm_all(300)
    assert (region.compiles, region.recompiles) == (300, 0)


def test_two_regions_over_one_function_do_not_share_the_limit() -> None:
    """The limit counts by code object: of 12 separate torch.compile calls over one function the last 4 ran eager."""
    windows = Windows(1, 20)
    first, second = region_of(DecodeBuckets(1, 6, width_multiple=1)), region_of(DecodeBuckets(1, 6, width_multiple=1))
    assert (first.warm_up(windows), second.warm_up(windows)) == (6, 6)
    opened = region_of(None)
    for width in range(1, 9):
        opened(Shape(1, width), *windows(Shape(1, width)))
    assert (opened.compiles, opened.abandoned) == (8, 0)


@pytest.mark.parametrize(("dynamic", "graphs"), [("off", 5), ("auto", 2), ("on", 1)])
@pytest.mark.parametrize("closed", [False, True])
def test_dynamic_is_fewer_graphs_none_of_which_is_one_shape(dynamic: str, graphs: int, closed: bool) -> None:
    """As long as only the width moves: rows that move too are one more graph each time dynamo is surprised."""
    policy = DecodeBuckets(4, 80, rows=[4], widths=[16, 32, 48, 64, 80])
    region, windows = region_of(policy if closed else None, dynamic=dynamic), Windows(8, 96)
    for shape in policy.shapes:
        region(shape, *windows(shape))
    assert region.compiles == graphs


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'jit' is unknown.*count, inductor"):
        CompiledRegion(widen, BUCKETS, backend="jit")
    with pytest.raises(ValueError, match=r"'maybe' is unknown.*off, auto, on"):
        CompiledRegion(widen, BUCKETS, backend="count", dynamic="maybe")


# After the warm-up.


def test_a_recompile_after_warm_up_names_the_shape_and_costs_none() -> None:
    region = region_of(BUCKETS)
    region.warm_up(Windows(4, 64))
    with pytest.raises(StepRecompiled, match=r"shape 2x16 would compile.*6 graphs for 6 shapes") as caught:
        region(Shape(2, 16), torch.zeros(2, 16, dtype=torch.float64))
    assert (caught.value.figure, caught.value.limit) == (7, 6)
    assert isinstance(caught.value, GateError)
    assert (region.compiles, region.recompiles) == (6, 0)
    windows = Windows(4, 64)
    region(Shape(2, 16), *windows(Shape(2, 16)))


def test_warming_up_with_fresh_tensors_makes_graphs_that_never_serve() -> None:
    """A window has the strides of its buffer: 12 graphs were warmed that way, and 8 more made while serving."""
    region, windows = region_of(BUCKETS), Windows(4, 64)
    assert region.warm_up(lambda shape: (torch.zeros(shape.rows, shape.width),)) == 6
    region(Shape(4, 64), *windows(Shape(4, 64)))  # the full width is contiguous either way
    with pytest.raises(StepRecompiled, match=r"2x16.*strides"):
        region(Shape(2, 16), *windows(Shape(2, 16)))


@pytest.mark.parametrize("changed", ["grad mode", "python value", "dtype", "contiguity"])
def test_whatever_makes_a_new_graph_is_caught(changed: str) -> None:
    def scaled(window: Any, factor: int) -> Any:
        return window * factor

    region, windows = region_of(BUCKETS, scaled), Windows(4, 64)
    region.warm_up(lambda shape: (*windows(shape), 2))
    shape, (window,), factor = Shape(2, 16), windows(Shape(2, 16)), 2
    if changed == "python value":
        factor = 3
    if changed == "dtype":
        window = window.int()
    if changed == "contiguity":
        window = window.contiguous()
    with torch.set_grad_enabled(changed != "grad mode"), pytest.raises(StepRecompiled, match="2x16"):
        region(shape, window, factor)
    assert region.recompiles == 0


def test_a_large_closed_set_still_says_step_recompiled_and_not_dynamos_limit() -> None:
    """After warm-up the limits are dynamo's 8 again, which a set of 20 is past."""
    region = region_of(DecodeBuckets(1, 20, width_multiple=1))
    region.warm_up(Windows(1, 20))
    with pytest.raises(StepRecompiled, match="1x5"):
        region(Shape(1, 5), torch.zeros(1, 5, dtype=torch.int32))


def test_a_shape_outside_the_set_never_reaches_the_compiler() -> None:
    region = region_of(BUCKETS)
    for shape in (Shape(3, 16), Shape(4, 65)):
        with pytest.raises(BucketsUnsound, match=f"{shape} is not in the closed set"):
            region(shape, torch.zeros(shape.rows, shape.width))
    assert region.compiles == 0
    assert region.distinct == set()


def test_an_error_in_the_function_is_its_own() -> None:
    def broken(window: Any) -> Any:
        return window @ window

    region = region_of(BUCKETS, broken)
    with pytest.raises(Exception, match=r"reduction dim|mat1 and mat2") as caught:
        region(Shape(2, 16), torch.zeros(2, 16))
    assert not isinstance(caught.value, StepRecompiled)


def test_warm_up_needs_a_closed_set() -> None:
    with pytest.raises(ValueError, match="no closed set"):
        region_of(None).warm_up(Windows(1, 1))


# Somebody's own loop.


def test_compiled_is_five_lines_for_somebodys_own_loop() -> None:
    policy, cache = DecodeBuckets(4, 64, width_multiple=32), torch.arange(4.0 * 64).reshape(4, 64)
    region = compiled(lambda window: window.sum(1), policy, backend="count")
    region.warm_up(lambda shape: (cache[: shape.rows, : shape.width],))
    for width in range(1, 65):
        shape = policy.shape_for(3, width)
        summed = region(shape, cache[: shape.rows, : shape.width])
        assert torch.equal(summed, cache[:4, : shape.width].sum(1))
    assert (region.compiles, region.recompiles) == (6, 0)


def test_a_callable_that_is_no_plain_function_is_compiled_too() -> None:
    """A module, a bound method, a partial, a closure with defaults: each keeps its behaviour."""
    from functools import partial

    def scaled(window: Any, factor: float = 3.0, *, shift: float = 1.0) -> Any:
        return window * factor + shift

    windows = Windows(4, 64)
    shape = Shape(2, 16)
    for fn, expected in [(torch.nn.ReLU(), 0.0), (scaled, 1.0), (partial(scaled, shift=2.0), 2.0)]:
        region = compiled(fn, BUCKETS, backend="count")
        assert torch.equal(region(shape, *windows(shape)), torch.full((2, 16), expected))


# No C++ compiler.


@pytest.mark.parametrize("cxx", [None, "no-such-compiler"])
def test_inductor_without_a_compiler_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cxx: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    cpu = torch.device("cpu")
    with pytest.raises(CompilerMissing, match=r"inductor needs a C.. compiler.*install g.., or set CXX"):
        check_compiler("inductor", cpu)
    check_compiler("count", cpu)
    check_compiler("inductor", torch.device("cuda"))
    if not torch.cuda.is_available():
        with pytest.raises(CompilerMissing):
            compiled(widen, BUCKETS)


@pytest.mark.parametrize("name", ["g++", "clang++", "c++", "my-own-cxx"])
def test_any_compiler_on_the_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    tool = tmp_path / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if name == "my-own-cxx":
        monkeypatch.setenv("CXX", name)
    else:
        monkeypatch.delenv("CXX", raising=False)
    check_compiler("inductor", torch.device("cpu"))


def test_a_compiler_that_is_chosen_and_absent_is_not_replaced_in_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Inductor takes CXX at its word: g++ on the path would not help it."""
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/cxx")
    with pytest.raises(CompilerMissing, match="/nowhere/cxx"):
        check_compiler("inductor", torch.device("cpu"))


def test_an_engine_that_asks_for_inductor_without_a_compiler_says_so(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerMissing):
        build(2, 16, bucket_decode=True, runner="compiled", compile_backend="inductor")


# The decoder layer as the region.


def lockstep(width_multiple: int, steps: int) -> tuple[DecodeBuckets, list[Shape]]:
    """The seed's run, small: 3 rows, a 16-token prompt, `max_model_len = 16 + steps`."""
    buckets = DecodeBuckets(8, 16 + steps, width_multiple=width_multiple)
    return buckets, [Shape(3, 16 + j) for j in range(1, steps + 1)]


def test_five_shapes_of_a_two_layer_model_are_five_compiles(build: Build) -> None:
    buckets, opened = lockstep(16, 64)
    engine = build(8, 80, policy=buckets)
    presented = [buckets.shape_for(shape.rows, shape.width) for shape in opened]
    count = count_compiles(engine.worker, presented, buckets)  # type: ignore[arg-type]
    assert (count.presented, count.compiles, count.recompiles, count.abandoned) == (4, 4, 0, 0)
    policy = DecodeBuckets(8, 80, rows=[4, 8], widths=[20, 32, 48, 64, 80])
    engine = build(8, 80, policy=policy)
    five = [Shape(4, width) for width in (20, 32, 48, 64, 80)]
    count = count_compiles(engine.worker, five * 20, policy)  # type: ignore[arg-type]
    assert (count.presented, count.compiles, count.recompiles, count.abandoned) == (5, 5, 0, 0)


def test_an_open_run_of_the_model_is_eight_compiles_and_one_abandoned(build: Build) -> None:
    engine = build(8, 80)
    count = count_compiles(engine.worker, lockstep(16, 64)[1], None)  # type: ignore[arg-type]
    assert (count.presented, count.compiles, count.recompiles, count.abandoned) == (64, 8, 0, 1)


@pytest.mark.parametrize(("dynamic", "graphs"), [("auto", 2), ("on", 1)])
def test_what_a_user_would_try_first_is_two_and_one_graphs(build: Build, dynamic: str, graphs: int) -> None:
    engine = build(8, 80)
    count = count_compiles(engine.worker, lockstep(16, 64)[1], None, dynamic=dynamic)  # type: ignore[arg-type]
    assert (count.compiles, count.abandoned) == (graphs, 0)


def test_the_second_of_two_measured_modes_does_not_look_free(build: Build) -> None:
    buckets = lockstep(16, 64)[0]
    engine = build(8, 80, policy=buckets)
    shapes = [Shape(4, 32), Shape(4, 48)]
    counts = [count_compiles(engine.worker, shapes, buckets).compiles for _ in range(2)]  # type: ignore[arg-type]
    assert counts == [2, 2]


def test_a_closed_engine_refuses_a_shape_it_was_not_warmed_for(build: Build) -> None:
    policy = DecodeBuckets(4, 32, width_multiple=16)
    engine = build(4, 32, policy=policy, runner="compiled")
    engine.warm_up([Shape(1, 16), Shape(1, 32)])
    region = engine.worker.runner.region  # type: ignore[attr-defined]
    assert region.compiles == 2
    engine.generate([[1, 2, 3]], max_tokens=20)
    assert (region.compiles, region.recompiles) == (2, 0)
    engine.add_request([1, 2], max_tokens=3)
    engine.add_request([1, 2], max_tokens=3)
    engine.step()
    with pytest.raises(StepRecompiled, match="2x16"):
        engine.step()
    assert (region.compiles, region.recompiles) == (2, 0)


def test_a_compiled_open_engine_serves_like_any_other(build: Build) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    with quiet_dynamo():
        opened = build(2, 32, runner="compiled").generate(prompts, max_tokens=14)
    eager = build(2, 32).generate(prompts, max_tokens=14)
    assert [output.tokens for output in opened] == [output.tokens for output in eager]
