"""What keeps one output row's chance apart from every other's, whatever machine, order or company it is decoded in."""

import hashlib

from batchgen.types import Prompt


def noise_key(prompt: Prompt, sample: int) -> int:
    """64 bits made of the seed, the sample's number and the row: its id where it has one, else its number.

    The first 8 bytes, most significant first, of the BLAKE2b-512 hash of `seed sample kind value` in UTF-8, where kind
    is `text` or `number` for an id and `row` for a row's number. Part of the format: another key would be another
    completion.
    """
    kind, value = "row", str(prompt.row)
    if prompt.id is not None:
        kind, value = "text" if isinstance(prompt.id, str) else "number", str(prompt.id)
    source = f"{prompt.sampling.seed} {sample} {kind} {value}"
    return int.from_bytes(hashlib.blake2b(source.encode()).digest()[:8], "big")
