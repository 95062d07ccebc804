"""Two fingerprints as what a person changed between them: no digests, and nothing that only follows from another line.

Keys are those of `job.fingerprint`. Some of them are there only under other keys (the id's column where rows are
sampled, the drafter under rejection), and content is known by a digest, of which only the difference can be said.
"""

from collections.abc import Mapping
from typing import Any

from batchgen.job.fingerprint import difference

_CONTENT = "input.content"
# Held only under a sampling key that says so, whose own difference is shown.
_CONDITIONAL = ("input.id", "engine.block_size")
# What decides which columns answers depend on, with the columns under `sampling`.
_COLUMN_KEYS = frozenset({"input.prompt", "input.column", "input.messages", "input.where", "input.id"})
_COLUMN = ".column"
_OWNERS = ("model", "drafter", "codec")
_WEIGHTS = ".safetensors"

Values = Mapping[str, Any]


def setting_changes(old: Values, new: Values, *, is_input_told: bool) -> list[str]:
    """A line for each difference, none where there is none.

    `is_input_told` says that the differences of the input files are told elsewhere, and its content is not looked at.
    """
    changed = {key for key in {*old, *new} if difference(_only(old, key), _only(new, key))}
    hidden = {key for key in changed if key in _CONDITIONAL and (key in old) != (key in new)}
    model = _identity_changes("model", old, new)
    lines = [*difference(_settings(old, hidden), _settings(new, hidden)), *model]
    if _of("drafter", old) and _of("drafter", new):
        lines += _identity_changes("drafter", old, new)
    lines += _codec_changes(_of("codec", old), _of("codec", new), is_model_told=bool(model))
    if _CONTENT in changed and not is_input_told and not any(_chooses_columns(key) for key in changed):
        lines.append("the input's columns that answers depend on hold other values")
    return lines


def _only(values: Values, key: str) -> dict[str, Any]:
    return {key: values[key]} if key in values else {}


def _chooses_columns(key: str) -> bool:
    return key in _COLUMN_KEYS or (key.startswith("sampling.") and key.endswith(_COLUMN))


def _settings(values: Values, hidden: set[str]) -> dict[str, Any]:
    """The job's own keys, a column and its default as one value."""
    own = {
        key: value
        for key, value in values.items()
        if key not in hidden and key != _CONTENT and key.partition(".")[0] not in _OWNERS
    }
    for key in [key for key in own if key.startswith("sampling.") and key.endswith(_COLUMN)]:
        column, default = own.pop(key), own[key.removesuffix(_COLUMN)]
        own[key.removesuffix(_COLUMN)] = {"column": column} | ({} if default is None else {"default": default})
    return own


def _identity_changes(owner: str, old: Values, new: Values) -> list[str]:
    """How the files of model or drafter differ: a Hub revision can be shown, of a file only its name."""
    before, after = _of(owner, old), _of(owner, new)
    if ("hub" in before) != ("hub" in after):
        return [f"the {owner} was {_source(before)} and is {_source(after)}"]
    if "hub" in after:
        return [f"{owner}.{line}" for line in difference(before, after)]
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    files = dict.fromkeys("weights" if name.endswith(_WEIGHTS) else name for name in names)
    if not files:
        return []
    verb = "differs" if len(files) == 1 and "weights" not in files else "differ"
    return [f"the {owner}'s {' and '.join(files)} {verb}"]


def _of(owner: str, values: Values) -> dict[str, Any]:
    prefix = f"{owner}."
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _source(identity: Values) -> str:
    return f"{identity['hub']} of the Hub" if "hub" in identity else "a local folder"


def _codec_changes(old: Values, new: Values, *, is_model_told: bool) -> list[str]:
    """How prompts become tokens otherwise; what stands in the model's files is told with them."""
    changed = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    lines = []
    if "chat" in changed:
        lines.append(f"the chat template is {'now' if new.get('chat') else 'no longer'} used (input.chat)")
    elif "chat_template" in changed and not is_model_told:
        lines.append("the chat template differs")
    if "tokenizer" in changed and not is_model_told:
        lines.append("the tokenizer differs")
    if "eos_token_ids" in changed and not is_model_told:
        lines.append(f"the model's end tokens: {old.get('eos_token_ids')} -> {new.get('eos_token_ids')}")
    return lines
