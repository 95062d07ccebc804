"""The first SIGINT or SIGTERM asks the loop to stop; the next one ends the process at once, whatever it is doing.

Only notes the wish; the loop looks at it between rounds. Both ways out leave a run that can be gone on with.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from batchgen.errors import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes signals inside a `with` block of the main thread. `announce` is called at the first, from another thread.

    Python runs a signal handler only between two steps of its own, and a native call may take minutes. So the handler
    does no more than set `requested`, and a thread, woken by the system's part of the signal, sees to the rest.
    """

    def __init__(self, announce: Callable[[], None]) -> None:
        self.requested = False
        self._announce = announce
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_wakeup = -1
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._previous_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._writer.close()
        self._watcher.join()
        self._reader.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def _watch(self) -> None:
        num_signals = 0
        # One byte for each signal that has a handler; none once the writer is closed.
        while received := self._reader.recv(1):
            if received[0] not in SIGNALS:
                continue
            num_signals += 1
            if num_signals > 1:
                os._exit(EXIT_INTERRUPTED)
            self._announce()
