"""Every error a user can meet, and the exit code it leads to.

    BatchgenError            3   the run failed and can be resumed
      JobError               2   the job file is wrong; nothing ran
      InputError             2   the input cannot be read as the job says; nothing ran
      OutputError            2   the output path cannot be used; nothing ran
      ModelError             2   model or drafter cannot be used; nothing ran
      RunLockedError         2   another process writes this run folder; nothing ran
      FingerprintError       2   the run folder belongs to a job with other answers; nothing ran
      InputLostError         3   the input was changed or became unreadable while the run was using it
      JournalError           3   the run folder cannot be written, or its rows contradict each other
        RunFolderError       2   what stands in the run's place cannot be gone on with; nothing ran
      EngineError            3   decoding failed as a whole

A message is one sentence that says where, what was found and what to do. A bad row is never an
exception past the loop: it is a result with `status`, `error_kind` and `error_message`.
"""

from typing import ClassVar

EXIT_DONE = 0
EXIT_ERROR_ROWS = 1
EXIT_REFUSED = 2
EXIT_FAILED = 3
EXIT_INTERRUPTED = 130

# What helps where an input file is no longer what a job began with.
PUT_BACK = "put the original file back, then run again"


class BatchgenError(Exception):
    """Base of all errors that end a command with one sentence."""

    exit_code: ClassVar[int] = EXIT_FAILED


class JobError(BatchgenError):
    """The job file is missing, is not valid YAML, or holds a key or value that cannot stand."""

    exit_code = EXIT_REFUSED


class InputError(BatchgenError):
    """The input files are missing, unreadable, or lack a column that the job names."""

    exit_code = EXIT_REFUSED


class OutputError(BatchgenError):
    """The output path cannot be written, or is one of the inputs."""

    exit_code = EXIT_REFUSED


class ModelError(BatchgenError):
    """The model or drafter is missing, unsupported, or the two do not fit each other."""

    exit_code = EXIT_REFUSED


class RunLockedError(BatchgenError):
    """Another live process holds the run folder's lock."""

    exit_code = EXIT_REFUSED


class FingerprintError(BatchgenError):
    """The run folder was begun by a job that gives other answers."""

    exit_code = EXIT_REFUSED


class InputLostError(BatchgenError):
    """The input was good when the run began, and is now changed or cannot be read; rows that are done are kept."""


class JournalError(BatchgenError):
    """A write to the run folder failed, or what stands there contradicts itself."""


class RunFolderError(JournalError):
    """The run folder is damaged, of a newer batchgen, unreadable or no folder, found before anything ran."""

    exit_code = EXIT_REFUSED


class EngineError(BatchgenError):
    """Decoding failed for the whole batch, not for one row."""
