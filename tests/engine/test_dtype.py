"""What `auto` means for the arithmetic, told from the config alone."""

from typing import Any

import pytest

from batchgen.engine.dtype import CHECKPOINT_DTYPE, resolve_dtype

MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}


@pytest.mark.parametrize(
    ("config", "name", "on_gpu", "expected"),
    [
        ({}, None, False, "float32"),
        ({}, None, True, CHECKPOINT_DTYPE),
        ({"quantization": {"bits": 4}}, None, False, CHECKPOINT_DTYPE),
        (MXFP4, None, False, CHECKPOINT_DTYPE),
        ({"text_config": MXFP4}, None, False, CHECKPOINT_DTYPE),
        ({}, "bfloat16", False, "bfloat16"),
        (MXFP4, "float32", True, "float32"),
    ],
)
def test_resolved(config: dict[str, Any], name: str | None, on_gpu: bool, expected: str) -> None:
    assert resolve_dtype(config, name, on_gpu) == expected
