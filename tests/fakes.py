"""Stand-ins that follow a script: a decoder without weights, a codec without a tokenizer, a clock without time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from batchgen.hub import ModelFolder
from batchgen.job.spec import EngineSpec, InputSpec, Job
from batchgen.types import FinishReason, Generation, Prompt, Request, Result, RowError, RowKey, Sampling


@dataclass
class FakeClock:
    """Seconds that pass only when told to, or by `tick` at each reading."""

    now: float = 0.0
    tick: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class FakeCodec:
    """One token for each character. A prompt that holds `TOO LONG` is refused."""

    eos_token_ids = frozenset({0})
    vocab_size = 1 << 20
    context_length = 4096
    identity: Mapping[str, str] = {"tokenizer": "characters"}

    def requests(self, prompt: Prompt, samples: Sequence[int]) -> list[Request] | RowError:
        if prompt.error is not None:
            return prompt.error
        assert prompt.text is not None
        if "TOO LONG" in prompt.text:
            return RowError("prompt_too_long", f"row {prompt.row} is too long")
        tokens = [ord(character) for character in prompt.text]
        budget = min(prompt.sampling.max_tokens, self.context_length - len(tokens))
        return [Request(RowKey(prompt.row, sample), tokens, budget, prompt.sampling) for sample in samples]

    def completion(self, request: Request, tokens: Sequence[int]) -> tuple[str, str | None]:
        text = "".join(chr(token) for token in tokens if token not in self.eos_token_ids)
        thinking, mark, answer = text.partition("</think>")
        return (answer, thinking.removeprefix("<think>")) if mark else (text, None)

    def require(self, sampling: Sampling, columns: Mapping[str, str]) -> None:
        self.required = sampling

    def render(self, prompt: Prompt) -> str | RowError:
        assert prompt.text is not None
        return prompt.text

    def pin_time(self, time: str) -> None:
        self.pinned_time = time


def echo(request: Request) -> str:
    """The default script: a row says its own prompt back."""
    return "".join(chr(token) for token in request.tokens)


def steps_out_of_order(request: Request) -> int:
    """The default timing: one to five steps, so that rows finish in another order than they came."""
    return 1 + request.key.row * 7 % 5


@dataclass
class FakeDecoder:
    """Answers by script, each row after its own number of steps; `accepted` and `drafted` say what each pass did.

    `on_step` is called with the number of each step before it is done, and may raise.
    """

    max_rows: int = 4
    answer: Callable[[Request], str] = echo
    num_steps: Callable[[Request], int] = steps_out_of_order
    on_step: Callable[[int], None] = lambda number: None
    accepted: Sequence[int] = (2, 0, 3)
    drafted_per_pass: int = 3
    finish_reason: FinishReason = "stop"
    facts: Mapping[str, str | int | float | None] = field(default_factory=dict)
    room: int | None = None
    admitted: list[RowKey] = field(default_factory=list)
    peak_rows: int = 0
    steps: int = 0
    _held: dict[RowKey, tuple[Request, int]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return len(self._held)

    def num_fitting(self, requests: Sequence[Request]) -> int:
        """Where `room` is given, as many as leave the sum of their prompts' lengths within it."""
        if self.room is None:
            return len(requests)
        left = self.room - sum(len(request.tokens) for request, _ in self._held.values())
        sizes = accumulate(len(request.tokens) for request in requests)
        return sum(size <= left for size in sizes)

    def admit(self, requests: Sequence[Request]) -> None:
        assert self.num_fitting(requests) == len(requests)
        assert len(requests) <= self.max_rows - self.num_rows
        for request in requests:
            assert request.key not in self._held
            self.admitted.append(request.key)
            self._held[request.key] = (request, self.num_steps(request))
        self.peak_rows = max(self.peak_rows, self.num_rows)

    def step(self) -> list[Generation]:
        self.steps += 1
        self.on_step(self.steps)
        self._held = {key: (request, left - 1) for key, (request, left) in self._held.items()}
        finished = [request for request, left in self._held.values() if left <= 0]
        for request in finished:
            del self._held[request.key]
        return [self._generation(request) for request in finished]

    def summary(self) -> dict[str, str | int | float | None]:
        return dict(self.facts)

    def hints(self) -> list[str]:
        return ["a faster library would help"]

    def _generation(self, request: Request) -> Generation:
        text = self.answer(request)
        tokens = tuple(ord(character) for character in text) + ((0,) if self.finish_reason == "stop" else ())
        counts = [0] * (self.drafted_per_pass + 1)
        for accepted in self.accepted:
            counts[accepted] += 1
        return Generation(
            key=request.key,
            tokens=tokens,
            finish_reason=self.finish_reason,
            prompt_tokens=len(request.tokens),
            cached_prompt_tokens=0,
            verify_passes=len(self.accepted),
            drafted_tokens=self.drafted_per_pass * len(self.accepted),
            accepted_tokens=sum(self.accepted),
            acceptance_counts=tuple(counts),
            prefill_s=0.25,
            decode_s=0.75,
        )


def make_result(row: int, *, sample: int = 0, completion: str | None = None, **changes: Any) -> Result:
    """A finished row whose completion names it."""
    values: dict[str, Any] = {
        "key": RowKey(row, sample),
        "completion": f"answer {row}.{sample}" if completion is None else completion,
        "reasoning": None,
        "error": None,
        "generation": Generation(RowKey(row, sample), (1, 2, 0), "stop", 4, 0, 1, 3, 1, (0, 1, 0, 0), 0.25, 0.75),
        "prompt_tokens": 4,
        "queue_s": 0.5,
        "seed": 0,
        "attempt": 1,
        "run_id": "first",
    }
    return Result(**(values | changes))


def make_error(row: int, kind: Any = "missing_prompt", sample: int = 0) -> Result:
    """An error row."""
    error = RowError(kind, f"in.parquet, row {row}: the prompt is null")
    return Result(RowKey(row, sample), None, None, error, None, None, None, 0, 1, "first")


@dataclass
class FakeBackend:
    """The models' side of a run by script. `decoders` are those that were loaded, in order."""

    make_decoder: Callable[[], FakeDecoder] = FakeDecoder
    model_identity: Mapping[str, str] = field(default_factory=lambda: {"config.json": "aa"})
    refuse_pair: Exception | None = None
    auto_dtype: str = "float32"
    decoders: list[FakeDecoder] = field(default_factory=list)

    def resolve_model(self, name: str, revision: str | None, what: str) -> ModelFolder:
        return ModelFolder(Path(name), dict(self.model_identity) if what == "model" else {"config.json": "dd"})

    def check_pair(self, model: Path, drafter: Path | None, vocab_size: int) -> None:
        if self.refuse_pair is not None:
            raise self.refuse_pair

    def dtype_of(self, model: Path, engine: EngineSpec) -> str:
        return self.auto_dtype if engine.dtype == "auto" else engine.dtype

    def load_codec(self, folder: Path, spec: InputSpec) -> FakeCodec:
        self.codec = FakeCodec()
        return self.codec

    def load_decoder(
        self, model: Path, drafter: Path | None, job: Job, eos_token_ids: frozenset[int], clock: object
    ) -> FakeDecoder:
        decoder = self.make_decoder()
        if job.engine.max_rows != "auto":
            decoder.max_rows = job.engine.max_rows
        self.decoders.append(decoder)
        return decoder

    @property
    def admitted_rows(self) -> list[int]:
        """Rows that any of the decoders was given, sorted."""
        return sorted(key.row for decoder in self.decoders for key in decoder.admitted)
