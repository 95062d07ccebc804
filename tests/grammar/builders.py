"""The bundled model's vocabulary and a small one with few letters, and masks read as sets of tokens."""

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from batchgen.grammar import GrammarFactory, TokenMatcher
from batchgen.types import Grammar, GrammarMatcher

TINY = Path(__file__).resolve().parents[2] / "data" / "tiny"
TINY_ENDS = (0, 2)
TINY_VOCAB = 1100  # more than the tokenizer's 1024
LETTERS = "abc/<>\n"
PIECES = [*(letter.replace("\n", "Ċ") for letter in LETTERS), "ab", "bc", "abc", "</", "a>", ">a", "ĊĊ", "ĊĊĊ", "Ċa"]
SPECIAL = ["<end>", "<over>", "<other>", "</t>"]
SMALL_VOCAB = 70
END, OVER, OTHER, CLOSE = range(len(PIECES), len(PIECES) + len(SPECIAL))


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


@cache
def tiny_factory() -> GrammarFactory:
    return GrammarFactory(tiny_tokenizer(), TINY_VOCAB, TINY_ENDS)


@cache
def small_factory() -> GrammarFactory:
    """Over PIECES and SPECIAL, of which the first two end a row; the model has more ids than that."""
    vocabulary = {piece: token for token, piece in enumerate(PIECES)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in PIECES
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return GrammarFactory(tokenizer, SMALL_VOCAB, {END, OVER})


def small_texts() -> dict[int, str]:
    """Text of each token of the small vocabulary that a grammar can speak of."""
    return {token: piece.replace("Ċ", "\n") for token, piece in enumerate(PIECES)}


def schema(value: object) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def regex(text: str) -> Grammar:
    return Grammar("regex", text)


def choice(*texts: str) -> Grammar:
    return Grammar("choice", json.dumps(texts))


def allowed(matcher: GrammarMatcher, vocab_size: int = SMALL_VOCAB) -> set[int]:
    """Tokens that may come next."""
    masks = blank_masks(1, vocab_size)
    assert matcher.fill([], masks) == 0
    return tokens_of(masks[0])


def blank_masks(num_positions: int, vocab_size: int) -> np.ndarray:
    return np.full((num_positions, -(-vocab_size // 32)), 0xFFFFFFFF, dtype=np.uint32)


def tokens_of(mask: np.ndarray) -> set[int]:
    return {token for token in range(mask.size * 32) if mask[token // 32] >> (token % 32) & 1}


def walk(grammar: Grammar, rng: random.Random, max_tokens: int = 300, **start: str) -> tuple[list[int], bool]:
    """Tokens of a completion over the bundled vocabulary, any allowed one as likely as another but for the end, and
    whether it ended; the end token is not among them."""
    matcher = tiny_factory().matcher(grammar, **start)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        choices = sorted(allowed(matcher, TINY_VOCAB))
        ends = [token for token in choices if token in TINY_ENDS]
        assert set(ends) in (set(), set(TINY_ENDS))
        if ends and (len(ends) == len(choices) or rng.random() < 0.4):
            assert isinstance(matcher, TokenMatcher) and matcher.failure(len(tokens) + 1) is None
            return tokens, True
        tokens.append(rng.choice([token for token in choices if token not in ends]))
        matcher.advance(tokens[-1:])
    return tokens, False


def text_of(tokens: list[int]) -> str:
    return str(tiny_tokenizer().decode(tokens, skip_special_tokens=False))
