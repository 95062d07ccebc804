"""Every key of a job file: what it takes, what it refuses, and in which words."""

from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import JobError
from batchgen.job.load import job_schema, load_job
from batchgen.job.sampling import SamplingSpec
from batchgen.job.spec import WeightsSpec
from batchgen.types import Sampling
from tests.job.builders import write_job

TEXT = "must be text (in quotes, if it looks like a number or a truth value)"
COMMA = "Expecting , delimiter"
LONG_NUMBER = "must be JSON, and holds a number that is too long"
STOP = "must be text or a list of texts (in quotes, if it looks like a number or a truth value)"
STOP_IDS = "must be a whole number or a list of whole numbers"
DURATION = "must be a duration above 0, such as 30s, 5m or a number of seconds"
PARQUET = "must be a file whose name ends in .parquet"
PATHS = "must be a path or a list of paths"
DTYPES = "must be one of auto, float32, bfloat16 or float16"

TAKEN: list[tuple[str, str, Any]] = [
    ("name", "summarize", "summarize"),
    ("name", "'12'", "12"),
    ("model", "data/tiny", "data/tiny"),
    ("revision", "main", "main"),
    ("revision", "", None),
    ("revision", "null", None),
    ("drafter", "data/tiny-dflash2", "data/tiny-dflash2"),
    ("drafter_revision", "v1", "v1"),
    ("input.path", "a.parquet", "a.parquet"),
    ("input.path", "[a.parquet, 'b/*.parquet']", ["a.parquet", "b/*.parquet"]),
    ("input.id", "id", "id"),
    ("input.id", "yes", "yes"),
    ("input.prompt", '"{{ a }} and {{ b }}"', "{{ a }} and {{ b }}"),
    ("input.prompt", "|\n    Say:\n    {{ a }}", "Say:\n{{ a }}\n"),
    ("input.column", "prompt", "prompt"),
    ("input.messages", "messages", "messages"),
    ("input.system", "Be brief.", "Be brief."),
    ("input.where", "length(text) > 20", "length(text) > 20"),
    ("input.keep", "[id, task]", ["id", "task"]),
    ("input.keep", "[]", []),
    ("input.chat", "true", True),
    ("input.chat", "False", False),
    ("input.chat", "null", None),
    ("sampling.max_tokens", "1", 1),
    ("sampling.max_tokens", "2147483647", 2147483647),
    ("sampling.max_tokens", "010", 10),
    ("sampling.max_tokens", "0x10", 16),
    ("sampling.temperature", "0", 0.0),
    ("sampling.temperature", "0.0", 0.0),
    ("sampling.temperature", "-0.0", 0.0),
    ("sampling.temperature", "0e5", 0.0),
    ("sampling.temperature", "0.7", 0.7),
    ("sampling.temperature", "1e-5", 1e-5),
    ("sampling.temperature", "1", 1.0),
    ("sampling.min_tokens", "3", 3),
    ("sampling.top_p", "0.9", 0.9),
    ("sampling.top_p", "1e-6", 1e-6),
    ("sampling.repetition_penalty", "0.001", 0.001),
    ("sampling.top_k", "40", 40),
    ("sampling.min_p", "0.05", 0.05),
    ("sampling.repetition_penalty", "1.1", 1.1),
    ("sampling.repetition_context_size", "64", 64),
    ("sampling.presence_penalty", "-0.5", -0.5),
    ("sampling.presence_context_size", "1024", 1024),
    ("sampling.frequency_penalty", "2", 2.0),
    ("sampling.frequency_context_size", "1", 1),
    ("sampling.logit_bias", "{7: -100, '8': 1.5}", {"7": -100.0, "8": 1.5}),
    ("sampling.logit_bias", "'{\"7\": 1}'", {"7": 1.0}),
    ("sampling.stop", "END", "END"),
    ("sampling.stop", "[END, '\\n']", ["END", "\\n"]),
    ("sampling.stop_token_ids", "7", 7),
    ("sampling.stop_token_ids", "[7, 8]", [7, 8]),
    ("sampling.ignore_eos", "true", True),
    ("sampling.seed", "9223372036854775807", 2**63 - 1),
    ("sampling.n", "4", 4),
    ("sampling.thinking", "false", False),
    ("sampling.thinking_budget", "0", 0),
    ("sampling.json_schema", "{type: object}", '{"type": "object"}'),
    ("sampling.json_schema", '\'{"type":  "string"}\'', '{"type": "string"}'),
    ("sampling.regex", "'[0-9]+'", "[0-9]+"),
    ("sampling.choice", "[yes, no]", ["yes", "no"]),
    ("sampling.coupling", "rejection", "rejection"),
    ("output.path", "out/summaries.parquet", "out/summaries.parquet"),
    ("output.checkpoint_every", "30s", 30.0),
    ("output.checkpoint_every", "5m", 300.0),
    ("output.checkpoint_every", "1.5h", 5400.0),
    ("output.checkpoint_every", "250ms", 0.25),
    ("output.checkpoint_every", "12", 12.0),
    ("output.checkpoint_every", "0.5", 0.5),
    ("output.checkpoint_every", "'7'", 7.0),
    ("output.token_ids", "true", True),
    ("output.logprobs", "true", True),
    ("engine.max_rows", "auto", "auto"),
    ("engine.max_rows", "1", 1),
    ("engine.block_size", "auto", "auto"),
    ("engine.block_size", "2", 2),
    ("engine.block_size", "64", 64),
    ("engine.prefill_chunk", "1", 1),
    ("engine.memory", "auto", "auto"),
    ("engine.memory", "40GB", 40_000_000_000),
    ("engine.memory", "1.5 MB", 1_500_000),
    ("engine.memory", "123456", 123456),
    ("engine.dtype", "bfloat16", "bfloat16"),
    ("engine.weights", "{bits: 4}", WeightsSpec(bits=4, group_size=64)),
    ("engine.drafter_bits", "8", 8),
    ("report.group_by", "task", "task"),
]

REFUSED: list[tuple[str, str, str]] = [
    ("name", "12", f"found 12, {TEXT}"),
    ("name", '""', 'found "", must not be empty'),
    ("model", "", f"found nothing, {TEXT}"),
    ("model", "'  '", 'found "", must not be empty'),
    ("model", "true", f"found true, {TEXT}"),
    ("model", "[a]", f"found a list, {TEXT}"),
    ("model", "{a: b}", f"found a mapping, {TEXT}"),
    ("model", '"a\\0b"', 'found "a\x00b", must not hold a NUL character'),
    ("model", '"\\ud800"', "must be Unicode text, and holds a lone surrogate"),
    ("model", "!path x", "the tag !path may not stand here; leave it out"),
    ("revision", "1.0", f"found 1.0, {TEXT}"),
    ("drafter", "3", f"found 3, {TEXT}"),
    ("drafter_revision", "false", f"found false, {TEXT}"),
    ("input", "in.parquet", "found in.parquet, must be a mapping of keys"),
    ("input.path", "", f"found nothing, {PATHS}"),
    ("input.path", "[]", PATHS),
    ("input.path", "[a, 1]", PATHS),
    ("input.path", "[a, ' ']", "must not be empty"),
    ("input.path", "[a, b, a]", "names a twice"),
    ("input.path", "{a: b}", PATHS),
    ("input.id", "0", f"found 0, {TEXT}"),
    ("input.prompt", "1e-5", f"found 1e-5, {TEXT}"),
    (
        "input.prompt",
        '"{{ text "',
        'found "{{ text", must be a Jinja template: unexpected end of template, expected end of print statement',
    ),
    (
        "input.prompt",
        '"{% for x in y %}"',
        'found "{% for x in y %}", must be a Jinja template: Unexpected end of template. Jinja was looking for the '
        "following tags: endfor or else. The innermost block that needs to be closed is for",
    ),
    ("input.column", "[a]", f"found a list, {TEXT}"),
    ("input.messages", "7", f"found 7, {TEXT}"),
    ("input.system", '""', 'found "", must not be empty'),
    ("input.where", "true", f"found true, {TEXT}"),
    ("input.keep", "id", "found id, must be a list"),
    ("input.keep", "[a, b, a]", "names a twice"),
    ("input.chat", "yes", "found yes, must be true or false"),
    ("input.chat", "on", "found on, must be true or false"),
    ("input.chat", "1", "found 1, must be true or false"),
    ("input.chat", "'true'", 'found "true", must be true or false'),
    ("sampling", "3", "found 3, must be a mapping of keys"),
    ("sampling.max_tokens", "0", "found 0, must be at least 1"),
    ("sampling.max_tokens", "-1", "found -1, must be at least 1"),
    ("sampling.max_tokens", "2147483648", "found 2147483648, must be at most 2147483647"),
    ("sampling.max_tokens", "1.0", "found 1.0, must be a whole number"),
    ("sampling.max_tokens", "1e3", "found 1e3, must be a whole number"),
    ("sampling.max_tokens", "'12'", 'found "12", must be a whole number'),
    ("sampling.max_tokens", "true", "found true, must be a whole number"),
    ("sampling.max_tokens", "", "found nothing, must be a whole number"),
    ("sampling.max_tokens", "1_000", "found 1_000, must be a whole number"),
    ("sampling.max_tokens", "12:30", "found 12:30, must be a whole number"),
    ("sampling.temperature", ".nan", "found .nan, must be a finite number"),
    ("sampling.temperature", "hot", "found hot, must be a number"),
    ("sampling.temperature", "false", "found false, must be a number"),
    ("sampling.temperature", "-1", "found -1, must be at least 0"),
    ("sampling.temperature", "101", "found 101, must be at most 100"),
    ("sampling.min_tokens", "-1", "found -1, must be at least 0"),
    ("sampling.temperature", "1e-39", "found 1e-39, must be 0 or at least 1e-05"),
    ("sampling.temperature", "0.000009", "found 0.000009, must be 0 or at least 1e-05"),
    ("sampling.top_p", "0", "found 0, must be at least 1e-06"),
    ("sampling.top_p", "1e-46", "found 1e-46, must be at least 1e-06"),
    ("sampling.top_p", "1.1", "found 1.1, must be at most 1"),
    ("sampling.top_k", "-1", "found -1, must be at least 0"),
    ("sampling.top_k", "1.5", "found 1.5, must be a whole number"),
    ("sampling.min_p", "1.5", "found 1.5, must be at most 1"),
    ("sampling.repetition_penalty", "0", "found 0, must be at least 0.001"),
    ("sampling.repetition_penalty", "1e-46", "found 1e-46, must be at least 0.001"),
    ("sampling.repetition_context_size", "0", "found 0, must be at least 1"),
    ("sampling.presence_penalty", "101", "found 101, must be at most 100"),
    ("sampling.presence_context_size", "1025", "found 1025, must be at most 1024"),
    ("sampling.frequency_penalty", "-101", "found -101, must be at least -100"),
    ("sampling.frequency_context_size", "0", "found 0, must be at least 1"),
    ("sampling.logit_bias", "{x: 1}", "must map token ids to numbers, and has the key x"),
    ("sampling.logit_bias", '\'{"5": 1, "5": 2}\'', 'found "{"5": 1, "5": 2}", names 5 twice'),
    ("sampling.logit_bias", "'{\"5\": 1'", f'found "{{"5": 1", must be JSON: {COMMA} (line 1, column 8)'),
    ("sampling.logit_bias", f"'{{\"5\": {'9' * 5000}}}'", f'found "{{"5": {"9" * 51}...", {LONG_NUMBER}'),
    ("sampling.stop", "''", 'found "", must not be empty'),
    ("sampling.stop", "null", f"found null, {STOP}"),
    ("sampling.stop", "", f"found nothing, {STOP}"),
    ("sampling.stop", "5", f"found 5, {STOP}"),
    ("sampling.stop", "true", f"found true, {STOP}"),
    ("sampling.stop_token_ids", "-1", "found -1, must be at least 0"),
    ("sampling.stop_token_ids", "null", f"found null, {STOP_IDS}"),
    ("sampling.stop_token_ids", "true", f"found true, {STOP_IDS}"),
    ("sampling.stop_token_ids", "1.5", f"found 1.5, {STOP_IDS}"),
    ("sampling.ignore_eos", "1", "found 1, must be true or false"),
    ("sampling.n", "0", "found 0, must be at least 1"),
    ("sampling.n", "1025", "found 1025, must be at most 1024"),
    ("sampling.thinking", "1", "found 1, must be true or false"),
    ("sampling.thinking_budget", "-1", "found -1, must be at least 0"),
    ("sampling.json_schema", "[a]", "must be a JSON schema: a mapping, or the text of a JSON object"),
    (
        "sampling.json_schema",
        "'{'",
        'found "{", must be JSON: Expecting property name enclosed in double quotes (line 1, column 2)',
    ),
    (
        "sampling.json_schema",
        '\'{"type": "null", "type": "string"}\'',
        'found "{"type": "null", "type": "string"}", names type twice',
    ),
    (
        "sampling.json_schema",
        f"{{enum: [{'x' * 1_000_001}]}}",
        "must be a JSON schema of at most 1000000 characters",
    ),
    ("sampling.json_schema", "{maximum: .inf}", "must be a JSON schema, whose numbers are all finite"),
    ("sampling.regex", "''", 'found "", must not be empty'),
    ("sampling.choice", "[]", "found a list, must have at least 1 entries, and has 0"),
    ("sampling.coupling", "own", "found own, must be one of shared or rejection"),
    ("sampling.seed", "-1", "found -1, must be at least 0"),
    ("sampling.seed", "9223372036854775808", "found 9223372036854775808, must be at most 9223372036854775807"),
    ("output", "[]", "found a list, must be a mapping of keys"),
    ("output.path", "out/", f"found out/, {PARQUET}, not a folder"),
    ("output.path", "out", f"found out, {PARQUET}"),
    ("output.path", "out.jsonl", f"found out.jsonl, {PARQUET}"),
    ("output.path", ".parquet", f"found .parquet, {PARQUET}"),
    ("output.path", "5", f"found 5, {TEXT}"),
    ("output.checkpoint_every", "0", f"found 0, {DURATION}"),
    ("output.checkpoint_every", "-3", f"found -3, {DURATION}"),
    ("output.checkpoint_every", "3x", f"found 3x, {DURATION}"),
    ("output.checkpoint_every", "0s", f"found 0s, {DURATION}"),
    ("output.checkpoint_every", ".inf", f"found .inf, {DURATION}"),
    ("output.checkpoint_every", "true", f"found true, {DURATION}"),
    ("output.checkpoint_every", "", f"found nothing, {DURATION}"),
    ("output.token_ids", "1", "found 1, must be true or false"),
    ("output.logprobs", "1", "found 1, must be true or false"),
    ("engine", "fast", "found fast, must be a mapping of keys"),
    ("engine.max_rows", "0", "found 0, must be auto or a whole number of at least 1"),
    ("engine.max_rows", "all", "found all, must be auto or a whole number of at least 1"),
    ("engine.max_rows", "true", "found true, must be auto or a whole number of at least 1"),
    ("engine.block_size", "1", "found 1, must be auto or a whole number from 2 to 64"),
    ("engine.block_size", "4.0", "found 4.0, must be auto or a whole number from 2 to 64"),
    ("engine.block_size", "65", "found 65, must be auto or a whole number from 2 to 64"),
    ("engine.prefill_chunk", "0", "found 0, must be at least 1"),
    ("engine.prefill_chunk", "auto", "found auto, must be a whole number"),
    ("engine.memory", "0", "found 0, must be auto or a size above 0, such as 40GB or 900MB"),
    ("engine.memory", "much", "found much, must be auto or a size above 0, such as 40GB or 900MB"),
    ("engine.dtype", "int8", f"found int8, {DTYPES}"),
    ("engine.dtype", "32", f"found 32, {DTYPES}"),
    ("engine.weights", "4", "found 4, must be a mapping of keys"),
    ("engine.drafter_bits", "5", "found 5, must be one of 4 or 8"),
    ("report", "task", "found task, must be a mapping of keys"),
    ("report.group_by", "1", f"found 1, {TEXT}"),
]

SAMPLING_FAULTS: list[tuple[dict[str, str | None], str]] = [
    ({"sampling.top_p": "0.9"}, "top_p has no effect at temperature 0; give a temperature, or leave top_p out"),
    ({"sampling.n": "4"}, "n has no effect at temperature 0; give a temperature, or leave n out"),
    (
        {"sampling.coupling": "rejection"},
        "coupling has no effect at temperature 0; give a temperature, or leave coupling out",
    ),
    (
        {"sampling.presence_context_size": "5"},
        "presence_context_size has no effect without presence_penalty",
    ),
    (
        {"sampling.thinking": "false", "sampling.thinking_budget": "5"},
        "thinking_budget has no effect with thinking: false; leave one of them out",
    ),
    (
        {"sampling.thinking": "false", "sampling.thinking_budget": "{column: b}"},
        "thinking_budget has no effect with thinking: false; leave one of them out",
    ),
    # What rows have whose columns are null.
    (
        {"sampling.regex": "{column: r, default: a+}", "sampling.choice": "{column: c, default: [x]}"},
        "must have only one of json_schema, regex, choice, and has regex and choice",
    ),
    (
        {"sampling.min_tokens": "{column: m, default: 50}", "sampling.max_tokens": "10"},
        "min_tokens is 50, and max_tokens only 10",
    ),
    (
        {"sampling.thinking": "{column: t, default: false}", "sampling.thinking_budget": "{column: b, default: 3}"},
        "thinking_budget has no effect with thinking: false; leave one of them out",
    ),
    ({"sampling.min_tokens": "9", "sampling.max_tokens": "8"}, "min_tokens is 9, and max_tokens only 8"),
    (
        {"sampling.regex": "a+", "sampling.choice": "[a]"},
        "must have only one of json_schema, regex, choice, and has regex and choice",
    ),
    (
        {"sampling.regex": "a+", "sampling.ignore_eos": "true"},
        "regex says where a completion ends, and ignore_eos that it goes on",
    ),
    (
        {"sampling.regex": "a+", "sampling.min_tokens": "2"},
        "regex says where a completion ends, and min_tokens where it may not",
    ),
]

SECTIONS = ("input", "sampling", "output", "engine", "report")


def needed_for(key: str) -> dict[str, str | None]:
    """What must stand or not stand beside a key for the job to be whole."""
    if key in ("input.column", "input.messages"):
        return {"input.prompt": None}
    if key in SECTIONS:
        return {name: None for name in ("input.path", "input.prompt", "output.path") if name.startswith(key)}
    if key in ("sampling.top_p", "sampling.top_k", "sampling.min_p", "sampling.n"):
        return {"sampling.temperature": "1"}
    if key == "sampling.coupling":
        return {"sampling.temperature": "1", "drafter": "some/drafter"}
    if key.endswith("_context_size"):
        return {key.replace("_context_size", "_penalty"): "1.5"}
    return (
        {"drafter": "some/drafter"} if key in ("drafter_revision", "engine.block_size", "engine.drafter_bits") else {}
    )


def value_of(job: object, key: str) -> Any:
    for name in key.split("."):
        job = getattr(job, name)
    return job


def keys_of_schema() -> list[str]:
    schema = job_schema()
    keys = []
    for name, info in schema["properties"].items():
        section = info.get("$ref", "").removeprefix("#/$defs/")
        keys += [f"{name}.{key}" for key in schema["$defs"][section]["properties"]] if section else [name]
    return sorted(keys)


@pytest.mark.parametrize(("key", "text", "value"), TAKEN)
def test_taken(tmp_path: Path, key: str, text: str, value: Any) -> None:
    path, _ = write_job(tmp_path, needed_for(key) | {key: text})
    found = value_of(load_job(path), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("key", "text", "message"), REFUSED)
def test_refused_with_file_line_key_and_what_was_found(tmp_path: Path, key: str, text: str, message: str) -> None:
    path, lines = write_job(tmp_path, needed_for(key) | {key: text})
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value) == f"{path}:{lines[key]}: {key}: {message}"


@pytest.mark.parametrize("table", [TAKEN, REFUSED])
def test_the_tables_cover_every_key(table: list[tuple[str, str, Any]]) -> None:
    assert sorted({key for key, _, _ in table if key not in SECTIONS}) == keys_of_schema()


@pytest.mark.parametrize("key", ["model", "input.path", "output.path"])
def test_required(tmp_path: Path, key: str) -> None:
    path, lines = write_job(tmp_path, {key: None} | ({"output.checkpoint_every": "1s"} if "output" in key else {}))
    with pytest.raises(JobError) as caught:
        load_job(path)
    line = lines[key.partition(".")[0]] if "." in key else 1
    assert str(caught.value) == f"{path}:{line}: {key}: missing, and every job needs it"


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ({"input.prompt": None}, "input", "must have one of prompt, column, messages"),
        (
            {"input.column": "c"},
            "input",
            "must have only one of prompt, column, messages, and has prompt and column",
        ),
        (
            {"input.prompt": None, "input.column": "c", "input.messages": "m"},
            "input",
            "must have only one of prompt, column, messages, and has column and messages",
        ),
        (
            {"input.prompt": None, "input.messages": "m", "input.chat": "false"},
            "input",
            "messages need the chat template, and chat: false turns it off",
        ),
        (
            {"input.system": "s", "input.chat": "false"},
            "input",
            "system needs the chat template, and chat: false turns it off",
        ),
        *((values, "sampling", message) for values, message in SAMPLING_FAULTS),
        (
            {"sampling.coupling": "rejection", "sampling.temperature": "1"},
            "",
            "sampling.coupling: rejection is given without a drafter, and would have no effect",
        ),
        ({"drafter_revision": "v1"}, "", "drafter_revision is given without a drafter"),
        ({"engine.block_size": "4"}, "", "engine.block_size is given without a drafter, and would have no effect"),
        (
            {"report.group_by": "task", "input.keep": "[id]"},
            "",
            "report.group_by names task, which input.keep does not carry to the output",
        ),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, values: dict[str, str | None], key: str, message: str) -> None:
    path, lines = write_job(tmp_path, values)
    with pytest.raises(JobError) as caught:
        load_job(path)
    place = f"{path}:{lines[key]}: {key}" if key else f"{path}:1"
    assert str(caught.value) == f"{place}: {message}"


def test_a_column_in_place_of_a_value(tmp_path: Path) -> None:
    columns: dict[str, str | None] = {
        "sampling.temperature": "{column: t, default: 0.5}",
        "sampling.stop": "{column: stops, default: [a, b]}",
        "sampling.json_schema": "{column: schema}",
    }
    sampling = load_job(write_job(tmp_path, columns)[0]).sampling
    assert sampling.columns() == {"temperature": "t", "stop": "stops", "json_schema": "schema"}
    assert sampling.defaults() == Sampling(temperature=0.5, stop=("a", "b"))


NO_COLUMN = "missing; a value that rows give themselves is written {column: NAME}, or {column: NAME, default: VALUE}"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{column: 1}", ".column", f"found 1, {TEXT}"),
        ("{column: t, default: -1}", ".default", "found -1, must be at least 0"),
        ("{column: t, defaults: 1}", ".defaults", "unknown key, did you mean default"),
        ("{column: t, other: 1}", ".other", "unknown key, the keys here are column, default"),
        ("{colum: t}", ".colum", "unknown key, did you mean column"),
        ("{default: 0.5}", ".column", NO_COLUMN),
        ("{}", ".column", NO_COLUMN),
    ],
)
def test_faults_of_a_column_stand_where_they_are(tmp_path: Path, text: str, place: str, message: str) -> None:
    path, lines = write_job(tmp_path, {"sampling.temperature": text})
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value) == f"{path}:{lines['sampling.temperature']}: sampling.temperature{place}: {message}"


@pytest.mark.parametrize("key", ["stop", "choice", "thinking", "max_tokens", "logit_bias", "json_schema"])
def test_a_mistyped_column_is_no_value_of_any_key(tmp_path: Path, key: str) -> None:
    path, lines = write_job(tmp_path, {f"sampling.{key}": "{columm: t}"})
    with pytest.raises(JobError) as caught:
        load_job(path)
    place = f"{path}:{lines[f'sampling.{key}']}: sampling.{key}"
    assert str(caught.value) == f"{place}.columm: unknown key, did you mean column"


def test_mappings_that_are_values_stay_values(tmp_path: Path) -> None:
    for key, text in {"json_schema": "{default: 1}", "logit_bias": "{1: 2.5}"}.items():
        assert load_job(write_job(tmp_path, {f"sampling.{key}": text})[0]).sampling.columns() == {}


def test_a_fault_in_a_list_names_its_place(tmp_path: Path) -> None:
    path, lines = write_job(tmp_path, {"sampling.stop": "[a, 1]"})
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value) == f"{path}:{lines['sampling.stop']}: sampling.stop[1]: found 1, {TEXT}"


def test_what_is_left_out_is_what_does_nothing() -> None:
    assert SamplingSpec().defaults() == Sampling()


def test_defaults(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, {}, "nightly.yaml")[0])
    assert (job.name, job.drafter, job.input.chat, job.input.keep) == ("nightly", None, None, None)
    assert (job.sampling.max_tokens, job.sampling.temperature, job.sampling.seed) == (256, 0.0, 0)
    assert job.output.checkpoint_every == 30.0
    assert (job.engine.max_rows, job.engine.block_size, job.engine.prefill_chunk) == ("auto", "auto", 512)
    assert (job.engine.dtype, job.report.group_by) == ("auto", None)
    assert job.input.paths == ("in.parquet",)
