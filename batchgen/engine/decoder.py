"""The decoder that the schedule drives: rows join and leave at any step, each advances by its own acceptance.

A step is one prefill chunk, if prompts wait, and one decoding round, if rows decode. A row's tokens depend on its
prompt and the model alone: not on its neighbours, its slot, the block, or whether it drafts.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from batchgen.engine import BLAS
from batchgen.engine.adapt import BlockChooser
from batchgen.engine.caches.buffers import round_up
from batchgen.engine.compiling import on_gpu
from batchgen.engine.drafters.protocol import Drafter
from batchgen.engine.memory import RowBytes
from batchgen.engine.prefill import GROUP_TOKENS, FirstTokens, KeptPrompt, PrefillGroup, choose_group
from batchgen.engine.prefix import Prefix, read_prefix, shared_beginning
from batchgen.engine.row import Row
from batchgen.engine.sampling.coupling import Coupling, decide
from batchgen.engine.sampling.rules import Rules
from batchgen.engine.speculative import Flight, Judge, Slots, Verdict, launch_round
from batchgen.engine.target.model import Target
from batchgen.engine.target.state import CAPACITY_STEP
from batchgen.types import Generation, Request

# MLX keeps freed buffers for reuse; rows of many lengths leave many sizes behind.
_CLEAR_CACHE_ROUNDS = 256


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How the decoder works; none of it changes a row's tokens, but for sampled rows under `rejection` coupling."""

    max_rows: int
    block_size: int
    prefill_chunk: int
    bucket_slots: bool
    coupling: Coupling = "shared"
    logprobs: bool = False
    memory: int | None = None
    """Bytes that rows may take; no bound where None."""
    adaptive: bool = False
    """Let measured costs and acceptance choose each round's block, up to `block_size`."""
    ahead: bool = False
    """Launch a round before the one ahead of it is read: the device never waits for the host, and a row that ended is
    computed for once more."""


@dataclass(frozen=True, slots=True)
class _RowsInFlight:
    """A round that was launched, and whose each slot was then."""

    rows: Sequence[Row | None]
    flight: Flight
    launched_s: float


class BatchDecoder:
    """Continuous batching over a target and, if there is one, a drafter."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        options: DecoderOptions,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float],
        judge: Judge = decide,
    ) -> None:
        """`judge` is another than `decide` only where a measurement wants verdicts of its own."""
        self._judge = judge
        self.target, self.drafter, self.options = target, drafter, options
        self._eos_token_ids, self._clock = eos_token_ids, clock
        self._waiting: deque[tuple[Request, float]] = deque()
        self._first = FirstTokens(options.coupling, options.logprobs, clock)
        self._group: PrefillGroup | None = None
        self._kept: KeptPrompt | None = None
        self._prefix: Prefix | None = None
        self._rows: list[Row | None] = []
        self._slots = self._empty_slots()
        self._flight: _RowsInFlight | None = None
        self._rules: Rules | None = None  # of the rows in the slots; None when these have changed
        self._num_rounds = 0
        self._chooser = BlockChooser(options.block_size) if options.adaptive and options.block_size > 1 else None
        self._row_bytes = target.row_bytes + (RowBytes() if drafter is None else drafter.row_bytes)
        self._read_s = 0.0
        self._is_disturbed = False  # something beside the round in flight kept the device busy

    @property
    def max_rows(self) -> int:
        return self.options.max_rows

    @property
    def num_rows(self) -> int:
        prefilling = 0 if self._group is None else self._group.num_rows
        return len(self._waiting) + prefilling + self._num_decoding

    @property
    def _num_decoding(self) -> int:
        return sum(row is not None for row in self._rows)

    def summary(self) -> dict[str, str | int | float | None]:
        """What decoded, on what: facts for the report, as short texts and figures."""
        facts: dict[str, str | int | float | None] = {
            "device": mx.default_device().type.name,
            "dtype": str(self.target.dtype).removeprefix("mlx.core."),
            "max_rows": self.options.max_rows,
            "block_size": self.options.block_size,
            **({} if self._chooser is None else self._chooser.facts()),
            "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 3),
        }
        return facts if BLAS.path is None else facts | {"blas": BLAS.name}

    def hints(self) -> list[str]:
        """What the user could do for a faster run, a sentence each."""
        found = [] if on_gpu() or BLAS.hint is None else [BLAS.hint]
        if self.drafter is not None and self.options.block_size > self.drafter.block_size:
            found.append(
                f"engine.block_size {self.options.block_size} is above the {self.drafter.block_size} that the drafter "
                "was made for; drafts past that are rarely accepted, and every one is paid for"
            )
        return found

    def num_fitting(self, requests: Sequence[Request]) -> int:
        """How many of these, from the first on, fit with all the tokens that they and the rows here may make."""
        if self.options.memory is None:
            return len(requests)
        held = list(self._requests())
        for num_fitting, request in enumerate(requests):
            held.append(request)
            if self._bytes_needed(held) > self.options.memory:
                return num_fitting
        return len(requests)

    def _bytes_needed(self, held: Sequence[Request]) -> int:
        """What these take at most: all slots have the capacity of the longest row, and prompts that are being read have
        caches of their own beside them."""
        prompt = max(len(request.tokens) for request in held)
        longest = max(len(request.tokens) + request.max_tokens for request in held)
        capacity = round_up(longest + self.options.block_size, CAPACITY_STEP)
        needed = self._row_bytes.total(self._bucket(len(held)), capacity, self.options.block_size)
        num_read = min(len(held), max(1, GROUP_TOKENS // min(prompt, self.options.prefill_chunk)))
        return needed + self._row_bytes.total(num_read, round_up(prompt, CAPACITY_STEP), 0)

    def _requests(self) -> Iterator[Request]:
        """Of all rows held."""
        yield from (request for request, _ in self._waiting)
        yield from (row.request for row in self._rows if row is not None)
        if self._group is not None:
            yield from (row.request for row in self._group.rows())

    def admit(self, requests: Sequence[Request]) -> None:
        assert self.num_rows + len(requests) <= self.max_rows
        now_s = self._clock()
        self._waiting.extend((request, now_s) for request in requests)

    def step(self) -> list[Generation]:
        finished = [] if self._kept is None else self._begin_samples(self._kept)
        if self._group is None and self._waiting:
            self._group = self._begin_group()
        if self._group is not None:
            finished += self._prefill_turn(self._group)
        if self._num_decoding:
            finished += self._round()
        return finished

    def _begin_group(self) -> PrefillGroup:
        """Takes the next prompts to read together, each with all its samples that wait."""
        by_row: dict[int, list[tuple[Request, float]]] = {}
        for waiting in self._waiting:
            by_row.setdefault(waiting[0].key.row, []).append(waiting)
        samples = list(by_row.values())
        prompts = [waiting[0][0].tokens for waiting in samples]
        prefix = self._prefix_of(prompts)
        # Prompts that do not begin so are left for a later group.
        fitting = [index for index, prompt in enumerate(prompts) if prefix is None or prefix.begins(prompt)]
        group = choose_group([len(prompts[index]) for index in fitting], self.options.prefill_chunk)
        chosen = [fitting[place] for place in group]
        now_s = self._clock()
        rows = [[self._new_row(*waiting, now_s) for waiting in samples[index]] for index in chosen]
        left = [waiting for index, waiting in enumerate(samples) if index not in set(chosen)]
        self._waiting = deque(waiting for prompt in left for waiting in prompt)
        return PrefillGroup(rows, self.target, self.drafter, self.options.prefill_chunk, self._first, prefix)

    def _prefix_of(self, prompts: Sequence[Sequence[int]]) -> Prefix | None:
        """What the first prompt begins with that was read before, or is worth reading once for others that wait."""
        if self._prefix is None or not self._prefix.begins(prompts[0]):
            shared = shared_beginning(prompts)
            if not shared:
                return None
            self._prefix = read_prefix(shared, self.target, self.drafter, self.options.prefill_chunk)
        return self._prefix

    def _new_row(self, request: Request, admitted_s: float, now_s: float) -> Row:
        counts = [0] * self.options.block_size
        return Row(request, admitted_s, now_s, self._eos_token_ids, acceptance_counts=counts)

    def _prefill_turn(self, group: PrefillGroup) -> list[Generation]:
        """Reads a chunk; rows that reached their prompt's end move to slots, or are finished by their first token."""
        read = group.turn()
        for prompt in read:
            if prompt.num_following:
                self._kept = KeptPrompt(prompt, group, self.target, self.drafter)
        finished = self._join(group, [(prompt.place, row) for prompt in read for row in prompt.rows])
        if group.num_rows == 0:
            self._group = None
        return finished

    def _begin_samples(self, kept: KeptPrompt) -> list[Generation]:
        """Begins the waiting samples of the prompt that was kept for them."""
        waiting = [entry for entry in self._waiting if entry[0].key.row == kept.row]
        if not waiting:
            return []
        self._waiting = deque(entry for entry in self._waiting if entry[0].key.row != kept.row)
        now_s = self._clock()
        rows = [self._new_row(*entry, now_s) for entry in waiting]
        kept.begin(rows, self._first)
        if kept.num_following == 0:
            self._kept = None
        return self._join(kept, [(0, row) for row in rows])

    def _join(self, prompts: PrefillGroup | KeptPrompt, begun: Sequence[tuple[int, Row]]) -> list[Generation]:
        """Copies each row's caches from its prompt's place into a slot; returns the rows that need none."""
        self._is_disturbed = True
        rows = [(place, row) for place, row in begun if row.finish_reason is None]
        finished = [row.generation(row.first_token_s) for _, row in begun if row.finish_reason is not None]
        if not rows:
            return finished
        self._rules = None
        free = [slot for slot, row in enumerate(self._rows) if row is None]
        if len(free) < len(rows):
            finished += self._drain()
            free = [slot for slot, row in enumerate(self._rows) if row is None]
        if len(free) < len(rows):
            num_slots = self._bucket(len(self._rows) - len(free) + len(rows))
            free += range(len(self._rows), num_slots)
            self._rows += [None] * (num_slots - len(self._rows))
            self._slots.resize(num_slots)
        chosen, sources = free[: len(rows)], [place for place, _ in rows]
        self._slots.state.put(chosen, prompts.state, sources)
        if self._slots.context is not None and prompts.context is not None:
            self._slots.context.put(chosen, prompts.context, sources)
        self._slots.begin(chosen, [row.tokens[-1] for _, row in rows], [row.remaining_tokens for _, row in rows])
        for slot, (_, row) in zip(chosen, rows, strict=True):
            self._rows[slot] = row
        return finished

    def _round(self) -> list[Generation]:
        """Reads the round in flight, with the next one launched before that where nothing speaks against it."""
        finished = self._compact()
        if not self._num_decoding:
            return finished
        flight = self._flight or self._launch()
        self._flight = None
        self._flight = self._launch(flight) if self._may_launch_behind(flight) else None
        return finished + self._read(flight)

    def _launch(self, before: _RowsInFlight | None = None) -> _RowsInFlight:
        """Starts a round for the rows in the slots; `before` is one that was launched and not read yet."""
        if self._rules is None:
            self._rules = Rules(self._rows, self.options.logprobs)
            if before is not None:
                # What a row's tokens were when its round was launched is all that the host knows of it.
                same = [mine is theirs for mine, theirs in zip(self._rows, before.rows, strict=True)]
                self._rules.advance(before.flight.tokens, mx.where(mx.array(same), before.flight.counts, 0))
        least_behind = 0 if before is None else 1
        longest = max(row.remaining_tokens for row in self._rows if row is not None) - least_behind
        wanted = self.options.block_size if self._chooser is None else self._chooser.choose(len(self._rows))
        block = max(1, min(wanted, longest))
        launched_s = self._clock()
        flight = launch_round(
            self.target, self.drafter, self._slots, block, self._rules, self.options.coupling, self._judge
        )
        return _RowsInFlight(list(self._rows), flight, launched_s)

    def _may_launch_behind(self, before: _RowsInFlight) -> bool:
        """Whether another round can do without the tokens of this one, and rows are left for it."""
        if not self.options.ahead or any(row is not None and row.has_grammar for row in self._rows):
            return False
        # A row that this round is sure to end needs no other.
        return any(row is not None and row.remaining_tokens > 1 for row in before.rows)

    def _read(self, launched: _RowsInFlight) -> list[Generation]:
        """Waits for a round and hands its tokens to the rows that it was launched for."""
        verdict = launched.flight.read()
        now_s = self._clock()
        self._learn(launched, verdict, now_s)
        left: list[int] = []
        finished: list[Generation] = []
        for slot, row in enumerate(launched.rows):
            # A row may have ended before this round, which was in flight already.
            if row is not None and not row.is_finished and verdict.give(row, slot, launched.flight.block):
                left.append(slot)
                finished.append(row.generation(now_s))
                self._rows[slot] = None
        self._leave(left)
        self._num_rounds += 1
        if self._num_rounds % _CLEAR_CACHE_ROUNDS == 0:
            mx.clear_cache()
        return finished

    def _learn(self, launched: _RowsInFlight, verdict: Verdict, now_s: float) -> None:
        """Notes what the round cost, and what became of its drafts."""
        started_s, self._read_s = max(launched.launched_s, self._read_s), now_s
        is_disturbed, self._is_disturbed = self._is_disturbed, False
        if self._chooser is None:
            return
        block = launched.flight.block
        self._chooser.note_round(len(launched.rows), block, None if is_disturbed else now_s - started_s)
        for slot, row in enumerate(launched.rows):
            if row is not None and not row.is_finished:
                self._chooser.note_row(row.block_length(block) - 1, verdict.num_accepted[slot])

    def _drain(self) -> list[Generation]:
        """Reads the round in flight, before slots change places."""
        flight, self._flight = self._flight, None
        return [] if flight is None else self._read(flight)

    def _leave(self, slots: Sequence[int]) -> None:
        if slots:
            self._rules = None
        if not self._num_decoding:
            self._rows, self._slots, self._flight = [], self._empty_slots(), None
            return
        longest = max(row.length for row in self._rows if row is not None)
        if slots:
            self._slots.release(slots)
        for rows in self._slots.caches():
            rows.settle(longest + (0 if self._flight is None else self._flight.flight.block))

    def _compact(self) -> list[Generation]:
        """Drops empty slots that no waiting row is going to fill; returns what a round in flight finished before."""
        arriving = len(self._waiting) + (0 if self._group is None else self._group.num_rows)
        if self._wanted_slots(arriving) >= len(self._rows):
            return []
        finished = self._drain()
        wanted = self._wanted_slots(arriving)
        if wanted >= len(self._rows):
            return finished
        live = [slot for slot, row in enumerate(self._rows) if row is not None]
        keep = live + [slot for slot, row in enumerate(self._rows) if row is None][: wanted - len(live)]
        self._rules = None
        self._slots.take(keep)
        self._rows = [self._rows[slot] for slot in keep]
        return finished

    def _wanted_slots(self, arriving: int) -> int:
        return self._bucket(min(self._num_decoding + arriving, self.max_rows))

    def _bucket(self, num_rows: int) -> int:
        """Where every new shape costs (GPUs plan and compile for it), slots come in powers of two."""
        if not self.options.bucket_slots:
            return num_rows
        return min(1 << (num_rows - 1).bit_length(), self.max_rows)

    def _empty_slots(self) -> Slots:
        context = None if self.drafter is None else self.drafter.make_context(0)
        nothing = mx.zeros((0,), mx.int32)
        return Slots(self.target.make_state(0), context, nothing, nothing)
