"""What a generated sample is, and which side of the train / held-out line it falls on. Knows no task.

The line is drawn by a hash of the sample's key, so it holds for every seed and every size of training run: no key of
a held-out row is ever trained on.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeVar

Split = Literal["train", "held_out"]
Item = TypeVar("Item")

# One key in this many is held out.
HELD_OUT_SHARE = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """One exercise: `text` is the record's text, `prompt` what the model reads, `response` what it should write.

    `key` decides the split. It is the response wherever the text determines that, so that a held-out answer is no
    training answer in other words; for prose it is the text.
    """

    task: str
    text: str
    prompt: str
    response: str
    key: str

    @property
    def split(self) -> Split:
        """The side this sample belongs to, the same for every seed."""
        return "held_out" if zlib.crc32(self.key.encode()) % HELD_OUT_SHARE == 0 else "train"


def pick(rng: Random, items: Sequence[Item]) -> Item:
    """One item, each as likely."""
    return items[int(rng.random() * len(items))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return low + int(rng.random() * (high - low + 1))


def chance(rng: Random, probability: float) -> bool:
    """True with the given probability."""
    return rng.random() < probability
