"""What a run takes from the models' side: folders, checks, text codec, decoder. Named here so that tests can stand in.

The engine is imported only where it is asked for, so that commands that decode nothing start fast.
"""

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from batchgen.hub import ModelFolder, resolve_model
from batchgen.job.spec import EngineSpec, InputSpec, Job
from batchgen.prompts.encode import Codec
from batchgen.schedule.loop import Codec as LoopCodec
from batchgen.types import Decoder, Prompt, RowError, Sampling

if TYPE_CHECKING:
    from batchgen.engine import EngineOptions

PACKAGES = ("batchgen", "mlx", "mlx-lm", "pyarrow", "transformers")

Facts = Mapping[str, str | int | float | None]


class TextCodec(LoopCodec, Protocol):
    """The loop's codec, and what else a run has to know of the tokenizer. `identity` is what of it changes answers."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int | None:
        """Tokens that the model can attend to; None if its configuration names none."""
        ...

    def require(self, sampling: Sampling, columns: Mapping[str, str]) -> None:
        """Raises JobError if the model cannot serve a job's own sampling values, or the keys that name columns."""
        ...

    def render(self, prompt: Prompt) -> str | RowError:
        """The text that is tokenized."""
        ...

    def pin_time(self, time: str) -> None:
        """Lets chat templates that ask for the date read this one (ISO) from now on."""
        ...

    @property
    def identity(self) -> Mapping[str, str | int | float | bool | None]: ...


class ReportingDecoder(Decoder, Protocol):
    """A decoder that tells facts about itself and its machine, and what could make it faster, a sentence each."""

    def summary(self) -> Facts: ...

    def hints(self) -> Sequence[str]: ...


class Backend(Protocol):
    """The models' side of a run."""

    def resolve_model(self, name: str, revision: str | None, what: Literal["model", "drafter"]) -> ModelFolder: ...

    def check_pair(self, model: Path, drafter: Path | None, vocab_size: int) -> None: ...

    def dtype_of(self, model: Path, engine: EngineSpec) -> str:
        """The arithmetic that `load_decoder` would choose on this machine; ModelError if the model has none such."""
        ...

    def load_codec(self, folder: Path, spec: InputSpec) -> TextCodec: ...

    def load_decoder(
        self,
        model: Path,
        drafter: Path | None,
        job: Job,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float],
    ) -> ReportingDecoder: ...


class MlxBackend:
    """The real one: Hub or folders, the checkpoint's own tokenizer, decoding with mlx."""

    def resolve_model(self, name: str, revision: str | None, what: Literal["model", "drafter"]) -> ModelFolder:
        return resolve_model(name, revision, what)

    def check_pair(self, model: Path, drafter: Path | None, vocab_size: int) -> None:
        from batchgen import engine

        engine.check_pair(model, drafter, vocab_size)

    def dtype_of(self, model: Path, engine: EngineSpec) -> str:
        from batchgen import engine as engine_room

        return engine_room.dtype_of(model, None if engine.dtype == "auto" else engine.dtype, _weights(engine))

    def load_codec(self, folder: Path, spec: InputSpec) -> TextCodec:
        return Codec.for_input(folder, spec)

    def load_decoder(
        self,
        model: Path,
        drafter: Path | None,
        job: Job,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float],
    ) -> ReportingDecoder:
        from batchgen import engine as engine_room

        return engine_room.load(model, drafter, engine_options(job, eos_token_ids, clock))


def _weights(engine: EngineSpec) -> tuple[int, int] | None:
    return None if engine.weights is None else (engine.weights.bits, engine.weights.group_size)


def engine_options(job: Job, eos_token_ids: frozenset[int], clock: Callable[[], float]) -> "EngineOptions":
    """What of a job is the engine's, as the engine takes it, `auto` being None there."""
    from batchgen.engine import EngineOptions

    engine = job.engine
    return EngineOptions(
        eos_token_ids=eos_token_ids,
        clock=clock,
        max_rows=None if engine.max_rows == "auto" else engine.max_rows,
        block_size=None if engine.block_size == "auto" else engine.block_size,
        prefill_chunk=engine.prefill_chunk,
        dtype=None if engine.dtype == "auto" else engine.dtype,
        weights=_weights(engine),
        memory=None if engine.memory == "auto" else engine.memory,
        drafter_bits=engine.drafter_bits,
        coupling=job.sampling.coupling,
        logprobs=job.output.logprobs,
    )


def versions() -> dict[str, str]:
    """Versions of what makes the answers, for the final file's metadata."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}
