"""One row in flight: its tokens, and the bookkeeping of passes that make them. Pure Python, no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from batchgen.types import FinishReason, Generation, Request


@dataclass(slots=True)
class Row:
    """Mutable state of one request from admission to its last token; times are the clock's seconds."""

    request: Request
    admitted_s: float
    started_s: float
    eos_token_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached_prompt_tokens: int = 0
    first_token_s: float = 0.0
    finish_reason: FinishReason | None = None
    verify_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    acceptance_counts: list[int] = field(default_factory=list)

    @property
    def remaining_tokens(self) -> int:
        return self.request.max_tokens - len(self.tokens)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_grammar(self) -> bool:
        return self.request.grammar_matcher is not None

    @property
    def min_tokens(self) -> int:
        return self.request.sampling.min_tokens

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end this row: the model's own, unless they are ignored, and the row's stop tokens."""
        sampling = self.request.sampling
        return (frozenset() if sampling.ignore_eos else self.eos_token_ids) | frozenset(sampling.stop_token_ids)

    def tail(self, width: int) -> list[int]:
        """The last `width` tokens before the newest one, or what there are."""
        num_prompt = len(self.request.tokens)
        num_before = num_prompt + len(self.tokens) - 1
        start = max(0, num_before - width)
        before = [*self.request.tokens[start:], *self.tokens[max(0, start - num_prompt) :]]
        return before[: num_before - start]

    @property
    def may_open_thinking(self) -> bool:
        """Whether a limited thinking block may still begin: all so far is what may stand before one."""
        limit = self.request.thinking_limit
        return limit is not None and not limit.is_open and limit.lead_tokens.issuperset(self.tokens)

    def thinking_end(self) -> tuple[int, int] | None:
        """While the row thinks within a limit: the number of the completion's token at which thinking ends, and the
        token that ends it. The token after an unlimited or closed block has no such number."""
        limit = self.request.thinking_limit
        if limit is None or limit.close_token in self.tokens:
            return None
        if limit.is_open:
            return limit.max_tokens, limit.close_token
        place = next((place for place, token in enumerate(self.tokens) if token not in limit.lead_tokens), None)
        if place is None or self.tokens[place] != limit.open_token:
            return None
        return place + 1 + limit.max_tokens, limit.close_token

    @property
    def length(self) -> int:
        """Tokens in the target's caches while decoding: all but the last, which anchors the next block."""
        return len(self.request.tokens) + len(self.tokens) - 1

    def block_length(self, block_size: int) -> int:
        """Anchor and drafts of the next pass: a draft past the budget could never be emitted."""
        return max(1, min(block_size, self.remaining_tokens))

    def begin(self, token: int, now_s: float, logprobs: Sequence[float] = ()) -> None:
        """Takes the first token, which the prompt's pass yields."""
        self.first_token_s = now_s
        self._append([token], logprobs)

    def emit(self, tokens: Sequence[int], num_accepted: int, block_length: int, logprobs: Sequence[float] = ()) -> None:
        """Takes one verify pass: the block's tokens, of which the first `num_accepted` are drafts that stand and the
        next is the target's own.

        The run stops behind an end token or a complete stop string. The run's last token counts as the target's own, so
        that len(tokens) == 1 + accepted_tokens + verify_passes always holds, and what is cut off counts nowhere.
        """
        accepted = self._append(tokens[: num_accepted + 1], logprobs) - 1
        drafted = block_length - 1
        if self.finish_reason is not None:
            # At the end token's own place a draft counts only if it was another token, and so rejected.
            drafted = min(drafted, accepted + (accepted == num_accepted))
        self.verify_passes += 1
        self.accepted_tokens += accepted
        self.drafted_tokens += drafted
        self.acceptance_counts[accepted] += 1

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float]) -> int:
        """Appends up to an end token, a complete stop string or the budget; returns how many."""
        count = 0
        end_token_ids, matcher = self.end_token_ids, self.request.stop_matcher
        while count < len(tokens) and self.finish_reason is None:
            token = tokens[count]
            self.tokens.append(token)
            count += 1
            if token in end_token_ids or (matcher is not None and matcher.push(token)):
                self.finish_reason = "stop"
            elif self.remaining_tokens == 0:
                # What the matcher held back, for it could have become something else, is text now.
                self.finish_reason = "stop" if matcher is not None and matcher.finish() else "length"
        self.logprobs += logprobs[:count]
        if self.request.grammar_matcher is not None and self.finish_reason is None:
            self.request.grammar_matcher.advance(tokens[:count])
        return count

    def generation(self, now_s: float) -> Generation:
        """The finished row."""
        assert self.finish_reason is not None
        return Generation(
            key=self.request.key,
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.request.tokens),
            cached_prompt_tokens=self.cached_prompt_tokens,
            verify_passes=self.verify_passes,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            acceptance_counts=tuple(self.acceptance_counts),
            prefill_s=self.first_token_s - self.started_s,
            decode_s=now_s - self.first_token_s,
            queue_s=self.started_s - self.admitted_s,
            logprobs=tuple(self.logprobs) or None,
        )
