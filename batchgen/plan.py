"""A job whose input, output, models and tokenizer were found good: what run, check and bench all begin with.

Reads the input and the models' small files, never weights; writes nothing. What is cheap to refuse is refused first, so
that nothing is fetched for a job that cannot run.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from batchgen.backend import Backend, TextCodec
from batchgen.destination import verify_output
from batchgen.hub import ModelFolder
from batchgen.job.fingerprint import Scalar, fingerprint
from batchgen.job.load import load_job, told_with_line
from batchgen.job.spec import Job
from batchgen.journal.record import InputRecord
from batchgen.prompts.read import InputTable
from batchgen.schema import OPTIONAL_COLUMNS, result_schema


@dataclass(frozen=True, slots=True)
class Models:
    """The folders of model and drafter, which fit each other, and the model's tokenizer."""

    model: ModelFolder
    drafter: ModelFolder | None
    codec: TextCodec

    @property
    def drafter_path(self) -> Path | None:
        return None if self.drafter is None else self.drafter.path


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run needs to begin."""

    job: Job
    table: InputTable
    output: Path
    models: Models

    @property
    def codec(self) -> TextCodec:
        return self.models.codec

    @property
    def final_schema(self) -> pa.Schema:
        """The output's columns: the carried ones, then the result columns, with the optional ones asked for."""
        return pa.schema([*self.table.kept_schema, *result_schema(_optional_columns(self.job))])

    def fingerprint(self, backend: Backend) -> dict[str, Scalar]:
        """What of it changes answers, on this machine."""
        return fingerprint(
            self.job,
            model=self.models.model.identity,
            codec=self.codec.identity,
            inputs=self.table.identity(),
            dtype=backend.dtype_of(self.models.model.path, self.job.engine),
            drafter=None if self.models.drafter is None else self.models.drafter.identity,
        )

    def input_records(self) -> list[InputRecord]:
        """The input files as a run folder records them."""
        return [InputRecord(**asdict(file) | {"path": str(file.path)}) for file in self.table.files]


def open_models(job: Job, backend: Backend) -> Models:
    """Finds model and drafter and reads the tokenizer.

    Raises ModelError if they cannot be decoded with, and JobError if the job's own sampling cannot.
    """
    model = backend.resolve_model(job.model, job.revision, "model")
    drafter = None
    if job.drafter is not None:
        drafter = backend.resolve_model(job.drafter, job.drafter_revision, "drafter")
    models = Models(model, drafter, backend.load_codec(model.path, job.input))
    backend.check_pair(model.path, models.drafter_path, models.codec.vocab_size)
    models.codec.require(job.sampling.defaults(), job.sampling.columns())
    return models


def make_plan(job: Job, backend: Backend) -> Plan:
    """Opens all that the job names. Raises JobError, InputError, OutputError or ModelError."""
    table = InputTable.open(job.input, job.sampling)
    table.require_not_kept(_optional_columns(job))
    if job.report.group_by is not None:
        table.require_kept(job.report.group_by, "report.group_by")
    output = Path(job.output.path)
    verify_output(output, table.files, job.input.paths)
    return Plan(job, table, output, open_models(job, backend))


def plan_job(path: Path, backend: Backend) -> Plan:
    """`make_plan` of the job in a file; what is wrong with a key of it is told with its line."""
    job = load_job(path)
    with told_with_line(path):
        return make_plan(job, backend)


def _optional_columns(job: Job) -> list[str]:
    return [name for name, _, _ in OPTIONAL_COLUMNS if getattr(job.output, name)]
