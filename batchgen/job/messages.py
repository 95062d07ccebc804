"""What pydantic refuses, in this project's words: of a key in a job file, and of a value in a row."""

from collections.abc import Sequence, Sized

from pydantic_core import ErrorDetails

from batchgen.job.sampling import FORMS

_IN_QUOTES = " (in quotes, if it looks like a number or a truth value)"

# By pydantic's kind of error; `{...}` are its own figures.
_MUST = {
    "string_type": f"must be text{_IN_QUOTES}",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters, and has {length}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "too_short": "must have at least {min_length} entries, and has {length}",
    "too_long": "must have at most {max_length} entries, and has {length}",
    "model_type": "must be a mapping of keys",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "job": "{text}",
}


def requirement(details: ErrorDetails) -> str:
    """What a refused value of a job file must be."""
    figures = {key: _plain(value) for key, value in details.get("ctx", {}).items()}
    if isinstance(details["input"], Sized):
        figures["length"] = len(details["input"])
    return _MUST.get(details["type"], "{msg}").format(**figures, msg=details["msg"]).replace("'", "")


def row_requirement(details: ErrorDetails) -> str:
    """What a refused value of a row must be, without advice on how to write it in YAML."""
    return requirement(details).replace(_IN_QUOTES, "")


def key_path(details: ErrorDetails) -> Sequence[str | int]:
    """Where the value stands, by keys and numbers in lists."""
    return [part for part in details["loc"] if part not in FORMS]


def dotted(keys: Sequence[str | int]) -> str:
    """A path as it is written: `input.path[1]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def _plain(value: object) -> object:
    return f"{value:g}" if isinstance(value, float) else value
