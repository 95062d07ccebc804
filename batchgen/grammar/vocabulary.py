"""A model's token ids as the bits of masks."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


class Vocabulary:
    """A model's token ids as bits: token t is bit t % 32 of word t // 32.

    `ends` are the end tokens and `free` all others that the tokenizer has.
    """

    def __init__(self, vocab_size: int, ids: Collection[int], end_token_ids: Collection[int]) -> None:
        self.num_words = -(-vocab_size // 32)
        self.end_token_ids = frozenset(end_token_ids)
        self.ends = self.words(end_token_ids)
        self.free = self.words(ids) & ~self.ends

    def words(self, ids: Collection[int]) -> Words:
        """The mask of some tokens."""
        bits = np.zeros(self.num_words * 32, dtype=np.bool_)
        bits[list(ids)] = True
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)

    def bits(self, words: Words) -> npt.NDArray[np.bool_]:
        """Whether each token is in a mask."""
        return np.unpackbits(words.astype("<u4", copy=False).view(np.uint8), bitorder="little").astype(np.bool_)
