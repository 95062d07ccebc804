"""The whole way with the real engine and tokenizer on a tiny seeded pair: job file in, Parquet out."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from batchgen.backend import MlxBackend
from batchgen.run import Outcome, Surroundings, run_job
from tests.engine.builders import VOCAB, tiny_drafter, tiny_hybrid
from tests.jobs import write_input, write_job

END = VOCAB - 2
CHARACTERS = [chr(32 + number) for number in range(END)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hybrid target with a tokenizer of one token a character, and its drafter."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "target").mkdir()
    (folder / "drafter").mkdir()
    target = tiny_hybrid(folder / "target", seed=1)
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)} | {"<end>": END}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target, tiny_drafter(folder / "drafter", 2, target)


def run(job: Path) -> Outcome:
    return run_job(job, MlxBackend(), Surroundings(console=io.StringIO()))


def test_a_drafter_changes_speed_and_nothing_else(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    target, drafter = pair
    completions = {}
    for name in ("plain", "drafted"):
        folder = tmp_path / name
        folder.mkdir()
        write_input(folder, 9)
        job = write_job(
            folder,
            model=str(target),
            drafter=str(drafter) if name == "drafted" else None,
            engine__max_rows=4 if name == "drafted" else 1,
            sampling__max_tokens=24,
        )
        outcome = run(job)
        assert (outcome.state, outcome.exit_code) == ("finished", 0)
        table = pq.read_table(folder / "out" / "done.parquet")
        completions[name] = table["completion"].to_pylist()
        for row in table.to_pylist():
            assert row["completion_tokens"] == 1 + row["accepted_tokens"] + row["verify_passes"]
            assert sum(row["acceptance_counts"]) == row["verify_passes"]
        if name == "drafted":
            assert outcome.totals.accepted_tokens > 0
    assert completions["drafted"] == completions["plain"]
    assert len(dict.fromkeys(completions["plain"])) > 1


@pytest.mark.parametrize("is_drafted", [False, True])
def test_an_answer_that_its_grammar_leaves_no_way_on_is_an_error_row(
    tmp_path: Path, pair: tuple[Path, Path], is_drafted: bool
) -> None:
    """The tokenizer has no é; the other rows go on."""
    target, drafter = pair
    table = pa.table({"text": ["<0>", "<1>", "<2>"], "form": ["[a-z]{5}é", "[a-z]{5}", "é|abc"]})
    pq.write_table(table, tmp_path / "in.parquet")
    job = write_job(
        tmp_path,
        model=str(target),
        drafter=str(drafter) if is_drafted else None,
        sampling={"max_tokens": 24, "regex": {"column": "form"}},
    )
    assert run(job).exit_code == 1
    first, *others = pq.read_table(tmp_path / "out" / "done.parquet").to_pylist()
    assert (first["error_kind"], first["completion"], first["finish_reason"]) == ("grammar_failed", None, None)
    assert first["error_message"] == (
        f"{tmp_path / 'in.parquet'}: row 0: sampling.regex: no token could follow after 5 tokens, so the answer is not "
        "whole (the model has none that goes on); give the row a simpler grammar"
    )
    assert [row["finish_reason"] for row in others] == ["stop", "stop"]
    assert others[1]["completion"] == "abc"
