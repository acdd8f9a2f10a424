"""The same ends of the same items in this process, in processes and on Ray; and what a dead worker or Ctrl-C costs."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import FileIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nanoserve_cli import executors
from nanoserve_cli.executors import Done, Executor, InProcess, Processes, RayCluster

THREADS_AT_IMPORT = os.environ.get("OMP_NUM_THREADS")

PATIENCE_S = 30.0

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="no ray here: pip install 'nanoserve[ray]'")

# Two of these run at once on a machine of one core too.
LOCAL_RAY = RayCluster("local", num_cpus=0.5, retries=1)


# What the workers run. An item is `(name of a function, its argument)`.


def square(number: int) -> int:
    return number * number


def nothing(_: object) -> None:
    return None


def shout(message: str) -> None:
    print(message)


def fail(message: str) -> NoReturn:
    raise ValueError(message)


def leave(status: int) -> NoReturn:
    sys.exit(status)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path.name}")
        time.sleep(0.01)
    return path.name


def meet(mine_and_theirs: tuple[Path, Path]) -> str:
    """Ends only where the other one runs at the same time."""
    mine, theirs = mine_and_theirs
    mine.touch()
    return wait_for(theirs)


def die(_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def die_once(marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        die(None)
    return "alive"


def hold(fifo: Path) -> None:
    """Has the FIFO open for as long as the worker lives, which is longer than a test waits, unless it is killed."""
    with fifo.open("w") as end:
        end.write("held\n")
        end.flush()
        time.sleep(2 * PATIENCE_S)
        end.write("outlived the test\n")


def raylet(_: object) -> int:
    return os.getppid()


def threads(_: object) -> str | None:
    return THREADS_AT_IMPORT


def interrupts(_: object) -> tuple[bool, bool]:
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return ignored, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def unsendable(_: object) -> object:
    return lambda: None


class Unreadable:
    """Pickled without complaint, and an error to read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("seven",)


def unreadable(_: object) -> Unreadable:
    return Unreadable()


def do(item: tuple[str, Any]) -> Any:
    name, argument = item
    return globals()[name](argument)


def do_logged(item: tuple[str, Any], log: Path) -> Any:
    with log.open("a") as lines:
        lines.write(item[0] + "\n")
    return do(item)


def ends(executor: Executor, items: list[tuple[str, Any]]) -> list[Done[Any]]:
    return sorted(executor.run(do, items, pytest.fail), key=lambda done: done.index)


PLAIN = [("square", 3), ("fail", "of two\nlines"), ("leave", 4), ("nothing", None), ("fail", ""), ("square", 4)]
PLAIN_ENDS = [
    Done(0, 9, None, attempts=1),
    Done(1, None, "ValueError: of two lines", attempts=1),
    Done(2, None, "SystemExit: 4", attempts=1),
    Done(3, None, None, attempts=1),
    Done(4, None, "ValueError", attempts=1),
    Done(5, 16, None, attempts=1),
]


# One run for many claims: a Ray cluster takes seconds to start.


@dataclass(frozen=True)
class Run:
    """The ends of PLAIN and of seven special items, in the order they came, and everything said on the way."""

    executor: Executor
    done: list[Done[Any]]
    lines: list[str]
    started: Counter[str]

    def end_of(self, special: int) -> Done[Any]:
        return next(done for done in self.done if done.index == len(PLAIN) + special)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Processes(2, retries=1), id="processes"),
        pytest.param(LOCAL_RAY, id="ray", marks=[needs_ray, pytest.mark.slow]),
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    special = [
        ("meet", (folder / "left", folder / "right")),
        ("meet", (folder / "right", folder / "left")),
        ("wait_for", folder / "seen"),
        ("nothing", None),
        ("die_once", folder / "died"),
        ("die", None),
        ("square", 5),
    ]
    executor, done, lines = request.param, [], []
    function = functools.partial(do_logged, log=folder / "log")
    for end in executor.run(function, [*PLAIN, *special], lines.append):
        done.append(end)
        if end.index == len(PLAIN) + 3:
            (folder / "seen").touch()
    return Run(executor, done, lines, Counter((folder / "log").read_text().split()))


def test_every_item_ends_once(run: Run) -> None:
    assert sorted(done.index for done in run.done) == list(range(len(PLAIN) + 7))


def test_workers_give_what_this_process_gives(run: Run) -> None:
    assert sorted(run.done, key=lambda done: done.index)[: len(PLAIN)] == PLAIN_ENDS
    assert list(InProcess().run(do, PLAIN, pytest.fail)) == PLAIN_ENDS


def test_two_workers_work_at_the_same_time(run: Run) -> None:
    assert run.end_of(0) == Done(len(PLAIN), "right", None, attempts=1)
    assert run.end_of(1) == Done(len(PLAIN) + 1, "left", None, attempts=1)


def test_an_item_is_yielded_while_others_still_run(run: Run) -> None:
    """The third special item ends only after the caller has seen the fourth."""
    assert run.end_of(2).value == "seen"
    assert run.done.index(run.end_of(3)) < run.done.index(run.end_of(2))


def test_the_item_of_a_dead_worker_is_run_again(run: Run) -> None:
    assert run.end_of(4) == Done(len(PLAIN) + 4, "alive", None, attempts=2)


def test_an_item_whose_workers_all_die_is_an_error(run: Run) -> None:
    end = run.end_of(5)
    assert (end.value, end.attempts) == (None, 2)
    assert end.error == f"WorkerLost: {manner_of_death(run.executor)}, in the last of 2 attempts"


def test_only_what_its_own_worker_lost_runs_twice(run: Run) -> None:
    once = Counter(name for name, _ in PLAIN) + Counter(["meet", "meet", "wait_for", "nothing", "square"])
    assert run.started == once + Counter(["die_once", "die"] * 2)


def test_every_worker_that_is_replaced_is_told_of(run: Run) -> None:
    how = manner_of_death(run.executor)
    assert sorted(run.lines) == [f"item {index}: {how}; attempt 2 of 2 follows" for index in (10, 11)]


def manner_of_death(executor: Executor) -> str:
    if isinstance(executor, RayCluster):
        return "its Ray worker was lost (WorkerCrashedError)"
    return "its process ended by signal 9 (Killed, as when memory runs out)"


# This process, and others


def test_in_this_process_an_item_begins_when_the_one_before_was_taken() -> None:
    begun: list[int] = []
    ends = InProcess().run(begun.append, [1, 2], pytest.fail)
    assert begun == []
    assert (next(ends).index, begun) == (0, [1])


def test_what_cannot_be_pickled_or_read_is_an_error_of_its_item() -> None:
    items = [("nothing", lambda: None), ("unsendable", None), ("unreadable", None), ("nothing", Unreadable())]
    found = ends(Processes(1), [*items, ("square", 2)])
    assert [done.value for done in found] == [None, None, None, None, 4]
    assert [done.attempts for done in found] == [1] * 5
    assert [str(done.error).partition(":")[0] for done in found[:2]] == ["AttributeError"] * 2
    assert [done.error for done in found[2:4]] == ["ValueError: invalid literal for int() with base 10: 'seven'"] * 2


@pytest.mark.parametrize(("set_to", "cores", "jobs", "each"), [(None, 7, 2, "3"), (None, 1, 2, "1"), ("5", 8, 2, "5")])
def test_workers_share_the_cores_from_their_first_import(
    set_to: str | None, cores: int, jobs: int, each: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if set_to is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert ends(Processes(jobs), [("threads", None)]) == [Done(0, each, None, attempts=1)]
    assert os.environ.get("OMP_NUM_THREADS") == set_to


def test_a_worker_is_deaf_to_ctrl_c_from_its_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    start = BaseProcess.start

    def start_and_interrupt(process: BaseProcess) -> None:
        start(process)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)

    monkeypatch.setattr(BaseProcess, "start", start_and_interrupt)
    assert ends(Processes(1), [("interrupts", None)]) == [Done(0, (True, False), None, attempts=1)]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_a_worker_prints_is_kept_from_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert ends(Processes(1), [("shout", "a step took 3 ms")]) == [Done(0, None, None, attempts=1)]
    assert capfd.readouterr() == ("", "a step took 3 ms\n")


def test_an_exception_over_the_results_ends_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_GRACE_S", PATIENCE_S)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for done in Processes(2).run(do, [("wait_for", tmp_path / "never"), ("square", 3)], pytest.fail):
            assert (done.index, len(multiprocessing.active_children())) == (1, 2)
            raise KeyboardInterrupt
    assert multiprocessing.active_children() == []
    assert time.monotonic() - began < PATIENCE_S / 2  # nobody was asked to finish


def test_no_item_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseProcess, "start", pytest.fail)
    assert ends(Processes(3), []) == []


@contextmanager
def script(executor: Executor, items: list[tuple[str, Any]], then: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program of its own, and leader of its process group, that prints what is reported and runs `then` at an end."""
    code = f"""
import os, sys, time
from pathlib import *
from nanoserve_cli.executors import *
from test_executors import do

if __name__ == "__main__":
    try:
        for done in {executor!r}.run(do, {items!r}, print):
            {then or "pass"}
    except KeyboardInterrupt:
        sys.exit(130)
"""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


@contextmanager
def held_open(fifo: Path) -> Iterator[FileIO]:
    """The reading end of the FIFO of an item `hold`, once it runs. What it reads ends where the item's worker does."""
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as end:
        deadline = time.monotonic() + PATIENCE_S
        while not end.read(len("held\n")):
            assert time.monotonic() < deadline, "no worker holds the FIFO"
            time.sleep(0.02)
        os.set_blocking(end.fileno(), True)
        yield end


@pytest.mark.parametrize(
    "executor",
    [
        pytest.param(Processes(1), id="processes"),
        pytest.param(RayCluster("local", num_cpus=0.5), id="ray", marks=[needs_ray, pytest.mark.slow]),
    ],
)
def test_ctrl_c_ends_everything_and_nothing_but_reports_is_printed(executor: Executor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    with script(executor, [("die_once", tmp_path / "died"), ("hold", tmp_path / "held")]) as program:
        with held_open(tmp_path / "held") as held:
            if isinstance(executor, RayCluster):
                time.sleep(2)  # what Ray has to say of the dead worker would come by now
            os.killpg(program.pid, signal.SIGINT)
            assert held.read() == b""  # and so nobody has it open for writing
        said, complained = program.communicate(timeout=PATIENCE_S)
    assert (program.returncode, complained) == (130, "")
    assert said == f"item 0: {manner_of_death(executor)}; attempt 2 of 3 follows\n"


def test_idle_workers_end_with_a_program_that_is_killed() -> None:
    with script(Processes(2), [("square", 3)], then="print('idle', flush=True), time.sleep(300)") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "idle\n"
        program.kill()
        # Reads until the last process that has this program's stderr is gone.
        assert program.communicate(timeout=PATIENCE_S)[1] == ""


# Ray


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^measuring on a Ray cluster needs ray: pip install 'nanoserve\[ray\]'$"):
        ends(RayCluster(), [("square", 3)])


@needs_ray
@pytest.mark.parametrize("address", ["head", "http://127.0.0.1:8265", ":6379", "127.0.0.1:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address is host:port, auto or local, got"):
        ends(RayCluster(address), [("square", 3)])


@needs_ray
def test_an_address_where_nobody_listens_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: Connection refused"):
        ends(RayCluster(), [("square", 3)])


@needs_ray
@pytest.mark.slow
def test_a_cluster_started_here_that_could_never_run_an_item_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"needs 1 CPU and 1000 GPU, which no machine of the Ray cluster has"):
        ends(RayCluster("local", num_gpus=1000), [("square", 3)])
    assert not ray_is_connected()


def ray_is_connected() -> bool:
    import ray

    return bool(ray.is_initialized())


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of another program's, which ends when its stdin does.

    It asks for no token, as this process may have one or not, and so listens to this machine alone.
    """
    code = """
import ray
options = dict(_node_ip_address="127.0.0.1", num_cpus=2, include_dashboard=False, logging_level="ERROR")
print(ray.init("local", **options).address_info["gcs_address"])
input()
"""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_AUTH_MODE": "disabled"},
    ) as program:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
        program.communicate("\n", timeout=PATIENCE_S)


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_was_joined_is_left_running(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = ends(RayCluster(cluster), [("raylet", None)])
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    assert ends(RayCluster(), [("raylet", None)]) == [first]
    assert first.error is None
    assert not ray_is_connected()


@needs_ray
@pytest.mark.slow
def test_a_connection_that_was_there_is_used_and_kept_and_its_items_cancelled(cluster: str, tmp_path: Path) -> None:
    import ray

    os.mkfifo(tmp_path / "held")
    ray.init(cluster, log_to_driver=False, logging_level="ERROR")
    try:
        assert ends(RayCluster("local"), PLAIN) == PLAIN_ENDS
        run = RayCluster().run(do, [("square", 3), ("hold", tmp_path / "held")], pytest.fail)
        assert isinstance(run, Generator)
        assert next(run) == Done(0, 9, None, attempts=1)
        with held_open(tmp_path / "held") as held:
            run.close()
            assert held.read() == b""
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@needs_ray
@pytest.mark.slow
def test_what_no_machine_of_a_joined_cluster_has_is_waited_for_and_said(cluster: str) -> None:
    class Said(Exception):
        pass

    def report(line: str) -> NoReturn:
        raise Said(line)

    with pytest.raises(Said, match=r"^a point needs 0 CPU and 1 GPU, which no machine .* has: waiting for one$"):
        list(RayCluster(cluster, num_cpus=0, num_gpus=1).run(do, PLAIN, report))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Processes(0), "measured in at least 1 process, got 0"),
        (lambda: Processes(1, retries=-1), "tried again at least 0 times, got -1"),
        (lambda: RayCluster(retries=-1), "tried again at least 0 times, got -1"),
        (lambda: RayCluster(num_gpus=-1), "cannot need 1 CPU and -1 GPU"),
        (lambda: RayCluster(num_cpus=-0.5), "cannot need -0.5 CPU and 0 GPU"),
    ],
)
def test_impossible_executors_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
