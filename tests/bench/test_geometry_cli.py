"""`bench --geometry` on the command line: what goes together, lists with commas, and the file beside."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchgen.cli import main

TINY = ("--geometry", "tiny-dense")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *(str(argument) for argument in arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "bench measures either a JOB or a --geometry; give one of them."),
        (("job.yaml", *TINY), "bench measures either a JOB or a --geometry; give one of them."),
        (("--geometry", "qwen9"), "--geometry 'qwen9' is not known; known are qwen3.5-27b, qwen3.5-4b, "),
        ((*TINY, "--rows", "3"), "--rows goes with a JOB only."),
        (("job.yaml", "--block", "8"), "--block goes with --geometry only."),
        (("job.yaml", "--prefill", "8"), "--prefill goes with --geometry only."),
        ((*TINY, "--prefill", "8", "--batch", "1"), "--batch does not go with --prefill."),
        ((*TINY, "--batch", "1,x"), "'1,x' is not a list of whole numbers of at least 1 with commas between them"),
        ((*TINY, "--batch", "0"), "'0' is not a list of whole numbers of at least 1"),
        ((*TINY, "--prefill", "1"), "'1' is not a list of whole numbers of at least 2"),
        ((*TINY, "--acceptance", "0.5"), "'0.5' is not a list of numbers of at least 1"),
        ((*TINY, "--acceptance", "2,nan"), "'2,nan' is not a list of numbers of at least 1"),
        ((*TINY, "--acceptance", "2,"), "'2,' is not a list of numbers of at least 1"),
        ((*TINY, "--acceptance", "5", "--block", "4"), "--acceptance: a block of 4 gives at most 4 tokens a round."),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]
    assert result.stdout == ""


def test_figures_are_written_beside(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    options = ("--batch", "1,2", "--acceptance", "2,3", "--block", "4", "--context", "9", "--tokens", "4")
    result = invoke(*TINY, *options, "--repeats", "1", "--dtype", "float32", "--json", path)
    assert result.exit_code == 0, result.output
    plan = json.loads(path.read_text())["plan"]
    assert plan == {
        "geometry": "tiny-dense",
        "batches": [1, 2],
        "acceptances": [2.0, 3.0],
        "block": 4,
        "context": 9,
        "tokens": 4,
        "repeats": 1,
        "dtype": "float32",
    }
    assert "with drafter, 3 a round" in result.stdout
    assert "making tiny-dense in float32" in result.stderr


def test_prefill_is_a_measurement_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    result = invoke(*TINY, "--prefill", "9,17", "--repeats", "1", "--json", path)
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["plan"]["lengths"] == [9, 17]
    assert "times as fast" in result.stdout


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    result = invoke(*TINY, "--json", tmp_path / "none" / "figures.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --json: ")
    assert len(result.stderr.splitlines()) == 1
