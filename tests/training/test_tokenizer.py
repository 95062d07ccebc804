"""The tokenizer: text comes back as it went in, digits stand alone, and the Hub's loader sees the same tokens."""

from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from batchgen.training.tasks import training_stream
from batchgen.training.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, load_tokenizer, render_chat, train_tokenizer


def test_texts_come_back(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    texts = [sample.response for sample in islice(training_stream(5), 300)]
    for text in [*texts, "  two  spaces\n\n and ünï – 漢字 🙂 ", "tab\there"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_single_tokens(tokenizer_folder: Path) -> None:
    tokens = load_tokenizer(tokenizer_folder).encode("12345 + 67").tokens
    assert [token for token in tokens if any(sign.isdigit() for sign in token)] == list("1234567")


def test_special_tokens_come_first_and_the_vocabulary_is_full(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert tokenizer.get_vocab_size() == VOCAB_SIZE


def test_training_again_gives_the_same(tokenizer_folder: Path) -> None:
    assert train_tokenizer(seed=0, num_samples=3000).to_str() == load_tokenizer(tokenizer_folder).to_str()


@pytest.mark.parametrize("prompt", ["Compute 3 + 4.", "two\nlines", ""])
def test_chat_template_renders_what_was_trained_on(tokenizer_folder: Path, prompt: str) -> None:
    hub = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    messages = [{"role": "user", "content": prompt}]
    rendered = hub.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == render_chat(prompt)
    ids = hub.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == load_tokenizer(tokenizer_folder).encode(render_chat(prompt)).ids
    assert hub.eos_token_id == SPECIAL_TOKENS.index("<|im_end|>")
