"""Job files as a whole: unknown keys, several problems at once, files that are no job, overrides, and the way back."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import JobError
from batchgen.job.load import dump_job, job_schema, load_job
from batchgen.job.spec import InputSpec, Job, OutputSpec, SamplingSpec
from tests.job.builders import write_job


def message(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(JobError) as caught:
        load_job(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("modle", "did you mean model"),
        ("max_tokens", "max_tokens belongs in sampling"),
        ("input.max_tokens", "max_tokens belongs in sampling"),
        ("sampling.model", "model belongs at the top level"),
        ("sampling.temprature", "did you mean temperature"),
        ("engine.checkpoint", "did you mean output.checkpoint_every"),
        ("input.colum", "did you mean column"),
        ("prompts", "did you mean input.prompt"),
        ("sampling.qqq", f"the keys here are {', '.join(SamplingSpec.model_fields)}"),
        ("sampling.topp", "did you mean top_p"),
        ("report.1", "the keys here are group_by"),
    ],
)
def test_unknown_keys(tmp_path: Path, key: str, hint: str) -> None:
    path, lines = write_job(tmp_path, {key: "1"})
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value) == f"{path}:{lines[key]}: {key}: unknown key, {hint}"


def test_a_mistyped_key_is_not_called_missing_as_well(tmp_path: Path) -> None:
    path, lines = write_job(tmp_path, {"model": None, "modle": "m", "input.path": None, "input.pth": "a.parquet"})
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).splitlines() == [
        f"{path}:{lines['modle']}: modle: unknown key, did you mean model",
        f"{path}:{lines['input.pth']}: input.pth: unknown key, did you mean path",
    ]


def test_all_problems_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    text = """\
model: m
input:
  path: a.parquet
  promt: hello
sampling: {max_tokens: 0, temperature: -2}
output: {path: out.csv}
"""
    assert message(path, text).splitlines() == [
        f"{path}:4: input.promt: unknown key, did you mean prompt",
        f"{path}:5: sampling.max_tokens: found 0, must be at least 1",
        f"{path}:5: sampling.temperature: found -2, must be at least 0",
        f"{path}:6: output.path: found out.csv, must be a file whose name ends in .parquet",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "{path}: the file is empty, and a job needs at least model, input and output"),
        ("# only a comment\n", "{path}: the file is empty, and a job needs at least model, input and output"),
        ("- a\n- b\n", "{path}: a job is a mapping of keys, and this is a list"),
        ("just text", "{path}: a job is a mapping of keys, and this is just text"),
        (b"model: R\xc9UNION\n", "{path}: is not UTF-8 text (byte 8); save it as UTF-8"),
        (
            "model: m\ninput: [\n",
            "{path}:3: not valid YAML: while parsing a flow node, expected the node content, but ",
        ),
        ("model: m\n\tinput: a\n", "{path}:2: not valid YAML: while scanning for the next token, found character "),
        ("a: b: c\n", "{path}:1: not valid YAML: mapping values are not allowed here"),
        ("a: *x\n", "{path}:1: not valid YAML: found undefined alias 'x'"),
        ("model: m\n---\nmodel: n\n", "{path}:2: not valid YAML: expected a single document in the stream, but found "),
        ("model: \x01\n", "{path}:1: not valid YAML: the character U+0001 may not stand here"),
        ('model: "\\U99999999"\n', "{path}: not valid YAML: "),
        ("[" * 5000, "{path}: nested too deeply to be a job"),
        ("model: m\nmodel: n\n", "{path}:2: model: stands twice, first in line 1"),
        ("input:\n  path: a\n  path: b\n", "{path}:3: input.path: stands twice, first in line 2"),
        ("model: &a [*a]\n", "{path}:1: model[0]: an alias may not stand for what contains it"),
        ("? [a]\n: b\n", "{path}:1: a key must be a name, not a list"),
        (
            "model: !!python/name:os.system x\n",
            "{path}:1: model: the tag !!python/name:os.system may not stand here; leave it out",
        ),
        ('max_tokens: !!int "5"\n', "{path}:1: max_tokens: the tag !!int may not stand here; leave it out"),
        ("model: !!str m\n", "{path}:1: model: the tag !!str may not stand here; leave it out"),
        ("model: ! m\n", "{path}:1: model: the tag ! may not stand here; leave it out"),
        ("model: !<tag:yaml.org,2002:str> m\n", "{path}:1: model: the tag !!str may not stand here; leave it out"),
        ("!!map\nmodel: m\n", "{path}:1: the tag !!map may not stand here; leave it out"),
        ("!!str model: m\n", "{path}:1: the tag !!str may not stand here; leave it out"),
        ("input: {keep: !!seq [a]}\n", "{path}:1: input.keep: the tag !!seq may not stand here; leave it out"),
        ("a: &x !!int 1\nb: *x\n", "{path}:1: a: the tag !!int may not stand here; leave it out"),
        (f"model: {'9' * 5000}\n", f"{{path}}:1: model: found {'9' * 57}..., which cannot be read as !!int"),
    ],
)
def test_files_that_are_no_job(tmp_path: Path, text: str | bytes, expected: str) -> None:
    path = tmp_path / "x.yaml"
    assert message(path, text).startswith(expected.format(path=path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"none\.yaml: no such job file"):
        load_job(tmp_path / "none.yaml")
    with pytest.raises(JobError, match="is a folder, not a job file"):
        load_job(tmp_path)


def test_aliases_of_aliases_cost_no_more_than_they_are_long(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert "a59: unknown key" in message(tmp_path / "x.yaml", "\n".join(levels))


def test_aliases_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(
        b"\xef\xbb\xbfmodel: &m a/b\ndrafter: *m\ninput: {path: i, column: c}\noutput: {path: o.parquet}\n"
    )
    assert load_job(path).drafter == "a/b"


def test_overrides_stand_in_for_what_the_file_has(tmp_path: Path) -> None:
    path, _ = write_job(tmp_path, {"sampling.seed": "3"})
    job = load_job(path, {"sampling.max_tokens": "7", "engine.dtype": "float32", "model": "other", "drafter": "null"})
    assert (job.sampling.max_tokens, job.sampling.seed, job.engine.dtype, job.model) == (7, 3, "float32", "other")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"sampling.max_tokens": "0"}, "--set sampling.max_tokens: sampling.max_tokens: found 0, must be at least 1"),
        (
            {"sampling.maxtokens": "5"},
            "--set sampling.maxtokens: sampling.maxtokens: unknown key, did you mean max_tokens",
        ),
        ({"model": "[a"}, "--set model:1: not valid YAML: "),
        ({"model": ""}, '--set model: model: found "", must not be empty'),
    ],
)
def test_bad_overrides_name_themselves(tmp_path: Path, overrides: dict[str, str], expected: str) -> None:
    path, _ = write_job(tmp_path, {})
    with pytest.raises(JobError) as caught:
        load_job(path, overrides)
    assert str(caught.value).startswith(expected)


def test_a_file_is_read_the_same_after_overrides_of_other_keys(tmp_path: Path) -> None:
    path, _ = write_job(tmp_path, {})
    load_job(path, {"sampling.seed": "5"})
    assert load_job(path).sampling.seed == 0


def test_json_schema_refuses_unknown_keys_and_needs_what_a_job_needs() -> None:
    schema = json.loads(json.dumps(job_schema()))
    assert schema["required"] == ["model", "input", "output"]
    assert schema["additionalProperties"] is False
    assert [part["additionalProperties"] for part in schema["$defs"].values()] == [False] * 6
    value, column = schema["$defs"]["SamplingSpec"]["properties"]["max_tokens"]["anyOf"]
    assert (value["minimum"], column["additionalProperties"]) == (1, False)
    assert all("description" in info for part in schema["$defs"].values() for info in part["properties"].values())


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda text: bool(text.strip())
)


@settings(max_examples=100, deadline=None)
@given(model=words, system=words, keep=st.lists(words, unique=True), seed=st.integers(0, 2**63 - 1))
def test_a_dumped_job_reads_to_an_equal_one(
    tmp_path_factory: pytest.TempPathFactory, model: str, system: str, keep: list[str], seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    job = Job.model_validate(
        {
            "name": "1e-5",
            "model": model,
            "input": {"path": ["yes", "0o7"], "column": "null", "system": system, "keep": keep},
            "sampling": {"seed": seed},
            "output": {"path": "12:30.parquet", "checkpoint_every": 0.1},
        }
    )
    path.write_text(dump_job(job), encoding="utf-8")
    assert load_job(path) == job


def test_a_dumped_job_holds_every_default(tmp_path: Path) -> None:
    job = Job(name="n", model="m", input=InputSpec(path="i", column="c"), output=OutputSpec(path="o.parquet"))
    text = dump_job(job)
    assert [line for line in text.splitlines() if line.endswith(": 256")] == ["  max_tokens: 256"]
    assert "  checkpoint_every: 30.0" in text.splitlines()


fragments = st.sampled_from(
    [
        *(
            "model",
            "input",
            "output",
            "path",
            "prompt",
            "sampling",
            "max_tokens",
            "keep",
            "engine",
            "report",
            "{{ x }}",
        ),
        *(": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", "&a ", "*a", "!!int ", "!x ", "|\n", ">", "'", '"', "\\"),
        *("? ", "#", "---\n", "%YAML 1.1\n", "<<: ", "1e-5", "yes", "null", "0", "-1", ".inf", "\t", "\u2028", "\x85"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.lists(fragments, max_size=30).map("".join), st.text(max_size=60), st.binary(max_size=40)))
def test_whatever_a_file_holds_is_a_job_or_a_job_error(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        load_job(path)
    except JobError as error:
        assert str(error).startswith(str(path))


yaml_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
SECTION_KEYS = {
    "input": ["path", "id", "prompt", "column", "messages", "system", "where", "keep", "chat"],
    "sampling": ["max_tokens", "temperature", "seed"],
    "output": ["path", "checkpoint_every"],
    "engine": ["max_rows", "block_size", "prefill_chunk", "dtype"],
    "report": ["group_by"],
}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_the_values_are_it_is_a_job_or_a_job_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    job: dict[str, object] = {"model": "m", "input": {"path": "i", "column": "c"}, "output": {"path": "o.parquet"}}
    section = data.draw(st.sampled_from(sorted(SECTION_KEYS)))
    part = job.setdefault(section, {})
    assert isinstance(part, dict)
    part[data.draw(st.sampled_from(SECTION_KEYS[section]))] = data.draw(yaml_values)
    path = tmp_path_factory.getbasetemp() / "values.yaml"
    path.write_text(json.dumps(job))
    try:
        load_job(path)
    except JobError as error:
        assert str(error).startswith(str(path))
