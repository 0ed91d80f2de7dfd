"""Ctrl-C and SIGTERM on the command line: heard at once, obeyed where nothing is lost.

Python runs a signal's handler in the main thread, which may be in one of XLA's callbacks just then: an exception raised there is
swallowed or ends in a segmentation fault. So none is raised. The signal's number goes to a thread instead (by
`signal.set_wakeup_fd`, whatever the main thread is at), which says that it was heard. Work that can go on later is `resumable`
and asks at its safe places, by `stop_here`, whether to stop. All other work, and whatever is asked to stop twice, ends at once.

The command line alone listens. In anybody's own program `stop_here` does nothing, and Ctrl-C is what it always was.
"""

import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_REQUEST = 0.2  # seconds within which the same signal once more is no second request
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


class Interrupted(KeyboardInterrupt):
    """Work stopped at a safe place, as a signal had asked."""


class _Listener:
    """The signals that this process has heard: signals are the process's, and so is this."""

    listening = False
    heard: signal.Signals | None = None  # where the work goes on to a safe place
    heard_at = 0.0
    go_on: str | None = None  # the command that goes on with the work under way


_listener = _Listener()


def _is_command() -> bool:
    """Whether this process is the command `jaxdp`, and no other program that imports it."""
    as_module = {("-m", "jaxdp"), ("-m", "jaxdp.cli")} & set(itertools.pairwise(sys.orig_argv))
    return bool(as_module) or os.path.basename(sys.argv[0] if sys.argv else "") in ("jaxdp", "jaxdp.exe")


def _end_while_importing() -> None:
    """Let Ctrl-C end the command `jaxdp` while its imports go on, which take seconds: there, too, JAX has callbacks in which a
    `KeyboardInterrupt` is lost. Does nothing where this process is another program that imports jaxdp."""
    alone = threading.current_thread() is threading.main_thread()
    if _is_command() and alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def listening() -> Iterator[None]:
    """Take signals as this file says, until the end of the block; a signal that the parent process ignored stays ignored."""
    taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread() or not taken:
        yield
        return
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in taken}
    fd_before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(ours,), daemon=True)
    thread.start()
    _listener.listening, _listener.heard, _listener.go_on = True, None, None
    try:
        yield
    finally:
        _listener.listening = False
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        pythons.close()  # which ends the thread
        thread.join()
        ours.close()


def listen_again() -> None:
    """Take back what a library that was started since took for itself, as JAX's service for several processes does."""
    if _listener.listening and threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.getsignal(number))


@contextmanager
def resumable(go_on: str) -> Iterator[None]:
    """Work that `go_on`, a command, goes on with: it stops at the next `stop_here`. Within such work, the outer one's counts."""
    outer = _listener.go_on
    _listener.go_on = outer or go_on
    yield
    _listener.go_on = outer  # where the work was broken off it stays, for `farewell`


def asked_to_stop() -> bool:
    """Whether there has been a signal that the work under way is to stop for."""
    return _listener.listening and _listener.heard is not None


def stop_here() -> None:
    """A safe place: raises `Interrupted` where there has been a signal."""
    if asked_to_stop():
        raise Interrupted


def farewell() -> tuple[str, int]:
    """The message about work that was broken off, and the exit code: 128 and the signal's number, as shells have it."""
    return "jaxdp: interrupted" + how_to_go_on(), 128 + (_listener.heard or signal.SIGINT)


def how_to_go_on() -> str:
    """The end of a message about work that was broken off; nothing where no command goes on with it."""
    return f"; this goes on: {_listener.go_on}" if _listener.go_on else ""


def leave(code: int) -> NoReturn:
    """End with an exit code; the command at once: what other libraries' threads do while Python ends would be told as errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # whose reader has gone, or that isn't there
            stream.flush()
    if _is_command():
        os._exit(code)
    sys.exit(code)


def _listen(numbers: socket.socket) -> None:
    """The thread: a byte is a signal's number."""
    while byte := numbers.recv(1):
        if byte[0] not in _SIGNALS:
            continue
        number = signal.Signals(byte[0])
        if number == _listener.heard and time.monotonic() - _listener.heard_at < _ONE_REQUEST:
            continue  # `timeout` sends a signal to its command, and then to all of its group
        if _listener.go_on is None or _listener.heard is not None:
            again = " again, and ended at once" if _listener.heard else ""
            _say(
                f"jaxdp: interrupted by {number.name}{again}" + (f"; this goes on: {_listener.go_on}" if again else "")
            )
            if sys.stdout is not None and sys.stdout.isatty():
                os.write(1, _SHOW_CURSOR.encode())
            os._exit(128 + number)
        _listener.heard, _listener.heard_at = number, time.monotonic()
        _say(f"jaxdp: heard {number.name}, stopping at the next safe place (once more ends at once)")


def _say(line: str) -> None:
    """Past Python's buffers, which the main thread may be writing to."""
    os.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))


_end_while_importing()
