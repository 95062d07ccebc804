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
    num_prefilled: int = 0
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
    def length(self) -> int:
        """Tokens in the target's caches while decoding: all but the last, which anchors the next block."""
        return len(self.request.tokens) + len(self.tokens) - 1

    def block_length(self, block_size: int) -> int:
        """Anchor and drafts of the next pass: a draft past the budget could never be emitted."""
        return max(1, min(block_size, self.remaining_tokens))

    def begin(self, token: int, now_s: float) -> None:
        """Takes the first token, which the prompt's pass yields."""
        self.first_token_s = now_s
        self._append([token])

    def emit(self, choice: Sequence[int], num_accepted: int, block_length: int) -> None:
        """Takes one verify pass: the target's choice at each position of the block, of which drafts matched the first
        `num_accepted`.

        The run stops behind an end token. The run's last token counts as the target's own, so that
        len(tokens) == 1 + accepted_tokens + verify_passes always holds, and what is cut off counts nowhere.
        """
        accepted = self._append(choice[: num_accepted + 1]) - 1
        drafted = block_length - 1
        if self.finish_reason is not None:
            # At the end token's own place a draft counts only if it was another token, and so rejected.
            drafted = min(drafted, accepted + (accepted == num_accepted))
        self.verify_passes += 1
        self.accepted_tokens += accepted
        self.drafted_tokens += drafted
        self.acceptance_counts[accepted] += 1

    def _append(self, tokens: Sequence[int]) -> int:
        """Appends up to the end token or the budget; returns how many."""
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if token in self.eos_token_ids:
                self.finish_reason = "stop"
            elif self.remaining_tokens == 0:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return count
        return len(tokens)

    def generation(self, now_s: float) -> Generation:
        """The finished row."""
        assert self.finish_reason is not None
        return Generation(
            key=self.request.key,
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.request.tokens),
            cached_prompt_tokens=0,
            verify_passes=self.verify_passes,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            acceptance_counts=tuple(self.acceptance_counts),
            prefill_s=self.first_token_s - self.started_s,
            decode_s=now_s - self.first_token_s,
            queue_s=self.started_s - self.admitted_s,
        )
