"""Where a sweep's points are measured: in this process, in processes of this machine, or on a Ray cluster.

All three take one function and many items, and yield a `Done` for each item as it finishes, in no promised order:
the caller sorts by index. What the function raises is that item's error and nobody else's. A worker that dies
takes one item with it, which is tried again behind the others, in a fresh worker.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
Report = Callable[[str], None]
"""Called with one line about a worker that was lost or is waited for."""

_GRACE_S = 5.0


@dataclass(frozen=True)
class Done(Generic[Value]):
    """One item's end: its `value`, or, where `error` is not None, one line with the error's type and message.

    `index` is the item's place among the items, `attempts` how many workers it was given to, the last one included.
    """

    index: int
    value: Value | None
    error: str | None
    attempts: int


class Executor(Protocol):
    """Runs `function` on every item, which is pickled with it where it runs elsewhere: top-level, importable there.

    Closing the iterator, as an exception in the loop over it does, ends what still runs. `report` is told of every
    worker that is replaced.
    """

    def run(self, function: Callable[[Item], Value], items: Iterable[Item], report: Report) -> Iterator[Done[Value]]:
        """One `Done` for each item, as they finish."""
        ...


@dataclass(frozen=True)
class InProcess:
    """One item after the other, in this process: nothing is pickled, and nothing can be lost without it."""

    def run(self, function: Callable[[Item], Value], items: Iterable[Item], report: Report) -> Iterator[Done[Value]]:
        """One `Done` for each item, in order."""
        for index, item in enumerate(items):
            value, error = _attempt(function, item)
            yield Done(index, value, error, attempts=1)


@dataclass(frozen=True)
class Processes:
    """`jobs` processes of this machine, each with its share of the cores as OMP_NUM_THREADS unless that is set.

    Each is asked for one item at a time over a pipe of its own, so its death names its item and costs no other.
    It is spawned, as a forked process could not use CUDA (so a script that comes here guards its `__main__`), ignores
    the terminal's Ctrl-C, and has no multiprocessing children. ValueError for no process or negative retries.
    """

    jobs: int
    retries: int = 2

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"points are measured in at least 1 process, got {self.jobs}")
        _check_retries(self.retries)

    def run(self, function: Callable[[Item], Value], items: Iterable[Item], report: Report) -> Iterator[Done[Value]]:
        """One `Done` for each item, as they finish."""
        queue, unsendable = _pack(function, items)
        yield from unsendable
        threads = max(1, _cores() // self.jobs)
        idle: list[_Worker] = []
        busy: dict[_Worker, _Job] = {}
        try:
            while queue or busy:
                while queue and len(busy) < self.jobs:
                    worker = idle.pop() if idle else _Worker(threads)
                    busy[worker] = queue.popleft()
                    worker.ask(busy[worker].payload)
                for worker in _ready(busy):
                    try:
                        answer = worker.answer()
                    except _WorkerLost as loss:
                        yield from _after_loss(busy.pop(worker), loss, self.retries, report, queue)
                    else:
                        idle.append(worker)
                        yield _unpack(busy.pop(worker), answer)
        finally:
            for worker in busy:
                worker.kill()
            for worker in idle:
                worker.dismiss()
            for worker in (*idle, *busy):
                worker.end()


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster, where each item asks for `num_cpus` and `num_gpus` of one machine and waits until they are free.

    `address` None is RAY_ADDRESS, and where that is not set "local": a cluster of this machine alone, for the time of
    the run. A Ray that this process is connected to already is used as it is, and only what was started here is
    shut down. Workers started here find modules where this process does; a cluster that is joined has nanoserve and
    the function's module installed on every machine. Ray sets OMP_NUM_THREADS to `num_cpus` unless it is set, and
    shows an item that asks for GPUs only its own. A lost worker's item is sent again from here and not by Ray,
    whose own retries are silent. ValueError for negative amounts or retries.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    retries: int = 2

    def __post_init__(self) -> None:
        if self.num_cpus < 0 or self.num_gpus < 0:
            raise ValueError(f"a point cannot need {self.num_cpus:g} CPU and {self.num_gpus:g} GPU")
        _check_retries(self.retries)

    def run(self, function: Callable[[Item], Value], items: Iterable[Item], report: Report) -> Iterator[Done[Value]]:
        """One `Done` for each item, as they finish.

        ImportError without Ray, ConnectionError where no cluster answers at the address, ValueError where a cluster
        started here lacks what an item asks for; in one that was joined, and may grow, that is reported and waited for.
        """
        queue, unsendable = _pack(function, items)
        yield from unsendable
        ray = _import_ray()
        with _connected(ray, self.address or os.environ.get("RAY_ADDRESS") or "local") as started_here:
            self._check_resources(ray, started_here, report)
            task = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus, max_retries=0)(_run_packed)
            pending: dict[Any, _Job] = {}
            try:
                while queue or pending:
                    while queue:
                        job = queue.popleft()
                        pending[task.remote(job.payload)] = job
                    (ready,), _ = ray.wait(list(pending), num_returns=1)
                    job = pending.pop(ready)
                    try:
                        answer = _get(ray, ready)
                    except _WorkerLost as loss:
                        yield from _after_loss(job, loss, self.retries, report, queue)
                    else:
                        yield _unpack(job, answer)
            finally:
                for reference in pending:
                    ray.cancel(reference, force=True)

    def _check_resources(self, ray: Any, started_here: bool, report: Report) -> None:
        """Says so where no machine could ever run an item, which Ray itself would wait for without a word."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(machine.get(name, 0) >= amount for name, amount in asked.items()) for machine in machines):
            return
        lacking = f"needs {self.num_cpus:g} CPU and {self.num_gpus:g} GPU, which no machine of the Ray cluster has"
        if started_here:
            raise ValueError(f"a point {lacking}: give the address of a cluster that has them")
        report(f"a point {lacking}: waiting for one")


@dataclass(frozen=True)
class _Job:
    """An item on its way to a worker: a pickled `(function, item)`, and the number of this attempt."""

    index: int
    payload: bytes
    attempt: int = 1


_Answer = tuple[bytes | None, str | None]
"""A pickled value, or an error: bytes, so that a value which cannot be read is an error of its item alone."""


def _attempt(function: Callable[[Item], Value], item: Item) -> tuple[Value | None, str | None]:
    """The function's value, or its error in one line."""
    try:
        return function(item), None
    except (Exception, SystemExit) as error:
        return None, _one_line(error)


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _pack(function: Callable[[Item], Value], items: Iterable[Item]) -> tuple[deque[_Job], list[Done[Value]]]:
    """The items that can be sent to a worker, and the ends of those that cannot."""
    jobs: deque[_Job] = deque()
    unsendable: list[Done[Value]] = []
    for index, item in enumerate(items):
        payload, error = _attempt(pickle.dumps, (function, item))
        if payload is None:
            unsendable.append(Done(index, None, error, attempts=1))
        else:
            jobs.append(_Job(index, payload))
    return jobs, unsendable


def _run_packed(payload: bytes) -> _Answer:
    """What a worker does. Whatever can be raised in it, an import or a value that cannot be pickled, is an error."""

    def run(payload: bytes) -> bytes:
        function, item = pickle.loads(payload)
        return pickle.dumps(function(item))

    return _attempt(run, payload)


def _unpack(job: _Job, answer: _Answer) -> Done[Any]:
    pickled, error = answer
    value, unreadable = (None, None) if pickled is None else _attempt(pickle.loads, pickled)
    return Done(job.index, value, error or unreadable, job.attempt)


class _WorkerLost(Exception):
    """A worker that went without an answer; the message says how."""


def _after_loss(job: _Job, loss: _WorkerLost, retries: int, report: Report, queue: deque[_Job]) -> Iterator[Done[Any]]:
    """Queues the item of a lost worker once more, or ends it where its attempts are used up.

    Once more behind all others, since what killed the worker may be the memory that they use.
    """
    if job.attempt > retries:
        yield Done(job.index, None, f"WorkerLost: {loss}, in the last of {job.attempt} attempts", job.attempt)
    else:
        report(f"item {job.index}: {loss}; attempt {job.attempt + 1} of {retries + 1} follows")
        queue.append(replace(job, attempt=job.attempt + 1))


class _Worker:
    """A process and our end of the pipe to it. It ends where the pipe does, so that no idle one outlives us."""

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with theirs, _environment("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(threads))), _born_deaf():
            self._process.start()

    def ask(self, payload: bytes) -> None:
        """Sends an item. That the process has gone is told by `answer`."""
        with suppress(OSError):
            self.pipe.send_bytes(payload)

    def answer(self) -> _Answer:
        """What came of the item. Raises _WorkerLost where the process went without a word."""
        try:
            answer: _Answer = self.pipe.recv()
        except (EOFError, OSError):
            raise _WorkerLost(_manner_of_death(self.end())) from None
        return answer

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()

    def dismiss(self) -> None:
        """Has the process end by itself as soon as it is idle."""
        self.pipe.close()

    def end(self) -> int:
        """Dismisses the process, waits until it has ended, and returns its exit code."""
        self.dismiss()
        self._process.join(_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return self._process.exitcode or 0


def _ready(workers: Iterable[_Worker]) -> list[_Worker]:
    """Waits until at least one of the workers has answered or died."""
    of_pipe = {worker.pipe: worker for worker in workers}
    return [of_pipe[pipe] for pipe in wait(list(of_pipe))]  # type: ignore[index]


def _serve(pipe: Connection[_Answer, bytes]) -> None:
    """A process's life: an item, an answer, until the pipe ends, because the run or its process has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.dup2(2, 1)  # what the function prints is a message: stdout is for the data of the whole run
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(_run_packed(pipe.recv_bytes()))


def _manner_of_death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"its process exited with status {exit_code}"
    name = signal.strsignal(-exit_code) or "unknown"
    hint = ", as when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"its process ended by signal {-exit_code} ({name}{hint})"


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _born_deaf() -> Iterator[None]:
    """A process started in here has Ctrl-C blocked from its first instruction, not only from where it can ignore it."""
    resource_tracker.ensure_running()  # started by the first process instead, it would unblock what is blocked here
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Sets one variable for the processes that are started in here: a library reads it as it is first imported."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _import_ray() -> Any:
    """Ray, told to keep its own lines about dead workers from our stdout, which it reads as it is first imported."""
    try:
        with _environment("RAY_DEDUP_LOGS_SKIP_REGEX", "."):
            return import_module("ray")
    except ModuleNotFoundError as error:
        if error.name == "ray":
            raise ImportError("measuring on a Ray cluster needs ray: pip install 'nanoserve[ray]'") from error
        raise


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[bool]:
    """A connection to the cluster at `address`; yields whether it was started here. Ends no connection it has found."""
    if ray.is_initialized():
        yield False
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            with _environment("PYTHONPATH", os.pathsep.join(path or os.getcwd() for path in sys.path)):
                ray.init(address, include_dashboard=False, **quiet)
        else:
            _check_answers(address)
            ray.init(address, **quiet)
        yield address == "local"
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises ConnectionError where nothing listens at `host:port`: Ray would try for a quarter of an hour."""
    if address == "auto":  # Ray looks for a cluster of this machine, and says at once that there is none
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"a Ray cluster's address is host:port, auto or local, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_GRACE_S).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def _get(ray: Any, reference: Any) -> _Answer:
    """A finished task's answer. Raises _WorkerLost where the worker, its machine or the answer was lost."""
    errors = ray.exceptions
    try:
        answer: _Answer = ray.get(reference)
    except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
        raise _WorkerLost(f"its Ray worker was lost ({type(error).__name__})") from None
    except errors.RayTaskError as error:  # not even `_run_packed` was found: a traceback, whose last line says why
        return None, f"RayTaskError: {str(error).splitlines()[-1]}"
    except errors.RayError as error:
        return None, _one_line(error)
    return answer


def _check_retries(retries: int) -> None:
    if retries < 0:
        raise ValueError(f"a lost point is tried again at least 0 times, got {retries}")
