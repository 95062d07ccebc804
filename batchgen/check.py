"""Everything about a job that can be found out without loading weights, and whether its output can be written.

Reads the input and the models' small files; writes nothing that stays. Whatever would refuse a run refuses the check in
the same words, for both ask the same functions.
"""

import fnmatch
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchgen.errors import OutputError
from batchgen.hub import resolve_model
from batchgen.job.spec import Job
from batchgen.prompts.encode import Codec
from batchgen.prompts.files import InputFile
from batchgen.prompts.read import InputTable
from batchgen.types import Prompt, RowError

MAX_MESSAGES = 5
MAX_SAMPLE_CHARACTERS = 2000

# Asks whether an engine can decode with this model and drafter (or none), given the tokenizer's vocabulary size.
PairCheck = Callable[[Path, Path | None, int], None]


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Prompt lengths in tokens, over the rows that can run."""

    least: int
    median: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. `num_selected` are the rows that `where` lets in; bad rows are among them."""

    job: Job
    num_files: int
    num_rows: int
    num_selected: int
    error_counts: tuple[tuple[str, int], ...]
    error_messages: tuple[str, ...]
    lengths: TokenLengths | None
    context_length: int | None
    num_short_budget: int
    """Rows whose completion may be cut short, for prompt and max_tokens together exceed the context."""
    sample_text: str | None
    sample_tokens: int

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
            *(f"               {message}" for message in self.error_messages),
            f"prompt tokens  {self._lengths()}",
            f"context        {self._context()}",
            f"output         {self.job.output.path} can be written",
            *self._sample(),
        ]

    def _input(self) -> str:
        files = "1 file" if self.num_files == 1 else f"{self.num_files} files"
        selected = "" if self.job.input.where is None else f", {self.num_selected} after where"
        return f"{files}, {self.num_rows} rows{selected}"

    def _errors(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.error_counts)
        return f"{self.num_errors} ({kinds})" if kinds else "0"

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
        budget = f"max_tokens {self.job.sampling.max_tokens}"
        if not self.num_short_budget:
            return f"{self.context_length}, enough with {budget} for every prompt that can run"
        return f"{self.context_length}, {self.num_short_budget} rows leave less than {budget}"

    def _sample(self) -> list[str]:
        if self.sample_text is None:
            return []
        shown = self.sample_text[:MAX_SAMPLE_CHARACTERS]
        cut = " (its beginning)" if len(shown) < len(self.sample_text) else ""
        return [
            f"first prompt   {self.sample_tokens} tokens{cut}:",
            *(f"    {line}" for line in shown.splitlines()),
        ]


def check(job: Job, check_pair: PairCheck) -> CheckReport:
    """Looks at all of a job but the weights.

    `check_pair` is the engine's. Raises what a run would raise: OutputError, InputError, ModelError.
    """
    table = InputTable.open(job.input)
    verify_output(Path(job.output.path), table.files, job.input.paths)
    if job.report.group_by is not None:
        table.require_kept(job.report.group_by, "report.group_by")
    model = resolve_model(job.model, job.revision, "model")
    drafter = None if job.drafter is None else resolve_model(job.drafter, job.drafter_revision, "drafter")
    codec = Codec.for_input(model.path, job.input)
    check_pair(model.path, None if drafter is None else drafter.path, codec.vocab_size)
    return _survey(job, table, codec)


def verify_output(path: Path, files: Sequence[InputFile], sources: Sequence[str] = ()) -> None:
    """Raises OutputError if the output cannot be written, is one of the inputs, or would become one.

    `sources` are the job's input paths as they are written there; a folder or glob among them must not find the output.
    """
    if path.is_dir():
        raise OutputError(f"output.path: {path} is a folder; name a file that ends in .parquet")
    if path.exists():
        same = next((file.path for file in files if path.samefile(file.path)), None)
        if same is not None:
            raise OutputError(f"output.path: {path} is the input {same}; choose another path")
    for source in sources:
        if _finds(source, path):
            raise OutputError(
                f"output.path: {path} would be read as input when the job goes on, for input.path {source} finds it; "
                "write elsewhere"
            )
    _require_writable(path)


def _finds(source: str, path: Path) -> bool:
    """Whether an input folder or glob would find a file at `path`, or what the run folder beside it holds."""
    folder, target = Path(source).expanduser(), path.absolute()
    if folder.is_dir():
        return target.parent.resolve().is_relative_to(folder.resolve())
    if folder.exists():
        return False
    pattern = folder.absolute().parts
    # A glob that finds a folder stands for the files in it.
    return any(_matches(place.parts, pattern) for place in (target, *target.parents))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a glob, part by part; `**` stands for any number of parts."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _require_writable(path: Path) -> None:
    """Tries a file without a name in the nearest folder that is there already."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise OutputError(f"output.path: {path} cannot be written, for {folder} is not a folder")
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise OutputError(f"output.path: {path} cannot be written: {folder}: {error.strerror or error}") from error


def _survey(job: Job, table: InputTable, codec: Codec) -> CheckReport:
    counts: Counter[str] = Counter()
    messages: list[str] = []
    lengths = array("q")
    num_short_budget = 0
    sample: tuple[Prompt, int] | None = None
    for prompt in table.prompts():
        tokens = codec.encode(prompt)
        if isinstance(tokens, RowError):
            counts[tokens.kind] += 1
            messages += [tokens.message] if len(messages) < MAX_MESSAGES else []
            continue
        lengths.append(len(tokens))
        num_short_budget += codec.completion_budget(len(tokens), job.sampling.max_tokens) < job.sampling.max_tokens
        sample = sample or (prompt, len(tokens))
    text = None if sample is None else codec.render(sample[0])
    assert not isinstance(text, RowError)
    return CheckReport(
        job=job,
        num_files=len(table.files),
        num_rows=table.num_rows,
        num_selected=table.count(),
        error_counts=tuple(sorted(counts.items())),
        error_messages=tuple(messages),
        lengths=_lengths(sorted(lengths)),
        context_length=codec.context_length,
        num_short_budget=num_short_budget,
        sample_text=text,
        sample_tokens=0 if sample is None else sample[1],
    )


def _lengths(ordered: Sequence[int]) -> TokenLengths | None:
    """Nearest-rank percentiles of ascending lengths."""
    if not ordered:
        return None

    def rank(percent: int) -> int:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return TokenLengths(ordered[0], rank(50), rank(95), ordered[-1])
