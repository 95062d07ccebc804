"""What may stand in a job file: keys, types, defaults, ranges.

The one description of a job; the JSON schema and the errors of `load` come from it. It reads no file but what it is
given: whether a path, a column or a model exists is found out by the rooms that use them. No key is accepted that has
no effect.
"""

import re
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

import jinja2
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from batchgen.job.sampling import SamplingSpec as SamplingSpec
from batchgen.job.section import MAX_INT32, Section, Text, no_repeats, not_blank, problem

_MEMORY = re.compile(r"([0-9]*\.?[0-9]+)\s*(MB|GB|TB)")
_BYTES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def _template(value: str) -> str:
    try:
        jinja2.Environment().parse(value)
    except jinja2.TemplateSyntaxError as error:
        line = f" (line {error.lineno} of the template)" if "\n" in value.strip() else ""
        raise problem(f"must be a Jinja template: {(error.message or 'syntax error').rstrip('.')}{line}") from None
    except RecursionError:
        raise problem("must be a Jinja template: it is nested too deeply") from None
    return value


def _duration(value: Any) -> float:
    """Seconds, from `30s`, `500ms`, `5m`, `2h` or a number of seconds."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        value = float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise problem("must be a duration above 0, such as 30s, 5m or a number of seconds")
    return float(value)


# No drafter is of use so far ahead, and a pass over longer blocks costs much more than it can bring.
MAX_BLOCK_SIZE = 64


def _auto_or_int(least: int, most: int | None = None) -> BeforeValidator:
    words = f"of at least {least}" if most is None else f"from {least} to {most}"

    def check(value: Any) -> Any:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if value != "auto" and not (is_int and least <= value and (most is None or value <= most)):
            raise problem(f"must be auto or a whole number {words}")
        return value

    return BeforeValidator(check)


def _auto_or_int_schema(least: int, most: int | None = None) -> WithJsonSchema:
    bounds = {"minimum": least} | ({} if most is None else {"maximum": most})
    return WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer"} | bounds]})


def _parquet_path(value: str) -> str:
    if value.endswith(("/", "\\")):
        raise problem("must be a file whose name ends in .parquet, not a folder")
    if PurePath(value).suffix != ".parquet" or PurePath(value).name == ".parquet":
        raise problem("must be a file whose name ends in .parquet")
    return value


def _path_or_paths(value: Any) -> Any:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise problem("must be a path or a list of paths")
    for path in paths:
        not_blank(path)
    no_repeats(paths)
    return value


def _memory(value: Any) -> Any:
    """`auto`, or bytes from a size such as `40GB`."""
    match = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        return int(float(match[1]) * _BYTES[match[2]])
    is_bytes = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value != "auto" and not is_bytes:
        raise problem("must be auto or a size above 0, such as 40GB or 900MB")
    return value


Memory = Annotated[
    Literal["auto"] | int,
    BeforeValidator(_memory),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["auto", "40GB"]}),
]
Template = Annotated[Text, AfterValidator(_template)]
Duration = Annotated[
    float, BeforeValidator(_duration), WithJsonSchema({"type": ["string", "number"], "examples": ["30s", "5m", 30]})
]


class InputSpec(Section):
    """Where the prompts come from and how a row becomes one."""

    path: Annotated[str | list[str], BeforeValidator(_path_or_paths)]
    """Parquet file, glob, or folder, or a list of them."""
    id: Text | None = None
    """Column that names each row: whole numbers or text, never null, never twice."""
    prompt: Template | None = None
    """Jinja template over the columns. Exactly one of prompt, column, messages."""
    column: Text | None = None
    """Column whose text is the prompt as it is."""
    messages: Text | None = None
    """Column of conversations: list of struct with role and content."""
    system: Text | None = None
    """System message before every prompt, as it is; needs the chat template."""
    where: Text | None = None
    """SQL expression over one row's columns; rows for which it is not true do not exist for the job."""
    keep: Annotated[list[Text], AfterValidator(no_repeats)] | None = None
    """Columns carried to the output unchanged; all if omitted."""
    chat: bool | None = None
    """Whether prompts go through the model's chat template; if omitted, wherever the tokenizer has one."""

    @property
    def paths(self) -> tuple[str, ...]:
        """`path` as a list, whichever way it was written."""
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in ("prompt", "column", "messages") if getattr(self, name) is not None]
        if not given:
            raise problem("must have one of prompt, column, messages")
        if len(given) > 1:
            raise problem(f"must have only one of prompt, column, messages, and has {' and '.join(given)}")
        if self.chat is False and self.messages is not None:
            raise problem("messages need the chat template, and chat: false turns it off")
        if self.chat is False and self.system is not None:
            raise problem("system needs the chat template, and chat: false turns it off")
        return self


class OutputSpec(Section):
    """Where completions go, and how often they are made durable."""

    path: Annotated[Text, AfterValidator(_parquet_path)]
    """The Parquet file to write; its run folder stands beside it."""
    checkpoint_every: Duration = 30.0
    """Seconds between commits: 30s, 5m, or a number of seconds."""
    token_ids: bool = False
    """Whether the output has the completion's token ids."""
    logprobs: bool = False
    """Whether the output has the log-probability of each token of the completion."""


class WeightsSpec(Section):
    """How the model's weights are quantized when they are read: affine, in groups along each row."""

    bits: Literal[2, 3, 4, 5, 6, 8]
    """Bits of a weight."""
    group_size: Literal[32, 64, 128] = 64
    """Weights that share a scale and an offset."""


class EngineSpec(Section):
    """How the machine is used. Only `dtype` and `weights` change answers, and `block_size` under rejection."""

    max_rows: Annotated[Literal["auto"] | int, _auto_or_int(1), _auto_or_int_schema(1)] = "auto"
    """The most rows decoded at once."""
    block_size: Annotated[
        Literal["auto"] | int, _auto_or_int(2, MAX_BLOCK_SIZE), _auto_or_int_schema(2, MAX_BLOCK_SIZE)
    ] = "auto"
    """Positions that one verify pass checks: a row's last token and its drafts."""
    prefill_chunk: int = Field(default=512, ge=1, le=MAX_INT32)
    """Prompt tokens per pass."""
    memory: Memory = "auto"
    """The most memory to take, models included: 40GB, 900MB; auto is nine tenths of what the machine has."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic of the weights; auto is float32 for unquantized weights on a CPU, and else the checkpoint's."""
    weights: WeightsSpec | None = None
    """Quantizes an unquantized model while it is read; as it is if omitted."""
    drafter_bits: Literal[4, 8] | None = None
    """Bits of the drafter's weights, quantized while they are read; as they are if omitted."""


class ReportSpec(Section):
    """What the closing table shows."""

    group_by: Text | None = None
    """A kept column by whose values the table is split."""


class Job(Section):
    """One job file."""

    name: Text
    """Name of the job; the file's if omitted."""
    model: Text
    """Hub id, or folder with config.json, tokenizer and .safetensors files."""
    revision: Text | None = None
    """Revision of the model on the Hub."""
    drafter: Text | None = None
    """Hub id or folder of a drafter; plain decoding if omitted."""
    drafter_revision: Text | None = None
    """Revision of the drafter on the Hub."""
    input: InputSpec
    sampling: SamplingSpec = SamplingSpec()
    output: OutputSpec
    engine: EngineSpec = EngineSpec()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.drafter_revision is not None and self.drafter is None:
            raise problem("drafter_revision is given without a drafter")
        if self.engine.block_size != "auto" and self.drafter is None:
            raise problem("engine.block_size is given without a drafter, and would have no effect")
        if self.engine.drafter_bits is not None and self.drafter is None:
            raise problem("engine.drafter_bits is given without a drafter, and would have no effect")
        if self.sampling.coupling == "rejection" and self.drafter is None:
            raise problem("sampling.coupling: rejection is given without a drafter, and would have no effect")
        group_by, keep = self.report.group_by, self.input.keep
        if group_by is not None and keep is not None and group_by not in keep:
            raise problem(f"report.group_by names {group_by}, which input.keep does not carry to the output")
        return self
