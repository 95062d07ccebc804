"""What of a job, its model and its input changes answers, as flat keys that can be compared.

A run folder may only be gone on with under an equal fingerprint. What only changes speed, or which columns are carried
along, is left out: batch sizes, prefill chunks, kept columns, names, paths. Drafter and block size count only under
rejection, the id column only where rows are sampled, since noise is made of it. Token ids are in every part, so whether
they are shown may change; log-probabilities are there only if they were asked for.
"""

import json
from collections.abc import Mapping
from typing import Any

from batchgen.job.sampling import SamplingSpec
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
    drafter: Mapping[str, Scalar] | None,
) -> dict[str, Scalar]:
    """Dotted keys to JSON scalars.

    `model` is the identity of the model's files, `codec` that of its tokenizer and chat template and whether prompts go
    through it, `inputs` that of the input's content (the run folder compares the list of files itself). `dtype` is the
    arithmetic that the engine uses here: `auto` is another one on another kind of machine. `drafter` is the identity of
    the drafter's files, None without one.
    """
    values: dict[str, Scalar] = {
        "input.prompt": job.input.prompt,
        "input.column": job.input.column,
        "input.messages": job.input.messages,
        "input.system": job.input.system,
        "input.where": job.input.where,
        **_sampling_values(job.sampling),
        "output.logprobs": job.output.logprobs,
        "engine.dtype": dtype,
    }
    if job.sampling.is_sampled:
        values["input.id"] = job.input.id
    identities = [("model", model), ("codec", codec), ("input", inputs)]
    if job.sampling.coupling == "rejection":
        values["engine.block_size"] = job.engine.block_size
        identities.append(("drafter", drafter or {}))
    for prefix, identity in identities:
        values |= {f"{prefix}.{key}": value for key, value in identity.items()}
    return values


def _sampling_values(spec: SamplingSpec) -> dict[str, Scalar]:
    """Every key's own value, text where it is a list or mapping, and the column of those that name one.

    What can be written in several ways is here in one: one value or a list of it, in any order.
    """
    values = spec.own_values()
    values |= {key: _as_set(values[key]) for key in ("stop", "stop_token_ids")}
    own = {f"sampling.{key}": _scalar(value) for key, value in values.items()}
    columns = {f"sampling.{key}.column": column for key, column in spec.columns().items()}
    return own | columns | {"sampling.coupling": spec.coupling}


def _as_set(value: Any) -> list[Any]:
    return sorted(set(value)) if isinstance(value, list) else [value]


def _scalar(value: Any) -> Scalar:
    is_nested = isinstance(value, list | dict)
    scalar: Scalar = json.dumps(value, ensure_ascii=False, sort_keys=True) if is_nested else value
    return scalar


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
