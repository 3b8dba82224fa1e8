"""A product with what adapters add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baton.engine.runners.torch.fused.quantised import WeightDtype, projection
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdaptedRows, AdapterLayers, Additions


class AdaptedProduct:
    """Projections of the same input, outputs side by side, for rows with adapters and without.

    Args:
        modules: The projections by name (`baton.engine.lora.PROJECTIONS`), in order of their outputs.
        layer: Whose they are.
        weight_dtype: In what their weights are held; adapters keep the dtype of activations.
        adapters: All that are loaded.

    Attributes:
        plain: The product without adapters.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        layer: int,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        self.plain = projection(list(modules.values()), weight_dtype)
        self._additions = Additions(adapters, layer, {name: module.out_features for name, module in modules.items()})

    def __call__(self, rows: torch.Tensor, adapted: Sequence[AdaptedRows] = ()) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]; `adapted` says which rows have adapters."""
        output = self.plain(rows)
        if adapted:
            self._additions.add(output, rows, adapted)
        return output
