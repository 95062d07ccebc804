"""Batches: masks, shapes, and the same stream for any number of workers."""

from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from batchgen.training.data import WIDTHS, Example, batches, by_width, encode, example_chunks, pad, rows_per_batch
from batchgen.training.prompts import held_out_samples
from batchgen.training.target import PROMPT_WEIGHT, token_weights
from batchgen.training.tasks import GENERATORS
from batchgen.training.tokenizer import SPECIAL_TOKENS, load_tokenizer, render_chat


def example(length: int, start: int) -> Example:
    return Example(np.arange(1, length + 1, dtype=np.int32), start)


def test_example_is_prompt_then_response_then_end(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    [sample] = held_out_samples("code", 0, 1)
    [encoded] = encode(tokenizer, [sample])
    ids = encoded.tokens.tolist()
    assert ids[: encoded.start] == tokenizer.encode(render_chat(sample.prompt)).ids
    assert tokenizer.decode(ids[encoded.start : -1]) == sample.response
    assert ids[-1] == SPECIAL_TOKENS.index("<|im_end|>")


def test_loss_weights_follow_prompt_response_and_padding() -> None:
    batch = pad([example(6, 3), example(2, 1)], width=8)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0]]
    low = np.float32(PROMPT_WEIGHT)
    expected = [[low, low, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0]]
    assert np.array(token_weights(batch)).tolist() == np.array(expected, dtype=np.float32).tolist()


def test_batches_hold_each_example_once_in_rows_of_one_width() -> None:
    chunk = [example(length, 1) for length in (10, 100, 20, 30, 110, 190, 120, 150)]
    made = list(batches(iter([chunk]), tokens_per_batch=256))
    assert [(batch.tokens.shape, batch.lengths.tolist()) for batch in made] == [
        ((3, WIDTHS[0]), [10, 20, 30]),
        ((2, WIDTHS[1]), [100, 110]),
        ((1, WIDTHS[2]), [190]),
        ((1, WIDTHS[2]), [150]),
    ]
    assert [rows_per_batch(width, 256) for width in WIDTHS] == [3, 2, 1]


def test_by_width_keeps_indices() -> None:
    assert list(by_width([example(100, 1), example(5, 1), example(101, 1)])) == [(WIDTHS[0], [1]), (WIDTHS[1], [0, 2])]


def test_stream_does_not_depend_on_workers(tokenizer_folder: Path) -> None:
    with closing(example_chunks(tokenizer_folder, seed=4, num_workers=0)) as alone:
        expected = list(islice(alone, 2))
    with closing(example_chunks(tokenizer_folder, seed=4, num_workers=1)) as shared:
        found = list(islice(shared, 2))
    assert [[item.tokens.tolist() for item in chunk] for chunk in found] == [
        [item.tokens.tolist() for item in chunk] for chunk in expected
    ]
    assert expected[0][0].tokens.tolist() != expected[1][0].tokens.tolist()


def test_widest_batch_holds_every_task(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    for task in GENERATORS:
        assert max(len(item.tokens) for item in encode(tokenizer, held_out_samples(task, 1, 400))) <= WIDTHS[-1]
