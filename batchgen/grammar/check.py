"""From a grammar to what llguidance reads, and what is wrong with it, in one sentence.

JSON is written on one line: no white space but at most one space after a comma or colon. With white space wherever JSON
allows it, a model could write spaces until its budget ends.

llguidance is told not to force tokens: where only one text can follow, it would else allow one way alone of cutting it
into tokens, and not the one that the model is used to.
"""

import json
import re
from collections import Counter
from typing import Any

import numpy as np

from batchgen.grammar.errors import GrammarError
from batchgen.grammar.finite import without_endless
from batchgen.grammar.schema import Schema, kind_of, locate, read_schema
from batchgen.types import Grammar

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": False}
_HEADER = '%llguidance {"no_forcing": true}\n'
_SYMBOL = re.compile(r"[^0-9A-Za-z_\s]|\s", re.ASCII)
_PLACED = re.compile(r"regex parse error:\n    (?P<line>.*)\n    (?P<caret> *)\^+\nerror: (?P<reason>[^\n]*)")
_MULTILINE = re.compile(r"regex parse error:.*?\nerror: (?P<reason>[^\n]*)", re.DOTALL)
_NOTHING_FITS = "no text at all fits it"
_REASON_WIDTH = 300
_EXCERPT_WIDTH = 100
# Why llguidance stops where a grammar has no way on.
_NO_TEXT = "NoExtension"
# What llguidance adds to a message about a schema that is referred to.
_REFERRED = "\n  while processing "
_ONE_OF = "oneOf constraints are not supported"


def check_grammar(grammar: Grammar) -> None:
    """Raises GrammarError if no completion can be held to the grammar. Needs no tokenizer."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), compile_grammar(grammar), log_level=0)
    mask = np.zeros(9, dtype=np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    may_go_on = mask[:8].any()
    if matcher.is_error() and not has_no_way_on(matcher.get_error()):
        raise GrammarError(one_line(matcher.get_error()))
    if not may_go_on and not matcher.is_accepting():
        raise GrammarError(_NOTHING_FITS)


def compile_grammar(grammar: Grammar) -> str:
    """What llguidance makes its matchers from. Raises GrammarError if it cannot be one."""
    try:
        grammar.text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError("holds half of a surrogate pair, which no text has") from error
    if grammar.kind == "json_schema":
        return _compile_schema(read_schema(grammar.text))
    pattern = grammar.text if grammar.kind == "regex" else _any_of(_read_choices(grammar.text))
    return _compile_regex(pattern)


def has_no_way_on(message: str) -> bool:
    """Whether llguidance stopped only because no byte could follow, rather than at a limit of its own."""
    return message.startswith(_NO_TEXT)


def one_line(message: str) -> str:
    """llguidance's reason alone, without its excerpts and state."""
    reason = " ".join(message.partition("<state>")[0].split())
    return reason if len(reason) <= _REASON_WIDTH else reason[:_REASON_WIDTH] + "..."


def _compile_schema(schema: Schema) -> str:
    message = _schema_refusal(schema)
    if message is not None:
        raise GrammarError(f"at {locate(schema, message, _schema_refusal)}: {_reason_of(message)}")
    finite = without_endless(schema)
    if finite is None:
        raise GrammarError(_NOTHING_FITS)
    return f"{_HEADER}start: %json {json.dumps({**finite, 'x-guidance': _LAYOUT})}"


def _schema_refusal(schema: Schema) -> str | None:
    from llguidance import LLMatcher

    try:
        message = _refusal(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    except ValueError as error:
        raise GrammarError(one_line(str(error))) from error
    return None if message is None else message.partition(_REFERRED)[0]


def _compile_regex(pattern: str) -> str:
    from llguidance import LLMatcher

    # llguidance would take it for an escape of the sign that it puts behind the expression.
    if len(pattern) - len(pattern.rstrip("\\")) & 1:
        raise GrammarError(f"nothing follows the backslash at its end, at character {len(pattern)}")
    source = LLMatcher.grammar_from_regex(pattern)
    message = _refusal(source)
    if message is not None:
        raise GrammarError(_reason_of(message))
    return _HEADER + str(json.loads(source)["grammars"][0]["lark_grammar"])


def _refusal(source: str) -> str | None:
    from llguidance import LLMatcher

    is_error, messages = LLMatcher.validate_grammar_with_warnings(source)
    return messages[0] if is_error else None


def _reason_of(message: str) -> str:
    """The reason in llguidance's message, with the place in a regular expression where it has one."""
    if message.startswith(_ONE_OF):
        return "oneOf stands only where types or constant properties tell its schemas apart; use anyOf"
    placed = _PLACED.search(message)
    if placed is not None:
        at = len(placed["caret"])
        return f"{placed['reason']}, at character {at + 1} of {_excerpt(placed['line'], at)}"
    several = _MULTILINE.search(message)
    if several is not None:
        return several["reason"]
    # Of a message about a regular expression, what stands around the reason is the source made of it.
    _, _, inner = message.rpartition("(in regex): ")
    return one_line(inner.partition("\n")[0] or message)


def _excerpt(text: str, at: int) -> str:
    """The text in quotes, or where it is long, what stands around a place in it."""
    first, last = (
        (0, len(text)) if len(text) <= _EXCERPT_WIDTH else (max(0, at - _EXCERPT_WIDTH // 2), at + _EXCERPT_WIDTH // 2)
    )
    return ("..." if first else "") + json.dumps(text[first:last]) + ("..." if last < len(text) else "")


def _read_choices(text: str) -> list[str]:
    try:
        choices: Any = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarError("is nested too deeply: it must be a list of texts") from error
    if not isinstance(choices, list) or not choices:
        raise GrammarError("must be a list of at least one text")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise GrammarError(f"entry {index} must be text, and is {kind_of(choice)}")
    repeated = [choice for choice, count in Counter(choices).items() if count > 1]
    if repeated:
        raise GrammarError(f"{json.dumps(repeated[0])} stands there twice")
    return choices


def _any_of(choices: list[str]) -> str:
    try:
        "".join(choices).encode()
    except UnicodeEncodeError as error:
        raise GrammarError("holds half of a surrogate pair, which no text has") from error
    return "|".join(_SYMBOL.sub(lambda symbol: rf"\x{{{ord(symbol[0]):x}}}", choice) for choice in choices)
