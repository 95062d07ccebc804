"""A job as a whole: what is wrong with one of its keys is told with the file and the line of the key."""

from pathlib import Path

import pytest

from batchgen.backend import MlxBackend
from batchgen.errors import BatchgenError, InputError
from batchgen.job.load import told_with_line
from batchgen.plan import Plan, plan_job
from tests.job.builders import write_job
from tests.prompts.builders import write, write_model


def no_engine(model: Path, drafter: Path | None, vocab_size: int) -> None:
    """An engine that can decode anything."""


def plan(folder: Path, values: dict[str, str | None]) -> Plan:
    """The plan of a job with these keys."""
    write(folder / "in.parquet", {"text": ["one", "two"], "r": ["a", "a("]})
    write_model(folder / "model")
    known = {"model": f"{folder}/model", "input.path": f"{folder}/in.parquet", "output.path": f"{folder}/o.parquet"}
    path, _ = write_job(folder, known | values)
    backend = MlxBackend()
    backend.check_pair = no_engine  # type: ignore[method-assign]
    return plan_job(path, backend)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sampling.regex", '"a("', "sampling.regex: unclosed group"),
        (
            "sampling.json_schema",
            "{properties: {a: {maxlength: 1}}}",
            "sampling.json_schema: at #/properties/a: the key",
        ),
        ("sampling.stop_token_ids", "[99999]", "sampling.stop_token_ids: found token id 99999, must be at most 511"),
        ("sampling.logit_bias", "{99999: 1}", "sampling.logit_bias: found token id 99999"),
        ("sampling.thinking", "true", "sampling.thinking: found true, but the model's chat template"),
        ("input.where", '"text = = 5"', "input.where: "),
        ("input.where", '"nothing > 5"', "input.where: no column nothing"),
        ("input.path", "nowhere.parquet", "input.path: nowhere.parquet: no such file or folder"),
        ("model", "./nowhere", "model: ./nowhere is no folder"),
        ("output.path", "/proc/o.parquet", "output.path: /proc/o.parquet cannot be written"),
        ("input.id", "idd", "{folder}/in.parquet: no column idd, which input.id names"),
        ("report.group_by", "txt", "{folder}/in.parquet: no column txt, which report.group_by names"),
        ("sampling.seed", "{column: s}", "{folder}/in.parquet: no column s, which sampling.seed names"),
    ],
)
def test_the_line_of_the_key(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(BatchgenError) as caught:
        plan(tmp_path, {key: value})
    assert caught.value.exit_code == 2
    where, _, text = str(caught.value).removeprefix(f"{tmp_path}/job.yaml:").partition(": ")
    assert (tmp_path / "job.yaml").read_text().splitlines()[int(where) - 1].strip() == f"{key.split('.')[-1]}: {value}"
    assert text.startswith(message.format(folder=tmp_path))


def test_a_message_about_no_key_and_a_file_that_is_gone_stay_as_they_are(tmp_path: Path) -> None:
    path, _ = write_job(tmp_path, {})
    for message, file in [
        ("in.parquet: is damaged", path),
        ("sampling.seed: odd", path),
        ("model: odd", tmp_path / "x"),
    ]:
        with pytest.raises(InputError) as caught, told_with_line(file):
            raise InputError(message)
        assert str(caught.value) == message


def test_a_row_s_own_value_is_told_with_its_column(tmp_path: Path) -> None:
    found = plan(tmp_path, {"sampling.regex": "{column: r}"})
    good, bad = (found.codec.requests(prompt, [0]) for prompt in found.table.prompts())
    assert isinstance(good, list) and not isinstance(bad, list)
    assert bad.message.startswith(f"{tmp_path}/in.parquet: row 1: column r, which sampling.regex names: unclosed group")
