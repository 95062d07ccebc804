"""Frozen values that pass between the rooms, and the protocol the schedule drives the engine through.

Nothing here computes; nothing here imports mlx, pyarrow or another room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

FinishReason = Literal["stop", "length"]

ErrorKind = Literal[
    "missing_prompt",
    "empty_prompt",
    "bad_messages",
    "bad_template",
    "invalid_utf8",
    "prompt_too_long",
]


class RowKey(NamedTuple):
    """Identity of one output row: the input row's number over the recorded file list, and the sample (from 0)."""

    row: int
    sample: int


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no completion. `message` names file and row, and what was found there."""

    kind: ErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One input record as the job renders it: `text` or `messages` (role, content, ...), or the reason it has neither.

    `place` is its file and its row there, for messages.
    """

    row: int
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    error: RowError | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One row for the engine: prompt token ids (at least one) and its budget of completion tokens (at least one)."""

    key: RowKey
    tokens: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine made of a request.

    `tokens` are the completion's ids, with the end token where there is one (then `finish_reason` is `stop`).
    For every row: len(tokens) == 1 + accepted_tokens + verify_passes, since the prompt's pass yields the first
    token and each verify pass its accepted drafts and one token of the target's own.
    `acceptance_counts[a]` is how many passes accepted `a` drafts. `queue_s` is the wait from
    admission to the start of the prefill. Seconds are monotonic; a row's share of a batched
    pass is the pass's full time.
    """

    key: RowKey
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_prompt_tokens: int
    verify_passes: int
    drafted_tokens: int
    accepted_tokens: int
    acceptance_counts: tuple[int, ...]
    prefill_s: float
    decode_s: float
    queue_s: float = 0.0


class Decoder(Protocol):
    """The engine as the schedule sees it: rows go in at any time, finished ones come out of `step`."""

    @property
    def max_rows(self) -> int:
        """The most rows it holds at once."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows it holds now, prefilling or decoding."""
        ...

    def admit(self, requests: Sequence[Request]) -> None:
        """Takes requests in; at most `max_rows - num_rows` of them."""
        ...

    def step(self) -> list[Generation]:
        """Does one turn of work (a prefill chunk or a decoding round) and returns the rows that finished in it."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """One output row before the kept input columns are joined to it. `generation` is None exactly if `error` is not."""

    key: RowKey
    completion: str | None
    reasoning: str | None
    error: RowError | None
    generation: Generation | None
    prompt_tokens: int | None
    queue_s: float | None
    seed: int
    attempt: int
    run_id: str
