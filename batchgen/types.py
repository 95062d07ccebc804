"""Frozen values that pass between the rooms, and the protocol the schedule drives the engine through.

Nothing here computes; nothing here imports mlx, pyarrow or another room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FinishReason = Literal["stop", "length"]

ErrorKind = Literal[
    "missing_prompt",
    "empty_prompt",
    "bad_messages",
    "bad_template",
    "invalid_utf8",
    "prompt_too_long",
    "bad_sampling",
    "too_large",
    "grammar_failed",
]


class RowKey(NamedTuple):
    """Identity of one output row: the input row's number over the recorded file list, and the sample (from 0)."""

    row: int
    sample: int


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a completion must be: `text` is a JSON schema as JSON, a regular expression, or a JSON list of strings."""

    kind: Literal["json_schema", "regex", "choice"]
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one row's tokens are chosen, every value of it known: the job's own, or that of a column.

    Each default is the value that does nothing. `logit_bias` is pairs of token id and what is added to its logit.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    n: int = 1
    thinking: bool | None = None
    thinking_budget: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no completion. `message` names file and row, and what was found there."""

    kind: ErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One input record as the job renders it: `text` or `messages` (role, content, ...), or the reason it has neither.

    `place` is its file and its row there, for messages. `id` is the value of the job's id column, None where the job
    names none. `sampling` holds for all its samples; with an error only its `n` means anything. `sampling_columns` are
    the columns of the keys under `sampling` whose value is the row's own, for messages.
    """

    row: int
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    error: RowError | None = None
    place: str = ""
    id: int | str | None = None
    sampling: Sampling = Sampling()
    sampling_columns: Mapping[str, str] = field(default_factory=dict)


class StopMatcher(Protocol):
    """Looks for one row's stop strings in the text of its completion."""

    def push(self, token: int) -> bool:
        """Takes the completion's next token; true if a stop string is complete with it. Never asked again after."""
        ...

    def finish(self) -> bool:
        """Whether a stop string stands in what was not looked at yet, now that no token follows. The last question."""
        ...


class GrammarMatcher(Protocol):
    """Where one row's completion stands in its grammar."""

    def fill(self, drafts: Sequence[int], masks: "npt.NDArray[np.uint32]") -> int:
        """Writes into masks [len(drafts) + 1, words] which tokens may stand at each position of a block, one bit each.

        Token t is bit t % 32 of word t // 32. masks[j] holds for the position behind the first j drafts. Returns how
        many drafts from the start the grammar allows; masks past that position are left as they are. Does not move.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Moves past tokens of the completion, an end token possibly last."""
        ...

    def failure(self, num_tokens: int) -> str | None:
        """Why a finished completion of so many tokens had to end where its grammar does not; None if it did not."""
        ...


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """How long a row may think: after `max_tokens` tokens of thinking, `close_token` is put.

    `is_open` says that the prompt opens the thinking block; else the completion does if its first token that is none of
    `lead_tokens` is `open_token` (None: the model has no such token). Neither that nor what stands before it counts.
    """

    max_tokens: int
    open_token: int | None
    close_token: int
    is_open: bool
    lead_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """One row for the engine: prompt token ids (at least one) and its budget of completion tokens (at least one).

    The samples of a prompt have equal `tokens`; requests of one row number share its prefill, also those that are
    admitted later: `num_following` says how many more will be. `noise_key` (64 bits) is what distinguishes this row's
    chance from any other's: made of seed, row identity and sample. The matchers belong to this request alone and move
    with it. Of `sampling` the engine reads what chooses tokens; the budget that holds is `max_tokens` here.
    """

    key: RowKey
    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    noise_key: int = 0
    num_following: int = 0
    stop_matcher: StopMatcher | None = None
    grammar_matcher: GrammarMatcher | None = None
    thinking_limit: ThinkingLimit | None = None


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
    logprobs: tuple[float, ...] | None = None


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

    def num_fitting(self, requests: Sequence[Request]) -> int:
        """How many of these, from the first on, can be taken in now for all the tokens that they may make. With no row
        held 0 means that the first one can never be."""
        ...

    def admit(self, requests: Sequence[Request]) -> None:
        """Takes requests in; at most `max_rows - num_rows` of them, and at most what `num_fitting` says."""
        ...

    def step(self) -> list[Generation]:
        """Does one turn of work (a prefill chunk or a decoding round) and returns the rows that finished in it."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """One output row before the kept input columns are joined to it.

    `generation` is None exactly if `error` is not; then there is no figure of work and no seed either.
    """

    key: RowKey
    completion: str | None
    reasoning: str | None
    error: RowError | None
    generation: Generation | None
    prompt_tokens: int | None
    queue_s: float | None
    seed: int | None
    attempt: int
    run_id: str
