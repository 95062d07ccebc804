"""The job's `sampling` section: how a row's tokens are chosen, and what its completion must be.

Every key but `coupling` may name a column instead of a value. The types here are also those of a row's own values
(`VALUE_TYPES`), so that a range stands in one place. Whether a grammar can be held to is not looked at here.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, Union, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from batchgen.job.section import MAX_INT32, MAX_INT64, Section, Text, no_repeats, problem
from batchgen.types import Grammar, Sampling

T = TypeVar("T")

MAX_SCHEMA_CHARACTERS = 1_000_000

# What the keys have that a job leaves out: values that do nothing.
_LEFT_OUT = Sampling()
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_GRAMMARS = ("json_schema", "regex", "choice")
_FILTERS = ("top_p", "top_k", "min_p")
_PENALTIES = ("repetition", "presence", "frequency")
# Logits are divided by it in 32 bits, and must stay finite.
_LEAST_TEMPERATURE = 1e-5
_NO_THINKING = "thinking_budget has no effect with thinking: false; leave one of them out"

# Which form of a value was taken; pydantic puts them into the place of an error, where they are no key of the job.
_VALUE, _COLUMN, _ONE, _LIST = FORMS = ("(value)", "(column)", "(one)", "(list)")


class FromColumn(Section, Generic[T]):
    """A value that each row gives itself."""

    column: Text
    """Column of the row's own value."""
    default: T | None = None
    """Value of rows whose column is null; if omitted, what the key has when it is left out."""


def _form(takes_mappings: bool) -> Callable[[Any], str]:
    """Tells a column from a value of a key that itself takes mappings or does not, by what was meant."""

    def form(value: Any) -> str:
        if not isinstance(value, dict):
            return _COLUMN if isinstance(value, FromColumn) else _VALUE
        is_column = not takes_mappings or "column" in value or _is_mistyped_column(value)
        return _COLUMN if is_column else _VALUE

    return form


def _is_mistyped_column(value: dict[Any, Any]) -> bool:
    """Whether a mapping holds nothing but what looks like `column` and `default`, and not just the latter."""
    near = [difflib.get_close_matches(str(key), FromColumn.model_fields, 1, 0.8) for key in value]
    return all(near) and ["column"] in near


def _one_or_list(kind: type, words: str) -> Discriminator:
    """Tells one value from a list of them; what is neither must be `words`."""

    def form(value: Any) -> str | None:
        is_one = isinstance(value, kind) and not isinstance(value, bool)
        return _LIST if isinstance(value, list) else _ONE if is_one else None

    return Discriminator(form, custom_error_type="form", custom_error_message=f"must be {words}")


def _temperature(value: float) -> float:
    if 0 < value < _LEAST_TEMPERATURE:
        raise problem(f"must be 0 or at least {_LEAST_TEMPERATURE:g}")
    return value


def _token_biases(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not _TOKEN_ID.fullmatch(key) or int(key) > MAX_INT32:
            raise problem(f"must map token ids to numbers, and has the key {key}")
    return biases


def _json_schema(value: Any) -> str:
    """A JSON schema on one line, its keys in the order in which they were given: JSON is written in that order."""
    value = _parsed_text(value)
    if not isinstance(value, dict):
        raise problem("must be a JSON schema: a mapping, or the text of a JSON object")
    text = ""
    try:
        # Piece by piece, since a YAML file may refer to one mapping from many places.
        for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(value):
            text += piece
            if len(text) > MAX_SCHEMA_CHARACTERS:
                raise problem(f"must be a JSON schema of at most {MAX_SCHEMA_CHARACTERS} characters")
        text.encode()
    except PydanticCustomError:
        raise
    except UnicodeEncodeError:
        raise problem("must be Unicode text, and holds a lone surrogate") from None
    except ValueError:
        raise problem("must be a JSON schema, whose numbers are all finite") from None
    except RecursionError:
        raise problem("must be a JSON schema: it is nested too deeply") from None
    return text


def _parsed_text(value: Any) -> Any:
    """What JSON text holds; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=_object)
    except PydanticCustomError:
        # It is a ValueError, and has its sentence.
        raise
    except json.JSONDecodeError as error:
        raise problem(f"must be JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except ValueError:
        raise problem("must be JSON, and holds a number that is too long") from None
    except RecursionError:
        raise problem("must be JSON, and is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    no_repeats([name for name, _ in pairs])
    return dict(pairs)


class _Choice:
    """Makes of `T | FromColumn[T]` a type whose errors are those of the form that was meant, `default` a T as well."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        plain = value_type(source)
        forms = Annotated[plain, Tag(_VALUE)] | Annotated[FromColumn[plain], Tag(_COLUMN)]  # type: ignore[valid-type]
        takes_mappings = '"object"' in json.dumps(TypeAdapter[Any](plain).json_schema())
        return handler.generate_schema(Annotated[forms, Discriminator(_form(takes_mappings))])


def value_type(annotation: Any) -> Any:
    """T of `T | FromColumn[T]`."""
    return Union[tuple(part for part in get_args(annotation) if part is not FromColumn)]  # noqa: UP007


OrColumn = Annotated[T | FromColumn[T], _Choice()]
ContextSize = Annotated[int, Field(ge=1, le=1024)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
Temperature = Annotated[
    float,
    Field(ge=0, le=100),
    AfterValidator(_temperature),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "number", "minimum": _LEAST_TEMPERATURE, "maximum": 100}]}),
]
TokenBiases = Annotated[
    dict[str, Annotated[float, Field(ge=-1000, le=1000)]],
    BeforeValidator(_parsed_text),
    Field(max_length=1024),
    AfterValidator(_token_biases),
    WithJsonSchema(
        {
            "type": ["object", "string"],
            "additionalProperties": {"type": "number", "minimum": -1000, "maximum": 1000},
            "propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$"},
            "maxProperties": 1024,
        }
    ),
]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
StopTexts = Annotated[
    Annotated[StopText, Tag(_ONE)] | Annotated[list[StopText], Field(max_length=64), Tag(_LIST)],
    _one_or_list(str, "text or a list of texts (in quotes, if it looks like a number or a truth value)"),
]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
TokenIds = Annotated[
    Annotated[TokenId, Tag(_ONE)] | Annotated[list[TokenId], Tag(_LIST)],
    _one_or_list(int, "a whole number or a list of whole numbers"),
]
JsonSchema = Annotated[str, BeforeValidator(_json_schema), WithJsonSchema({"type": ["object", "string"]})]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1), AfterValidator(no_repeats)]


class SamplingSpec(Section):
    """How tokens are chosen, and how many. Every key but coupling may name a column: {column: name, default: value}."""

    max_tokens: OrColumn[Annotated[int, Field(ge=1, le=MAX_INT32)]] = _LEFT_OUT.max_tokens
    """The most tokens of a completion."""
    min_tokens: OrColumn[Annotated[int, Field(ge=0, le=MAX_INT32)]] = _LEFT_OUT.min_tokens
    """No end token before the completion has so many tokens."""
    temperature: OrColumn[Temperature] = _LEFT_OUT.temperature
    """What logits are divided by; at 0 the best token is taken."""
    top_p: OrColumn[Annotated[float, Field(ge=1e-6, le=1)]] = _LEFT_OUT.top_p
    """The most likely tokens that together have this probability stay."""
    top_k: OrColumn[Annotated[int, Field(ge=0, le=MAX_INT32)]] = _LEFT_OUT.top_k
    """So many most likely tokens stay; 0 for all."""
    min_p: OrColumn[Annotated[float, Field(ge=0, le=1)]] = _LEFT_OUT.min_p
    """Tokens of at least this share of the highest probability stay."""
    repetition_penalty: OrColumn[Annotated[float, Field(ge=1e-3, le=100)]] = _LEFT_OUT.repetition_penalty
    """Above 1, tokens of the context become less likely, below 1 more."""
    repetition_context_size: OrColumn[ContextSize] = _LEFT_OUT.repetition_context_size
    """How many last tokens the repetition penalty looks at."""
    presence_penalty: OrColumn[Penalty] = _LEFT_OUT.presence_penalty
    """Taken from the logit of every token of the context."""
    presence_context_size: OrColumn[ContextSize] = _LEFT_OUT.presence_context_size
    """How many last tokens the presence penalty looks at."""
    frequency_penalty: OrColumn[Penalty] = _LEFT_OUT.frequency_penalty
    """Taken from a token's logit for each time that it stands in the context."""
    frequency_context_size: OrColumn[ContextSize] = _LEFT_OUT.frequency_context_size
    """How many last tokens the frequency penalty looks at."""
    logit_bias: OrColumn[TokenBiases] = Field(default={})
    """Token ids, and what is added to the logit of each."""
    stop: OrColumn[StopTexts] = Field(default=[])
    """Text or texts; the completion ends before the earliest one in its answer."""
    stop_token_ids: OrColumn[TokenIds] = Field(default=[])
    """Token id or ids that end a completion like an end token."""
    ignore_eos: OrColumn[bool] = _LEFT_OUT.ignore_eos
    """Whether the model's end tokens are tokens like any other."""
    seed: OrColumn[Annotated[int, Field(ge=0, le=MAX_INT64)]] = _LEFT_OUT.seed
    """What chance is made of, with the row's id (else its number) and the sample."""
    n: OrColumn[Annotated[int, Field(ge=1, le=1024)]] = _LEFT_OUT.n
    """How many samples a prompt has, each an output row."""
    thinking: OrColumn[bool | None] = _LEFT_OUT.thinking
    """Whether the chat template opens a thinking block; as the template has it if omitted."""
    thinking_budget: OrColumn[Annotated[int, Field(ge=0, le=MAX_INT32)] | None] = _LEFT_OUT.thinking_budget
    """The most tokens of thinking."""
    json_schema: OrColumn[JsonSchema | None] = None
    """JSON schema of the answer: a mapping, or JSON text."""
    regex: OrColumn[Annotated[str, Field(min_length=1)] | None] = None
    """Regular expression that the whole answer matches."""
    choice: OrColumn[Choices | None] = None
    """Texts of which the answer is one."""
    coupling: Literal["shared", "rejection"] = "shared"
    """How drafts and sampling go together: shared keeps the text that there would be without a drafter."""

    def defaults(self) -> Sampling:
        """The job's own values: where a key names a column, its `default`, else what the key has when left out."""
        return to_sampling(self.own_values())

    def columns(self) -> dict[str, str]:
        """For each key that names a column, the column."""
        given = {key: getattr(self, key) for key in VALUE_TYPES}
        return {key: value.column for key, value in given.items() if isinstance(value, FromColumn)}

    def own_values(self) -> dict[str, Any]:
        """As `defaults`, by key and in the form in which the job has them."""
        return {key: self._own_value(key) for key in VALUE_TYPES}

    @property
    def is_sampled(self) -> bool:
        """Whether any row can have a temperature above 0, and so depends on chance."""
        return self.temperature != 0

    def _own_value(self, key: str) -> Any:
        value = getattr(self, key)
        if not isinstance(value, FromColumn):
            return value
        return type(self).model_fields[key].default if value.default is None else value.default

    def _is_given(self, key: str) -> bool:
        """Whether the job itself says what a key is, at least for rows whose column is null."""
        value = getattr(self, key)
        return not isinstance(value, FromColumn) or value.default is not None

    def _is_left(self, key: str) -> bool:
        """Whether a key has the value that does nothing."""
        return bool(getattr(self, key) == type(self).model_fields[key].default)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.is_sampled:
            for key in (*_FILTERS, "n", "coupling"):
                if not self._is_left(key):
                    raise problem(f"{key} has no effect at temperature 0; give a temperature, or leave {key} out")
        for name in _PENALTIES:
            if self._is_left(f"{name}_penalty") and not self._is_left(f"{name}_context_size"):
                raise problem(f"{name}_context_size has no effect without {name}_penalty")
        if self.thinking is False and self.thinking_budget is not None:
            raise problem(_NO_THINKING)
        reason = contradiction({key: value for key, value in self.own_values().items() if self._is_given(key)})
        if reason is not None:
            raise problem(reason)
        return self


def contradiction(values: Mapping[str, Any]) -> str | None:
    """Why these values by key cannot hold for one row, or None; a key that is absent contradicts nothing."""
    least, most = values.get("min_tokens", 0), values.get("max_tokens", MAX_INT32)
    if least > most:
        return f"min_tokens is {least}, and max_tokens only {most}"
    grammars = [key for key in _GRAMMARS if values.get(key) is not None]
    if len(grammars) > 1:
        return f"must have only one of {', '.join(_GRAMMARS)}, and has {' and '.join(grammars)}"
    if grammars and values.get("ignore_eos"):
        return f"{grammars[0]} says where a completion ends, and ignore_eos that it goes on"
    if grammars and least > 0:
        return f"{grammars[0]} says where a completion ends, and min_tokens where it may not"
    if values.get("thinking") is False and values.get("thinking_budget") is not None:
        return _NO_THINKING
    return None


def to_sampling(values: Mapping[str, Any]) -> Sampling:
    """Values by key, as `VALUE_TYPES` give them and without contradiction, as the rest of the project takes them."""
    plain = {key: value for key, value in values.items() if key not in _GRAMMARS}
    plain["logit_bias"] = tuple(sorted((int(token), bias) for token, bias in values["logit_bias"].items()))
    plain["stop"] = _as_tuple(values["stop"])
    plain["stop_token_ids"] = _as_tuple(values["stop_token_ids"])
    return Sampling(**plain, grammar=_grammar(values))


def _grammar(values: Mapping[str, Any]) -> Grammar | None:
    if values["json_schema"] is not None:
        return Grammar("json_schema", values["json_schema"])
    if values["regex"] is not None:
        return Grammar("regex", values["regex"])
    if values["choice"] is not None:
        return Grammar("choice", json.dumps(values["choice"], ensure_ascii=False))
    return None


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _value_types() -> dict[str, TypeAdapter[Any]]:
    types = {}
    for key, info in SamplingSpec.model_fields.items():
        if key != "coupling":
            types[key] = TypeAdapter[Any](value_type(info.annotation), config=Section.model_config)
    return types


VALUE_TYPES = _value_types()
"""For each key that may name a column, the type of its values."""
