"""What of a job, its model and its input changes answers, as flat keys that can be compared.

A run folder may only be gone on with under an equal fingerprint. What only changes speed, or which columns are carried
along, is left out: drafter, batch and block sizes, prefill chunks, kept columns, names and paths.
"""

import json
from collections.abc import Mapping
from typing import Any

from batchgen.job.spec import Job

_MAX_LINES = 20
_SHOWN_WIDTH = 120
_ABSENT = "(absent)"

Scalar = str | int | float | bool | None


def fingerprint(
    job: Job,
    *,
    model: Mapping[str, Scalar],
    codec: Mapping[str, Scalar],
    inputs: Mapping[str, Scalar],
    dtype: str,
) -> dict[str, Scalar]:
    """Dotted keys to JSON scalars.

    `model` is the identity of the model's files, `codec` that of its tokenizer and chat template and whether prompts go
    through it, `inputs` that of the input's content (the run folder compares the list of files itself). `dtype` is the
    arithmetic that the engine uses here: `auto` is another one on another kind of machine.
    """
    values: dict[str, Scalar] = {
        "input.prompt": job.input.prompt,
        "input.column": job.input.column,
        "input.messages": job.input.messages,
        "input.system": job.input.system,
        "input.where": job.input.where,
        "sampling.max_tokens": job.sampling.max_tokens,
        "sampling.temperature": job.sampling.temperature,
        "sampling.seed": job.sampling.seed,
        "engine.dtype": dtype,
    }
    for prefix, identity in (("model", model), ("codec", codec), ("input", inputs)):
        values |= {f"{prefix}.{key}": value for key, value in identity.items()}
    return values


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Lines such as `sampling.temperature: 0.0 -> 0.7`, one for each key that differs; empty if none does."""
    keys = [*old, *(key for key in new if key not in old)]
    lines = [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in keys
        if (key in old) != (key in new) or not _equal(old.get(key), new.get(key))
    ]
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"and {len(lines) - _MAX_LINES} more"]
    return lines


def _equal(old: Any, new: Any) -> bool:
    return type(old) is type(new) and bool(old == new)


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return _ABSENT
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= _SHOWN_WIDTH else text[: _SHOWN_WIDTH - 3] + "..."
