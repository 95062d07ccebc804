"""The visible heart of a run: admit, step, collect, commit, until every row is done or a stop is asked for.

Knows the engine only as a `Decoder`. A bad row becomes an error result and the loop goes on; an engine that fails ends
the loop after what is finished was committed, and the rows it held simply run again. Rows are read and encoded a
bounded number ahead.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batchgen.errors import BatchgenError, EngineError, JournalError
from batchgen.schedule.admission import choose, look_ahead
from batchgen.types import Decoder, Generation, Prompt, Request, Result, RowError, RowKey

# A part is made in memory, so rows are committed before there are more of them than this.
MAX_PART_ROWS = 4096


class Codec(Protocol):
    """Text to tokens and back."""

    def encode(self, prompt: Prompt) -> list[int] | RowError: ...

    def completion_budget(self, prompt_tokens: int, max_tokens: int) -> int: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def split_reasoning(self, text: str) -> tuple[str, str | None]: ...


class Journal(Protocol):
    """Where finished rows become durable."""

    def commit(self, results: Sequence[Result]) -> None: ...


class Progress(Protocol):
    """Who is told of finished rows, at every step."""

    def advance(self, results: Sequence[Result]) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What the loop takes from the job, and the marks that its results bear."""

    max_tokens: int
    checkpoint_s: float
    seed: int
    attempt: int
    run_id: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    read_at: float


@dataclass(slots=True)
class Loop:
    """One pass over the prompts. `should_stop` is asked before each round."""

    prompts: Iterator[Prompt]
    codec: Codec
    decoder: Decoder
    journal: Journal
    progress: Progress
    options: LoopOptions
    clock: Callable[[], float]
    should_stop: Callable[[], bool]
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _queue_s: dict[RowKey, float] = field(default_factory=dict)
    _finished: list[Result] = field(default_factory=list)
    _last_commit: float = 0.0
    _is_exhausted: bool = False

    def run(self) -> None:
        """Decodes until nothing is left or a stop is asked for; when it returns, all that finished is committed.

        Whatever else ends the loop leaves it committed too; only after a JournalError, when nothing more can be
        written, do the rows since the last commit run again.
        """
        self._last_commit = self.clock()
        try:
            while self._has_work() and not self.should_stop():
                self._read_ahead()
                self._admit()
                self._collect(self._step())
                self._commit_if_due()
        except JournalError:
            raise
        except BaseException:
            self._commit()
            raise
        self._commit()

    def _has_work(self) -> bool:
        return bool(self._waiting) or not self._is_exhausted or self.decoder.num_rows > 0

    def _read_ahead(self) -> None:
        """Reads and encodes prompts until enough wait; bad ones finish at once."""
        num_wanted = look_ahead(self.decoder.max_rows) - len(self._waiting)
        errors: list[Result] = []
        for _ in range(num_wanted):
            prompt = next(self.prompts, None)
            if prompt is None:
                self._is_exhausted = True
                break
            read_at = self.clock()
            tokens = self.codec.encode(prompt)
            key = RowKey(prompt.row, 0)
            if isinstance(tokens, RowError):
                errors.append(self._result(key, error=tokens))
            else:
                budget = self.codec.completion_budget(len(tokens), self.options.max_tokens)
                self._waiting.append(_Waiting(Request(key, tokens, budget), read_at))
        self._finish(errors)

    def _admit(self) -> None:
        num_free = self.decoder.max_rows - self.decoder.num_rows
        chosen = set(choose([len(waiting.request.tokens) for waiting in self._waiting], num_free))
        if not chosen:
            return
        admitted = [waiting for position, waiting in enumerate(self._waiting) if position in chosen]
        self._waiting = deque(waiting for position, waiting in enumerate(self._waiting) if position not in chosen)
        now = self.clock()
        self._queue_s |= {waiting.request.key: now - waiting.read_at for waiting in admitted}
        with _engine_errors():
            self.decoder.admit([waiting.request for waiting in admitted])

    def _step(self) -> list[Generation]:
        if self.decoder.num_rows == 0:
            return []
        with _engine_errors():
            return self.decoder.step()

    def _collect(self, generations: Sequence[Generation]) -> None:
        self._finish([self._completed(generation) for generation in generations])

    def _completed(self, generation: Generation) -> Result:
        completion, reasoning = self.codec.split_reasoning(self.codec.decode(generation.tokens))
        return self._result(generation.key, completion=completion, reasoning=reasoning, generation=generation)

    def _result(
        self,
        key: RowKey,
        *,
        completion: str | None = None,
        reasoning: str | None = None,
        error: RowError | None = None,
        generation: Generation | None = None,
    ) -> Result:
        return Result(
            key=key,
            completion=completion,
            reasoning=reasoning,
            error=error,
            generation=generation,
            prompt_tokens=None if generation is None else generation.prompt_tokens,
            queue_s=None if generation is None else self._queue_s.pop(key) + generation.queue_s,
            seed=self.options.seed,
            attempt=self.options.attempt,
            run_id=self.options.run_id,
        )

    def _finish(self, results: Sequence[Result]) -> None:
        self._finished.extend(results)
        self.progress.advance(results)

    def _commit_if_due(self) -> None:
        is_due = self.clock() - self._last_commit >= self.options.checkpoint_s
        if is_due or len(self._finished) >= MAX_PART_ROWS:
            self._commit()

    def _commit(self) -> None:
        self.journal.commit(self._finished)
        self._finished = []
        self._last_commit = self.clock()


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    """Whatever the engine raises means that the engine, not a row, has failed."""
    try:
        yield
    except BatchgenError:
        raise
    except Exception as error:
        raise EngineError(
            f"decoding failed ({type(error).__name__}: {error}); finished rows are kept, "
            "run the same job again to go on, with a smaller engine.max_rows if memory ran out"
        ) from error
