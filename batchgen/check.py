"""What can be told of a job's rows without loading weights: which are bad, how long they are, how one is rendered.

Reads and writes nothing that stays. What would refuse a run refuses the plan, before it comes here.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.backend import TextCodec
from batchgen.job.spec import Job
from batchgen.plan import Plan
from batchgen.prompts.read import InputTable
from batchgen.types import Prompt, RowError

MAX_MESSAGES = 5
MAX_SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Prompt lengths in tokens, over the rows that can run."""

    least: int
    median: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. `num_selected` are the rows that `where` lets in, bad ones among them; `num_outputs` the rows
    of the output, one for each sample."""

    job: Job
    num_files: int
    num_rows: int
    num_selected: int
    num_outputs: int
    error_counts: tuple[tuple[str, int], ...]
    error_messages: tuple[str, ...]
    lengths: TokenLengths | None
    context_length: int | None
    num_short_budget: int
    """Rows whose completion may be cut short, for prompt and max_tokens together exceed the context."""
    shown_text: str | None
    shown_tokens: int

    @property
    def num_errors(self) -> int:
        """Rows that will have no completion."""
        return sum(count for _, count in self.error_counts)

    def lines(self) -> list[str]:
        """The report as text."""
        return [
            f"job            {self.job.name}",
            f"model          {self.job.model}"
            + (f", drafter {self.job.drafter}" if self.job.drafter else ", no drafter"),
            f"input          {self._input()}",
            f"bad rows       {self._errors()}",
            *(f"               {message}" for message in self._messages()),
            f"prompt tokens  {self._lengths()}",
            f"context        {self._context()}",
            f"output         {self.job.output.path} can be written",
            *self._first_prompt(),
        ]

    def _input(self) -> str:
        files = "1 file" if self.num_files == 1 else f"{self.num_files} files"
        selected = "" if self.job.input.where is None else f", {self.num_selected} after where"
        samples = "" if self.num_outputs == self.num_selected else f"; {self.num_outputs} rows of output"
        return f"{files}, {self.num_rows} rows{selected}{samples}"

    def _errors(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.error_counts)
        return f"{self.num_errors} ({kinds})" if kinds else "0"

    def _messages(self) -> list[str]:
        num_more = self.num_errors - len(self.error_messages)
        return [*self.error_messages, *([f"and {num_more} more"] if num_more else [])]

    def _lengths(self) -> str:
        if self.lengths is None:
            return "no row can run"
        return (
            f"min {self.lengths.least}, median {self.lengths.median}, p95 {self.lengths.p95}, max {self.lengths.most}"
        )

    def _context(self) -> str:
        if self.context_length is None:
            return "unknown, the model's configuration names none"
        if self.lengths is None:
            return str(self.context_length)
        budget = f"max_tokens {self.job.sampling.defaults().max_tokens}"
        if "max_tokens" in self.job.sampling.columns():
            budget = "their max_tokens"
        if not self.num_short_budget:
            return f"{self.context_length}, enough with {budget} for every prompt that can run"
        return f"{self.context_length}, {self.num_short_budget} rows leave less than {budget}"

    def _first_prompt(self) -> list[str]:
        if self.shown_text is None:
            return []
        shown = self.shown_text[:MAX_SHOWN_CHARACTERS]
        cut = " (its beginning)" if len(shown) < len(self.shown_text) else ""
        return [
            f"first prompt   {self.shown_tokens} tokens{cut}:",
            *(f"    {line}" for line in shown.splitlines()),
        ]


def check(plan: Plan) -> CheckReport:
    """Looks at every row of a plan: what it would be decoded from, or why it would not be."""
    return _survey(plan.job, plan.table, plan.codec)


def _survey(job: Job, table: InputTable, codec: TextCodec) -> CheckReport:
    counts: Counter[str] = Counter()
    messages: list[str] = []
    lengths = array("q")
    num_short_budget = 0
    shown: tuple[Prompt, int] | None = None
    for prompt in table.prompts():
        requests = codec.requests(prompt, [0])
        if isinstance(requests, RowError):
            counts[requests.kind] += 1
            messages += [requests.message] if len(messages) < MAX_MESSAGES else []
            continue
        (request,) = requests
        lengths.append(len(request.tokens))
        num_short_budget += request.max_tokens < prompt.sampling.max_tokens
        shown = shown or (prompt, len(request.tokens))
    text = None if shown is None else codec.render(shown[0])
    assert not isinstance(text, RowError)
    return CheckReport(
        job=job,
        num_files=len(table.files),
        num_rows=table.num_rows,
        num_selected=table.count(),
        num_outputs=table.count_outputs(),
        error_counts=tuple(sorted(counts.items())),
        error_messages=tuple(messages),
        lengths=_lengths(sorted(lengths)),
        context_length=codec.context_length,
        num_short_budget=num_short_budget,
        shown_text=text,
        shown_tokens=0 if shown is None else shown[1],
    )


def _lengths(ordered: Sequence[int]) -> TokenLengths | None:
    """Nearest-rank percentiles of ascending lengths."""
    if not ordered:
        return None

    def rank(percent: int) -> int:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return TokenLengths(ordered[0], rank(50), rank(95), ordered[-1])
