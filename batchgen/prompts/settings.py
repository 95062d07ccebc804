"""A row's own sampling values: which columns can give them, and what they are for one row.

Ranges are those of the job file; a value outside of them spoils its own row. Grammars are not looked into here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from batchgen.errors import InputError
from batchgen.job.messages import dotted, key_path, row_requirement
from batchgen.job.sampling import VALUE_TYPES, contradiction, to_sampling
from batchgen.job.section import problem
from batchgen.job.spec import SamplingSpec
from batchgen.prompts.columns import is_text, require_column
from batchgen.prompts.values import Unreadable
from batchgen.types import ErrorKind, RowError, Sampling

_SHOWN_WIDTH = 60


class SamplingReader:
    """Reads the columns that keys under `sampling` name.

    Raises InputError if a column of `source` is missing or cannot hold what its key needs.
    """

    def __init__(self, spec: SamplingSpec, schema: pa.Schema, source: object) -> None:
        self._names = spec.columns()
        for key, name in self._names.items():
            _require_type(require_column(schema, name, f"sampling.{key}", source), key, source)
        self._own = spec.own_values()
        self._defaults = spec.defaults()
        self.columns = tuple(dict.fromkeys(self._names.values()))

    @property
    def n_column(self) -> str | None:
        """The column that says how many samples a row has, None if the job does."""
        return self._names.get("n")

    def read(self, values: Mapping[str, Any], place: str) -> Sampling | RowError:
        """The sampling of a row with these values of its columns; `place` is its file and row, for messages."""
        given: dict[str, Any] = {}
        for key, name in self._names.items():
            value = values[name]
            if value is None:
                continue
            try:
                given[key] = _checked(key, value)
            except _RefusedError as error:
                return RowError(error.kind, f"{place}: column {name}, which sampling.{key} names, {error}")
        resolved = self._own | given
        reason = contradiction(resolved) if self._names else None
        if reason is not None:
            return RowError("bad_sampling", f"{place}: {reason}")
        return to_sampling(resolved) if given else self._defaults

    def given(self, values: Mapping[str, Any]) -> dict[str, str]:
        """For each key of which a row with these values has its own, the column."""
        return {key: name for key, name in self._names.items() if values[name] is not None}

    def num_samples(self, value: Any) -> int:
        """How many output rows a row with this value of `n_column` has; one, if the value cannot stand."""
        try:
            return self._defaults.n if value is None else int(_checked("n", value))
        except _RefusedError:
            return 1


class _RefusedError(Exception):
    """Why a value cannot stand, as what follows the name of its column."""

    def __init__(self, text: str, kind: ErrorKind = "bad_sampling") -> None:
        super().__init__(text)
        self.kind = kind


def _checked(key: str, value: Any) -> Any:
    if isinstance(value, Unreadable):
        raise _RefusedError(
            f"cannot be read: {value.reason}", "invalid_utf8" if value.kind == "invalid_utf8" else "bad_sampling"
        )
    try:
        return VALUE_TYPES[key].validate_python(_KINDS[key].plain(value))
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        where = dotted(key_path(details))
        verb = f"has at {where}" if where else "is"
        raise _RefusedError(f"{verb} {_shown(details['input'])}; {row_requirement(details)}") from None
    except PydanticCustomError as error:
        raise _RefusedError(f"is {_shown(value)}; {error.message()}") from None


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool | None) else str(value)
    return text if len(text) <= _SHOWN_WIDTH else text[: _SHOWN_WIDTH - 3] + "..."


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    """Half floats may come as numpy's."""
    return value.item() if isinstance(value, np.generic) else value


def _biases(value: Any) -> Any:
    """A map, a list of pairs or JSON text as the mapping that a job file would hold."""
    if isinstance(value, dict):
        return {str(token): _number(bias) for token, bias in value.items()}
    if not isinstance(value, list):
        return value
    if None in value:
        raise problem("must have no null among its entries")
    pairs = [(pair["token_id"], pair["bias"]) for pair in value]
    biases = {str(token): _number(bias) for token, bias in pairs}
    if len(biases) < len(pairs):
        raise problem("must name each token id once")
    return biases


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_null(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_floating(kind)) or _is_whole(kind)


def _is_truth(kind: pa.DataType) -> bool:
    return bool(pat.is_boolean(kind) or pat.is_null(kind))


def _is_list_of(kind: pa.DataType, is_item: Callable[[pa.DataType], bool]) -> bool:
    is_list = pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)
    return is_list and is_item(kind.value_type)


def _is_texts(kind: pa.DataType) -> bool:
    return is_text(kind) or _is_list_of(kind, is_text)


def _is_token_ids(kind: pa.DataType) -> bool:
    return _is_whole(kind) or _is_list_of(kind, _is_whole)


def _is_choices(kind: pa.DataType) -> bool:
    return bool(pat.is_null(kind)) or _is_list_of(kind, is_text)


def _is_biases(kind: pa.DataType) -> bool:
    if pat.is_map(kind):
        return _is_whole(kind.key_type) and _is_number(kind.item_type)
    return is_text(kind) or _is_list_of(kind, _is_bias)


def _is_bias(kind: pa.DataType) -> bool:
    if not pat.is_struct(kind):
        return False
    types = {field.name: field.type for field in kind}
    return types.keys() == {"token_id", "bias"} and _is_whole(types["token_id"]) and _is_number(types["bias"])


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a column must be, and how its values become those of a job file."""

    words: str
    takes: Callable[[pa.DataType], bool]
    plain: Callable[[Any], Any] = _same


_WHOLE = _Kind("whole numbers", _is_whole)
_NUMBER = _Kind("numbers", _is_number, _number)
_TRUTH = _Kind("true or false", _is_truth)
_TEXT = _Kind("text", is_text)
_KINDS: Mapping[str, _Kind] = {
    "max_tokens": _WHOLE,
    "min_tokens": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _WHOLE,
    "min_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "repetition_context_size": _WHOLE,
    "presence_penalty": _NUMBER,
    "presence_context_size": _WHOLE,
    "frequency_penalty": _NUMBER,
    "frequency_context_size": _WHOLE,
    "logit_bias": _Kind(
        "maps of token ids to numbers, lists of structs with token_id and bias, or JSON text", _is_biases, _biases
    ),
    "stop": _Kind("text or lists of text", _is_texts),
    "stop_token_ids": _Kind("whole numbers or lists of whole numbers", _is_token_ids),
    "ignore_eos": _TRUTH,
    "seed": _WHOLE,
    "n": _WHOLE,
    "thinking": _TRUTH,
    "thinking_budget": _WHOLE,
    "json_schema": _TEXT,
    "regex": _TEXT,
    "choice": _Kind("lists of text", _is_choices),
}


def _require_type(field: pa.Field, key: str, source: object) -> None:
    kind = field.type.value_type if pat.is_dictionary(field.type) else field.type
    if not _KINDS[key].takes(kind):
        raise InputError(
            f"{source}: column {field.name}, which sampling.{key} names, is {field.type}, "
            f"and must be {_KINDS[key].words}"
        )
