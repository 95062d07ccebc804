"""The visible heart of a run: admit, step, collect, commit, until every row is done or a stop is asked for.

Knows the engine only as a `Decoder`. A bad row becomes an error result and the loop goes on; an engine that fails ends
the loop after what is finished was committed, and the rows it held simply run again. Rows are read and encoded a
bounded number ahead.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from batchgen.errors import BatchgenError, EngineError, JournalError
from batchgen.schedule.admission import Admitted, Waiting, choose, look_ahead
from batchgen.types import Decoder, Generation, Prompt, Request, Result, RowError, RowKey

# A part is made in memory, so rows are committed before there are more of them than this.
MAX_PART_ROWS = 4096


class Codec(Protocol):
    """Text to tokens and back."""

    def requests(self, prompt: Prompt, samples: Sequence[int]) -> list[Request] | RowError:
        """What the engine needs to make these samples of a prompt, or why it cannot make any."""
        ...

    def completion(self, request: Request, tokens: Sequence[int]) -> tuple[str, str | None] | RowError:
        """The answer in the tokens that came of a request, and the text of its thinking block if it has one; or why
        they are none, the row's place not said."""
        ...


class Journal(Protocol):
    """Where finished rows become durable; `done` are those that are."""

    @property
    def done(self) -> Container[RowKey]: ...

    def commit(self, results: Sequence[Result]) -> None: ...


class Progress(Protocol):
    """Who is told of finished rows, at every step."""

    def advance(self, results: Sequence[Result]) -> None: ...


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How often rows are committed, and the marks that their results bear."""

    checkpoint_s: float
    attempt: int
    run_id: str


@dataclass(slots=True)
class _Prompt:
    """A prompt of which samples wait; `requests` is never empty between rounds."""

    requests: list[Request]
    place: str
    read_at: float
    is_begun: bool = False

    @property
    def waiting(self) -> Waiting:
        first = self.requests[0]
        return Waiting(len(first.tokens), len(self.requests), self.is_begun, first.max_tokens)


class _InFlight(NamedTuple):
    """A request that the decoder holds, the row's place for messages, and how long it waited to be admitted."""

    request: Request
    place: str
    waited_s: float


@dataclass(slots=True)
class Loop:
    """One pass over the prompts, for their samples that are not done. `should_stop` is asked before each round."""

    prompts: Iterator[Prompt]
    codec: Codec
    decoder: Decoder
    journal: Journal
    progress: Progress
    options: LoopOptions
    clock: Callable[[], float]
    should_stop: Callable[[], bool]
    _waiting: deque[_Prompt] = field(default_factory=deque)
    _in_flight: dict[RowKey, _InFlight] = field(default_factory=dict)
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
        """Reads and encodes prompts until enough rows wait; bad ones finish at once."""
        num_wanted = look_ahead(self.decoder.max_rows) - sum(len(prompt.requests) for prompt in self._waiting)
        errors: list[Result] = []
        # Bad prompts count too, so that a stop is seen where there are many.
        while num_wanted > 0:
            prompt = next(self.prompts, None)
            if prompt is None:
                self._is_exhausted = True
                break
            read_at = self.clock()
            keys = [RowKey(prompt.row, sample) for sample in range(prompt.sampling.n)]
            missing = [key for key in keys if key not in self.journal.done]
            num_wanted -= len(missing)
            requests = self.codec.requests(prompt, [key.sample for key in missing])
            if isinstance(requests, RowError):
                errors += [self._result(key, requests) for key in missing]
            elif requests:
                self._waiting.append(_Prompt(requests, prompt.place, read_at))
        self._finish(errors)

    def _admit(self) -> None:
        num_free = self.decoder.max_rows - self.decoder.num_rows
        chosen = choose([prompt.waiting for prompt in self._waiting], num_free, are_all=self._is_exhausted)
        if not chosen:
            return
        chosen = self._fitting(chosen)
        now = self.clock()
        admitted: list[Request] = []
        for position, num_samples in chosen:
            prompt = self._waiting[position]
            prompt.is_begun = True
            taken, prompt.requests = prompt.requests[:num_samples], prompt.requests[num_samples:]
            admitted += [replace(request, num_following=len(prompt.requests)) for request in taken]
            waited_s = now - prompt.read_at
            self._in_flight |= {request.key: _InFlight(request, prompt.place, waited_s) for request in taken}
        left = [prompt for prompt in self._waiting if prompt.requests]
        self._waiting = deque(sorted(left, key=lambda prompt: not prompt.is_begun))
        with _engine_errors():
            self.decoder.admit(admitted)

    def _fitting(self, chosen: Sequence[Admitted]) -> list[Admitted]:
        """What of the choice the decoder has memory for; a prompt that would not fit alone becomes error rows."""
        requests = [self._waiting[one.position].requests[: one.num_samples] for one in chosen]
        with _engine_errors():
            num_fitting = self.decoder.num_fitting([request for prompt in requests for request in prompt])
        if num_fitting == 0 and self.decoder.num_rows == 0:
            self._give_up(chosen[0].position)
        fitting = []
        for position, num_samples in chosen:
            if num_fitting > 0:
                fitting.append(Admitted(position, min(num_samples, num_fitting)))
            num_fitting -= num_samples
        return fitting

    def _give_up(self, position: int) -> None:
        prompt = self._waiting[position]
        requests = prompt.requests
        tokens = f"{len(requests[0].tokens)} tokens of prompt and up to {requests[0].max_tokens} more"
        error = RowError(
            "too_large",
            f"{prompt.place}: {tokens} need more memory than engine.memory leaves for a row; "
            "lower max_tokens, or shorten the prompt",
        )
        del self._waiting[position]
        self._finish([self._result(request.key, error) for request in requests])

    def _step(self) -> list[Generation]:
        if self.decoder.num_rows == 0:
            return []
        with _engine_errors():
            return self.decoder.step()

    def _collect(self, generations: Sequence[Generation]) -> None:
        self._finish([self._completed(generation) for generation in generations])

    def _completed(self, generation: Generation) -> Result:
        request, place, waited_s = self._in_flight.pop(generation.key)
        answer = self.codec.completion(request, generation.tokens)
        if isinstance(answer, RowError):
            return self._result(generation.key, replace(answer, message=f"{place}: {answer.message}"))
        completion, reasoning = answer
        return replace(
            self._result(generation.key),
            completion=completion,
            reasoning=reasoning,
            generation=generation,
            prompt_tokens=generation.prompt_tokens,
            queue_s=waited_s + generation.queue_s,
            seed=request.sampling.seed,
        )

    def _result(self, key: RowKey, error: RowError | None = None) -> Result:
        return Result(
            key=key,
            completion=None,
            reasoning=None,
            error=error,
            generation=None,
            prompt_tokens=None,
            queue_s=None,
            seed=None,
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
