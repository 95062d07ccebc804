"""`python -m tests.drive run JOB`: the command line over a scripted decoder, for tests that end the process.

Environment: `CRASH_AT=part.renamed:2` ends it the second time that step is reached; `STEP_S` makes each step take that
long; `ADMITTED` names a file that gets each admitted row as a line; `READY_AT` and `READY` name a step and a file that
appears when it begins.
"""

import functools
import os
import time
from collections import Counter
from pathlib import Path

import batchgen.backend
import batchgen.run
from batchgen.cli import main
from batchgen.journal.disk import Disk
from batchgen.types import Request
from tests.fakes import FakeBackend, FakeDecoder


def crash_disk(crash_at: str) -> Disk:
    step, _, number = crash_at.partition(":")
    counts: Counter[str] = Counter()

    def reached(name: str) -> None:
        counts[name] += 1
        if name == step and counts[name] == int(number or 1):
            os._exit(9)

    return Disk(reached)


def note(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


class NotingDecoder(FakeDecoder):
    def admit(self, requests: list[Request]) -> None:
        super().admit(requests)
        if "ADMITTED" in os.environ:
            note(os.environ["ADMITTED"], "".join(f"{request.key.row}\n" for request in requests))


def on_step(number: int) -> None:
    if str(number) == os.environ.get("READY_AT"):
        Path(os.environ["READY"]).touch()
    time.sleep(float(os.environ.get("STEP_S", "0")))


if __name__ == "__main__":
    backend = FakeBackend(make_decoder=lambda: NotingDecoder(max_rows=4, on_step=on_step))
    batchgen.backend.MlxBackend = lambda: backend  # type: ignore[assignment,misc]
    if "CRASH_AT" in os.environ:
        disk = crash_disk(os.environ["CRASH_AT"])
        batchgen.run.Surroundings = functools.partial(batchgen.run.Surroundings, disk=disk)  # type: ignore[misc,assignment]
    main()
