"""From a model's name to a folder with its files, and to what identifies them.

A folder is taken as it is; a Hub id is downloaded into (or found in) the Hub's own cache. Only configuration, tokenizer
and safetensors files are fetched, and none of a model's code is. Weights are looked at as bytes, never loaded.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The base of all errors of the Hub's HTTP client, whichever client that is in this version.
from huggingface_hub.errors import HTTPError as HubClientError  # type: ignore[attr-defined]

from batchgen.errors import ModelError

FILE_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")

# Files up to this size are digested whole. Of larger ones the size and this many pieces from end to end: a checkpoint
# of many gigabytes must not be read twice at each start, and other weights differ all over.
_WHOLE_BYTES = 64 << 20
_PIECE_BYTES = 64 << 10
_NUM_PIECES = 512

What = Literal["model", "drafter"]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on this machine. `identity` is the Hub's revision, or digests of the files that make its answers.

    Of a local file above 64 MB 512 pieces are compared, evenly spaced from its first byte to its last.
    """

    path: Path
    identity: dict[str, str]


def resolve_model(name: str, revision: str | None, what: What) -> ModelFolder:
    """Finds a model or drafter by folder or Hub id; `what` is the key of the job, for messages.

    Raises ModelError if it is nowhere, may not be fetched, or its files are not all there.
    """
    folder = Path(name).expanduser()
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except OSError as error:
        raise ModelError(f"{what}: {name} cannot be looked up: {error.strerror or error}") from error
    if is_folder:
        if revision is not None:
            key = "revision" if what == "model" else "drafter_revision"
            raise ModelError(f"{key}: {name} is a folder here, and only a Hub id has revisions; leave {key} out")
        _require_complete(folder, what)
        return ModelFolder(folder, {path.name: _digest(path) for path in _identifying_files(folder)})
    if exists or name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise ModelError(f"{what}: {name} is no folder (paths are relative to {Path.cwd()})")
    snapshot = _fetch(name, revision, what)
    _require_complete(snapshot, what)
    return ModelFolder(snapshot, {"hub": name, "revision": snapshot.name})


def _fetch(name: str, revision: str | None, what: What) -> Path:
    """The folder of a Hub snapshot, whose name is its commit."""
    pinned = name if revision is None else f"{name} at revision {revision}"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILE_PATTERNS)))
    except GatedRepoError as error:
        raise ModelError(
            f"{what}: {pinned} is gated; ask for access on its page at the Hub, then log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{what}: the Hub has {name}, but no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{what}: {name} is neither a folder in {Path.cwd()} nor a model that the Hub shows you; check the name, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except HFValidationError as error:
        raise ModelError(f"{what}: {name} is neither a folder in {Path.cwd()} nor a possible Hub id") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{what}: {pinned} is no folder in {Path.cwd()}, not in the Hub cache, and the Hub cannot be reached; "
            "download it where there is a network, or name its folder"
        ) from error
    except (HubClientError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{what}: {pinned} cannot be downloaded: {reason}") from error


def _require_complete(folder: Path, what: What) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{what}: {folder} has no config.json, so it is no model folder")
    index = folder / "model.safetensors.index.json"
    missing = [name for name in _shards(index, what) if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{what}: {folder} lacks {missing[0]}, which {index.name} names; download it again")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{what}: {folder} has no .safetensors file, and weights of another format cannot be read")


def _shards(index: Path, what: What) -> list[str]:
    """The weight files that an index names, if there is one."""
    if not index.is_file():
        return []
    try:
        return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{what}: {index} is no index of weight files") from error


def _identifying_files(folder: Path) -> Iterator[Path]:
    names = {path for pattern in FILE_PATTERNS for path in folder.glob(pattern)}
    return (path for path in sorted(names) if path.is_file() and not path.name.startswith("."))


def _digest(path: Path) -> str:
    """SHA-256 of a small file; of a large one, of its size and of pieces evenly spaced from first to last byte."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            if size <= _WHOLE_BYTES:
                return hashlib.file_digest(stream, "sha256").hexdigest()
            digest = hashlib.sha256(f"{size} ".encode())
            for piece in range(_NUM_PIECES):
                stream.seek((size - _PIECE_BYTES) * piece // (_NUM_PIECES - 1))
                digest.update(stream.read(_PIECE_BYTES))
            return digest.hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
