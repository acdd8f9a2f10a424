"""Where output goes and how a command ends: data on stdout, messages on stderr, one line for every expected failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_CHECK_FAILED = 3
EXIT_NOT_COMPARABLE = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = (
    "Exit codes: 0 done; 1 unexpected error; 2 bad input or usage; 3 a check of the run failed; 4 not comparable; "
    "130 interrupted."
)


class NotComparable(ValueError):
    """Two results that are not of the same thing: another trace, schema or set of rows."""


def out() -> Console:
    """The console of what was asked for: stdout."""
    return _console(stderr=False)


def show(table: Table) -> None:
    """A table on stdout, as wide as its figures are: a number is never cut, whatever the terminal or pipe.

    Title and caption stand around it, so that a narrow table does not break them.
    """
    from rich.text import Text

    title, caption = table.title, table.caption
    table.title = table.caption = None
    plain = out()
    wide = _console(stderr=False, width=_console(stderr=False, width=10_000).measure(table).maximum)
    with wide.capture() as drawn:
        if title is not None:
            wide.print(Text(str(title), style="bold"), soft_wrap=True)
        wide.print(table)
    with plain.capture() as below:
        if caption is not None:
            plain.print(Text(str(caption), style="italic"))
    text = drawn.get() + below.get() + "\n"
    sys.stdout.write(text if plain.is_terminal else "\n".join(line.rstrip() for line in text.split("\n")))


def err() -> Console:
    """The console of everything said about it: stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool, width: int | None = None) -> Console:
    from rich.console import Console

    class PlainConsole(Console):
        """A console that leaves a reader that has gone to `reported`, where rich would exit on the spot."""

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return PlainConsole(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=stderr)


def say(message: str, *, quiet: bool = False) -> None:
    """One message on stderr."""
    if not quiet:
        err().print(message, markup=False)


def warn(message: str) -> None:
    """A warning on stderr: said even when quiet."""
    err().print(f"warning: {message}", style="yellow", markup=False)


@contextmanager
def progress_bar(requests: int | None, *, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """A progress bar on stderr, only on a terminal. Yields what takes `(mode, requests ended so far)`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=quiet or requests is None or not console.is_terminal,
        speed_estimate_period=3600,  # what ends once in minutes has an ETA too
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def report(mode: str, ended: int) -> None:
            if requests is None:
                return
            if mode not in tasks:
                tasks[mode] = progress.add_task(mode, total=requests)
            progress.update(tasks[mode], completed=ended)

        yield report


@contextmanager
def download_bar(key: str) -> Iterator[Callable[[int, int | None], None]]:
    """A download's progress on stderr, only on a terminal. Yields what takes `(bytes so far, bytes in all or None)`."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(key, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def reported() -> Iterator[None]:
    """Turns what can go wrong in a command into one line on stderr and an exit code; the one place that does."""
    from nanoserve.buckets import GateError

    try:
        if sys.stdout is None:
            raise OSError("standard output is closed: there is nowhere to write to")
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(EXIT_OK) from None
    except NotComparable as error:
        _fail(f"not comparable: {_one_line(error)}", EXIT_NOT_COMPARABLE)
    except GateError as error:
        _fail(f"check failed: {error}", EXIT_CHECK_FAILED)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get("NANOSERVE_DEBUG"):
            raise
        _fail(f"error: {_one_line(error)}", EXIT_USAGE if is_expected(error) else EXIT_UNEXPECTED)
    except Exception as error:
        if os.environ.get("NANOSERVE_DEBUG"):
            raise
        _fail(
            f"unexpected {type(error).__name__}: {_one_line(error)} (NANOSERVE_DEBUG=1 shows where; please report it)",
            EXIT_UNEXPECTED,
        )


def drop_stdout() -> None:
    """Of a reader that has gone, `nanoserve bench --json | head`: Python would complain once more, flushing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_expected(error: Exception) -> bool:
    """Whether the error speaks of what was asked for: bad values, missing files or packages, memory, a compiler."""
    from nanoserve.cache.blocks import KVCacheExhausted
    from nanoserve.decode import CaptureFailed, CompilerMissing
    from nanoserve_cli.fetch import FetchError

    runtime = (KVCacheExhausted, FetchError, CaptureFailed, CompilerMissing)
    return isinstance(error, (ValueError, OSError, ImportError, *runtime))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(message: str, code: int) -> None:
    err().print(message, style="red", markup=False)
    raise typer.Exit(code)
