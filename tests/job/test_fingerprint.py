"""What changes answers is in the fingerprint; what does not is not; and a change is said readably."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchgen.job.fingerprint import difference, fingerprint
from batchgen.job.load import load_job
from tests.job.builders import write_job

MODEL = {"config.json": "aa", "model.safetensors": "bb"}
CODEC = {"tokenizer": "cc", "chat": True, "chat_template": "dd"}
INPUTS = {"content": "ee"}


def of(tmp_path: Path, values: dict[str, str | None], **identities: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"model": MODEL, "codec": CODEC, "inputs": INPUTS, "drafter": None} | identities
    return fingerprint(load_job(write_job(tmp_path, values)[0]), **({"dtype": "float32"} | known))


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"sampling.max_tokens": "9"}, ["sampling.max_tokens: 256 -> 9"]),
        ({"sampling.seed": "1"}, ["sampling.seed: 0 -> 1"]),
        ({"input.prompt": '"Now {{ text }}"'}, ['input.prompt: "{{ text }}" -> "Now {{ text }}"']),
        (
            {"input.prompt": None, "input.column": "text"},
            ['input.prompt: "{{ text }}" -> null', 'input.column: null -> "text"'],
        ),
        (
            {"input.prompt": None, "input.messages": "text"},
            ['input.prompt: "{{ text }}" -> null', 'input.messages: null -> "text"'],
        ),
        ({"input.system": "Be brief."}, ['input.system: null -> "Be brief."']),
        ({"input.where": "text > 'a'"}, ["input.where: null -> \"text > 'a'\""]),
        (
            {"sampling.temperature": "{column: t}"},
            ['sampling.temperature.column: (absent) -> "t"', "input.id: (absent) -> null"],
        ),
        ({"sampling.stop": "[a, b]"}, ['sampling.stop: "[]" -> "[\\"a\\", \\"b\\"]"']),
        ({"output.logprobs": "true"}, ["output.logprobs: false -> true"]),
    ],
)
def test_what_changes_answers(tmp_path: Path, values: dict[str, str | None], lines: list[str]) -> None:
    assert difference(of(tmp_path, {}), of(tmp_path, values)) == lines


@pytest.mark.parametrize(
    ("key", "forms"),
    [
        ("sampling.stop", ["zz", "[zz]", "[zz, zz]"]),
        ("sampling.stop", ["{column: c, default: zz}", "{column: c, default: [zz]}"]),
        ("sampling.stop", ["[a, b]", "[b, a]"]),
        ("sampling.stop_token_ids", ["5", "[5]"]),
        ("sampling.stop_token_ids", ["[5, 10]", "[10, 5, 10]"]),
        ("sampling.logit_bias", ["{'5': 1, '6': 2.5}", """'{"6": 2.5, "5": 1.0}'"""]),
        ("sampling.json_schema", ["{type: 'null'}", """'{ "type" : "null" }'"""]),
        ("sampling.temperature", ["1", "1.0"]),
    ],
)
def test_one_value_written_in_several_ways_is_one(tmp_path: Path, key: str, forms: list[str]) -> None:
    first, *others = (of(tmp_path, {key: form}) for form in forms)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "other"},
        {"model": "elsewhere/the-same-model"},
        {"drafter": "some/drafter"},
        {"input.path": "moved/in.parquet"},
        {"input.keep": "[id]"},
        {"input.id": "id"},
        {"output.path": "other.parquet"},
        {"output.checkpoint_every": "1s"},
        {"drafter": "some/drafter", "engine.max_rows": "3", "engine.block_size": "4", "engine.prefill_chunk": "64"},
        {"report.group_by": "task"},
        {"output.token_ids": "true"},
    ],
)
def test_what_does_not(tmp_path: Path, values: dict[str, str | None]) -> None:
    assert of(tmp_path, values) == of(tmp_path, {})


@pytest.mark.parametrize(
    ("identities", "lines"),
    [
        ({"model": MODEL | {"model.safetensors": "b2"}}, ['model.model.safetensors: "bb" -> "b2"']),
        (
            {"model": {"hub": "a/b"}},
            [
                'model.config.json: "aa" -> (absent)',
                'model.model.safetensors: "bb" -> (absent)',
                'model.hub: (absent) -> "a/b"',
            ],
        ),
        ({"codec": CODEC | {"tokenizer": "c2"}}, ['codec.tokenizer: "cc" -> "c2"']),
        ({"codec": CODEC | {"chat_template": "d2"}}, ['codec.chat_template: "dd" -> "d2"']),
        ({"codec": CODEC | {"chat": False}}, ["codec.chat: true -> false"]),
        ({"inputs": {"content": "e2"}}, ['input.content: "ee" -> "e2"']),
    ],
)
def test_model_tokenizer_and_input_count(tmp_path: Path, identities: dict[str, Any], lines: list[str]) -> None:
    assert difference(of(tmp_path, {}), of(tmp_path, {}, **identities)) == lines


def test_the_drafter_is_not_in_it(tmp_path: Path) -> None:
    assert [key for key in of(tmp_path, {"drafter": "d"}) if "drafter" in key] == []


SAMPLED: dict[str, str | None] = {"sampling.temperature": "0.7", "drafter": "d"}


def test_rejection_counts_drafter_and_block_size_where_shared_noise_does_not(tmp_path: Path) -> None:
    other = SAMPLED | {"engine.block_size": "4"}
    drafters = [{"drafter": {"weights": name}} for name in "ab"]
    assert of(tmp_path, SAMPLED, **drafters[0]) == of(tmp_path, other, **drafters[1])
    rejection: dict[str, str | None] = {"sampling.coupling": "rejection"}
    assert difference(
        of(tmp_path, SAMPLED | rejection, **drafters[0]), of(tmp_path, other | rejection, **drafters[1])
    ) == [
        'engine.block_size: "auto" -> 4',
        'drafter.weights: "a" -> "b"',
    ]


def test_the_id_column_counts_where_noise_is_made_of_it(tmp_path: Path) -> None:
    found = difference(of(tmp_path, SAMPLED), of(tmp_path, SAMPLED | {"input.id": "id"}))
    assert found == ['input.id: null -> "id"']


def test_it_survives_json(tmp_path: Path) -> None:
    values = of(tmp_path, {})
    assert difference(json.loads(json.dumps(values)), values) == []


def test_numbers_and_truth_values_are_not_the_same() -> None:
    assert difference({"a": 1}, {"a": True}) == ["a: 1 -> true"]
    assert difference({"a": None}, {}) == ["a: null -> (absent)"]


def test_long_values_and_many_lines_are_cut() -> None:
    lines = difference({}, {f"k{number}": "x" * 500 for number in range(30)})
    assert len(lines) == 21
    assert lines[0] == f'k0: (absent) -> "{"x" * 116}...'
    assert lines[-1] == "and 10 more"


def test_the_arithmetic_counts_whoever_chose_it(tmp_path: Path) -> None:
    found = difference(of(tmp_path, {}, dtype="float32"), of(tmp_path, {}, dtype="checkpoint"))
    assert found == ['engine.dtype: "float32" -> "checkpoint"']
