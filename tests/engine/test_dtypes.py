from __future__ import annotations

from typing import get_args

import pytest
import torch

from kvcluster.config import Settings
from kvcluster.engine.dtypes import dtype_named


def test_every_type_that_a_setting_names_is_torchs_of_that_name() -> None:
    for name in get_args(Settings.model_fields["dtype"].annotation):
        assert dtype_named(name) is getattr(torch, name)


@pytest.mark.parametrize("name", ["float16", "int8", "", "dtype"])
def test_a_type_that_is_not_computed_in_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no type to compute in: use float32 or bfloat16"):
        dtype_named(name)
