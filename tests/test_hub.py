"""Models by folder or Hub id: what identifies them, and in which words they are refused. No test uses the network."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import errors

from batchgen import hub
from batchgen.errors import ModelError
from batchgen.hub import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"} | {
        name.replace("__", "."): content for name, content in files.items()
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def refused(name: str, revision: str | None = None, what: hub.What = "model") -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(name, revision, what)
    return str(caught.value)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path | Exception], list[dict[str, Any]]]:
    """Makes the Hub give a folder or raise an error; the list gets what it is asked."""

    def answer(with_what: Path | Exception) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def download(repo_id: str, **keys: Any) -> str:
            asked.append({"repo_id": repo_id} | keys)
            if isinstance(with_what, Exception):
                raise with_what
            return str(with_what)

        monkeypatch.setattr(hub, "snapshot_download", download)
        return asked

    return answer


def test_a_folder_is_identified_by_its_files(tmp_path: Path) -> None:
    first = resolve_model(str(model(tmp_path / "a")), None, "model")
    assert first.path == tmp_path / "a"
    assert sorted(first.identity) == ["config.json", "model.safetensors", "tokenizer.json"]
    same = resolve_model(str(model(tmp_path / "b", README__md=b"hello")), None, "model")
    assert same.identity == first.identity
    other = resolve_model(str(model(tmp_path / "c", model__safetensors=b"weightS")), None, "model")
    assert [name for name in first.identity if other.identity[name] != first.identity[name]] == ["model.safetensors"]


def test_large_files_are_identified_by_size_and_pieces_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_WHOLE_BYTES", 10)
    monkeypatch.setattr(hub, "_PIECE_BYTES", 2)
    monkeypatch.setattr(hub, "_NUM_PIECES", 3)

    def digest(content: bytes) -> str:
        return resolve_model(str(model(tmp_path, model__safetensors=content)), None, "model").identity[
            "model.safetensors"
        ]

    whole = digest(b"0123456789ab")
    assert digest(b"x123456789ab") != whole
    assert digest(b"0123456789ax") != whole
    assert digest(b"0123456789abc") != whole
    assert digest(b"01234x6789ab") != whole
    assert digest(b"01xx45678xab") == whole
    assert digest(b"0123456789") != digest(b"0123x56789")


@pytest.mark.parametrize("what", ["model", "drafter"])
def test_folders_that_hold_no_model(tmp_path: Path, what: hub.What) -> None:
    folder = model(tmp_path)
    (folder / "config.json").unlink()
    assert refused(str(folder), what=what) == f"{what}: {folder} has no config.json, so it is no model folder"
    model(tmp_path)
    (folder / "model.safetensors").unlink()
    assert refused(str(folder), what=what) == (
        f"{what}: {folder} has no .safetensors file, and weights of another format cannot be read"
    )


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    folder = model(tmp_path, model__safetensors__index__json=json.dumps(index).encode())
    (folder / "model-1.safetensors").write_bytes(b"x")
    assert refused(str(folder)) == (
        f"model: {folder} lacks model-2.safetensors, which model.safetensors.index.json names; download it again"
    )
    (folder / "model-2.safetensors").write_bytes(b"x")
    assert "model-2.safetensors" in resolve_model(str(folder), None, "model").identity
    (folder / "model.safetensors.index.json").write_text("[]")
    assert refused(str(folder)) == f"model: {folder}/model.safetensors.index.json is no index of weight files"


@pytest.mark.parametrize(("what", "key"), [("model", "revision"), ("drafter", "drafter_revision")])
def test_a_folder_has_no_revisions(tmp_path: Path, what: hub.What, key: str) -> None:
    folder = model(tmp_path)
    assert refused(str(folder), "main", what) == (
        f"{key}: {folder} is a folder here, and only a Hub id has revisions; leave {key} out"
    )


@pytest.mark.parametrize("name", ["/no/such/folder", "./tiny", "../tiny", "~/no-such-model", "a/b/c"])
def test_paths_are_never_looked_up_on_the_hub(
    name: str, fetched: Callable[[Path | Exception], list[dict[str, Any]]]
) -> None:
    asked = fetched(AssertionError("the Hub was asked"))
    assert refused(name) == f"model: {name} is no folder (paths are relative to {Path.cwd()})"
    assert asked == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert refused(str(path)) == f"model: {path} is no folder (paths are relative to {Path.cwd()})"
    assert refused("x" * 300).startswith(f"model: {'x' * 300} cannot be looked up: ")


def test_a_hub_id_is_identified_by_its_commit(
    tmp_path: Path, fetched: Callable[[Path | Exception], list[dict[str, Any]]]
) -> None:
    asked = fetched(model(tmp_path / "snapshots" / COMMIT))
    found = resolve_model("org/tiny", "v1", "drafter")
    assert found == hub.ModelFolder(tmp_path / "snapshots" / COMMIT, {"hub": "org/tiny", "revision": COMMIT})
    assert asked == [{"repo_id": "org/tiny", "revision": "v1", "allow_patterns": list(hub.FILE_PATTERNS)}]
    assert not any("py" in pattern for pattern in hub.FILE_PATTERNS)


def test_a_snapshot_without_weights_is_refused(
    tmp_path: Path, fetched: Callable[[Path | Exception], list[dict[str, Any]]]
) -> None:
    folder = model(tmp_path / COMMIT)
    (folder / "model.safetensors").unlink()
    fetched(folder)
    assert refused("org/tiny").startswith(f"model: {folder} has no .safetensors file")


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.invalid/org/tiny"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.GatedRepoError("gated", response=response(403)),
            "model: org/tiny at revision v1 is gated; ask for access on its page at the Hub, then log in with "
            "`hf auth login`",
        ),
        (
            errors.RepositoryNotFoundError("none", response=response(404)),
            "model: org/tiny is neither a folder in {cwd} nor a model that the Hub shows you; check the name, or "
            "log in with `hf auth login` if it is private",
        ),
        (
            errors.RevisionNotFoundError("none", response=response(404)),
            "model: the Hub has org/tiny, but no revision v1",
        ),
        (
            errors.HFValidationError("bad"),
            "model: org/tiny is neither a folder in {cwd} nor a possible Hub id",
        ),
        (
            errors.LocalEntryNotFoundError("offline"),
            "model: org/tiny at revision v1 is no folder in {cwd}, not in the Hub cache, and the Hub cannot be "
            "reached; "
            "download it where there is a network, or name its folder",
        ),
        (
            errors.OfflineModeIsEnabled("offline"),
            "model: org/tiny at revision v1 is no folder in {cwd}, not in the Hub cache, and the Hub cannot be "
            "reached; "
            "download it where there is a network, or name its folder",
        ),
        (
            errors.HfHubHTTPError("500 Server Error\nmore", response=response(500)),
            "model: org/tiny at revision v1 cannot be downloaded: 500 Server Error",
        ),
        (
            httpx2.ReadTimeout("timed out"),
            "model: org/tiny at revision v1 cannot be downloaded: timed out",
        ),
        (
            OSError(28, "No space left on device"),
            "model: org/tiny at revision v1 cannot be downloaded: [Errno 28] No space left on device",
        ),
    ],
)
def test_what_the_hub_refuses(
    error: Exception, message: str, fetched: Callable[[Path | Exception], list[dict[str, Any]]]
) -> None:
    fetched(error)
    assert refused("org/tiny", "v1") == message.format(cwd=Path.cwd())


def test_offline_with_an_empty_cache_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    real = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **keys: real(name, cache_dir=tmp_path, **keys))
    assert "not in the Hub cache, and the Hub cannot be reached" in refused("org/none")
    assert os.listdir(tmp_path) in ([], ["models--org--none"])
