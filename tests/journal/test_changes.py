"""A refused start says what the user changed: no digest, and nothing that follows from it."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.job.fingerprint import fingerprint
from batchgen.job.load import load_job
from batchgen.journal.changes import setting_changes
from tests.job.builders import write_job

Values = dict[str, str | None]
IDENTITIES: dict[str, Any] = {
    "model": {"config.json": "525f93", "model.safetensors": "0bea2a", "tokenizer.json": "77aa01"},
    "codec": {"tokenizer": "c01dca", "chat": True, "chat_template": "77fe11", "eos_token_ids": "0,2"},
    "inputs": {"content": "e0e0e0"},
    "drafter": {"config.json": "d00d00", "model.safetensors": "d11d11"},
}
SAMPLED: Values = {"sampling.temperature": "0.7", "input.id": "id", "drafter": "d"}
REJECTION: Values = SAMPLED | {"sampling.coupling": "rejection"}


def of(folder: Path, values: Values, **identities: dict[str, Any]) -> dict[str, Any]:
    return fingerprint(load_job(write_job(folder, values)[0]), dtype="float32", **(IDENTITIES | identities))


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (SAMPLED, SAMPLED | {"input.id": None}, ['input.id: "id" -> null']),
        (SAMPLED, REJECTION, ['sampling.coupling: "shared" -> "rejection"']),
        (REJECTION, SAMPLED, ['sampling.coupling: "rejection" -> "shared"']),
        (SAMPLED, SAMPLED | {"sampling.temperature": None}, ["sampling.temperature: 0.7 -> 0.0"]),
        ({}, SAMPLED, ["sampling.temperature: 0.0 -> 0.7"]),
        (REJECTION, REJECTION | {"engine.block_size": "4"}, ['engine.block_size: "auto" -> 4']),
        ({}, {"input.prompt": '"{{ x }}"'}, ['input.prompt: "{{ text }}" -> "{{ x }}"']),
        ({}, {"input.where": "x > 1"}, ['input.where: null -> "x > 1"']),
        (SAMPLED, SAMPLED | {"sampling.temperature": "{column: t, default: 0.5}"},
         ['sampling.temperature: 0.7 -> {"column": "t", "default": 0.5}']),
        (SAMPLED, SAMPLED | {"sampling.seed": "{column: s}"}, ['sampling.seed: 0 -> {"column": "s", "default": 0}']),
        ({}, {"sampling.regex": "{column: r}"}, ['sampling.regex: null -> {"column": "r"}']),
    ],
    ids=range(11),
)  # fmt: skip
def test_only_the_key_that_was_changed_is_shown(tmp_path: Path, old: Values, new: Values, lines: list[str]) -> None:
    # Where other columns are read, the digest of what is read is another one.
    reads_the_same = lines[0].startswith(("sampling.coupling", "engine.block_size"))
    before, after = (
        of(tmp_path, old),
        of(tmp_path, _given(new), inputs={"content": "e0e0e0" if reads_the_same else "e1"}),
    )
    assert setting_changes(before, after, is_input_told=False) == lines


def _given(values: Values) -> Values:
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("identities", "lines"),
    [
        ({"drafter": {"config.json": "d00d00", "model.safetensors": "d22d22"}}, ["the drafter's weights differ"]),
        ({"drafter": {"config.json": "d02d02", "w-1.safetensors": "d2", "w-2.safetensors": "d3"}},
         ["the drafter's config.json and weights differ"]),
        ({"drafter": {"hub": "a/b", "revision": "abc"}}, ["the drafter was a local folder and is a/b of the Hub"]),
        ({"model": IDENTITIES["model"] | {"config.json": "111111"}}, ["the model's config.json differs"]),
        # What a tokenizer does otherwise stands in the files that are named.
        ({"model": IDENTITIES["model"] | {"tokenizer.json": "111111"},
          "codec": IDENTITIES["codec"] | {"tokenizer": "222222", "eos_token_ids": "0"}},
         ["the model's tokenizer.json differs"]),
        ({"codec": IDENTITIES["codec"] | {"tokenizer": "222222", "chat_template": "333333"}},
         ["the chat template differs", "the tokenizer differs"]),
        ({"codec": IDENTITIES["codec"] | {"chat": False, "chat_template": ""}},
         ["the chat template is no longer used (input.chat)"]),
        ({"codec": IDENTITIES["codec"] | {"eos_token_ids": "0"}}, ["the model's end tokens: 0,2 -> 0"]),
        ({"inputs": {"content": "e1e1e1"}}, ["the input's columns that answers depend on hold other values"]),
        ({}, []),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_known_by_its_digest_is_said_in_words(
    tmp_path: Path, identities: dict[str, Any], lines: list[str]
) -> None:
    old, new = of(tmp_path, REJECTION), of(tmp_path, REJECTION, **identities)
    assert setting_changes(old, new, is_input_told=False) == lines


def test_a_revision_of_the_hub_can_be_named_again_and_is_shown(tmp_path: Path) -> None:
    old, new = (of(tmp_path, {}, model={"hub": "a/b", "revision": name}) for name in ("abc", "def"))
    assert setting_changes(old, new, is_input_told=False) == ['model.revision: "abc" -> "def"']
