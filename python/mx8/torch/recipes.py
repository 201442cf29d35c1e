"""Recipes: how values become codes, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .. import lib
from ._table import PRODUCT

FAST_GROUP, FAST_TILE = 256, 32  # what Hopper's FP8 tensor cores multiply at full rate


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Options of linear and grouped_mm.

    scale_rule: "rceil", "floor", "ceil" or "even". scale_group, weight_scale_group: how many elements along the
    contraction axis share a scale: 32, 128 or 256; weight_tile_rows: how many rows of a weight do. None leaves the
    three to the device: 256, 256 and 32 on Hopper, whose tensor cores want them so, else 32, 32 and 1, which is
    torchao's. Whatever it is, codes and scales are a valid MXFP8 tensor. exact: dequantize, then multiply in bf16.
    wgrad_hp: the weight gradient from unquantized operands.
    """

    scale_rule: str = "rceil"
    scale_group: int | None = None
    weight_scale_group: int | None = None
    weight_tile_rows: int | None = None
    exact: bool = False
    wgrad_hp: bool = False

    def get_options(self, device: torch.device) -> dict[str, Any]:
        """Options of torch.ops.mx8.linear and grouped_linear on a device."""
        group, tile = get_fast_geometry(device)
        return {
            "scale_rule": self.scale_rule,
            "scale_group": self.scale_group or group,
            "weight_scale_group": self.weight_scale_group or group,
            "weight_tile_rows": self.weight_tile_rows or tile,
            # What the tensor cores' weight gradient takes: tiles of the activations, groups padded to whole K-blocks.
            "col_tile_rows": tile if tile > 1 and (self.scale_group or group) == FAST_GROUP else 0,
            "alignment": 128 if group == FAST_GROUP else 32,
            "exact": self.exact,
            "wgrad_hp": self.wgrad_hp,
        }


RECIPES = {
    "mxfp8": Recipe(),
    "mxfp8_wgrad_with_hp": Recipe(wgrad_hp=True),
    "mxfp8_32": Recipe(scale_group=32, weight_scale_group=32, weight_tile_rows=1),
    # torchao's names. Emulated means what it means there: the same numbers by another road.
    "mxfp8_rceil": Recipe(),
    "mxfp8_rceil_wgrad_with_hp": Recipe(wgrad_hp=True),
    "mxfp8_emulated_rceil": Recipe(scale_group=32, weight_scale_group=32, weight_tile_rows=1, exact=True),
}


@torch.compiler.assume_constant_result
def _is_hopper(ordinal: int | None) -> bool:
    return torch.cuda.get_device_capability(ordinal) == (9, 0)


def get_fast_geometry(device: torch.device) -> tuple[int, int]:
    """Scale group and weight tile that a device multiplies fastest."""
    return (FAST_GROUP, FAST_TILE) if device.type == "cuda" and _is_hopper(device.index) else (32, 1)


def get_recipe(recipe: str | Recipe) -> Recipe:
    """A recipe by name, or itself. Raises InvalidArgument with the names there are."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise lib.InvalidArgument(f"mx8: recipe is {recipe!r}, expected one of {', '.join(RECIPES)}")
    return RECIPES[recipe]


_arguments: dict[Any, tuple] = {}


def _make_arguments(recipe: str | Recipe, device: torch.device, out_dtype: torch.dtype | None) -> tuple:
    given = get_recipe(recipe).get_options(device) | {"out_dtype": out_dtype}
    return tuple([given.get(option.name, option.default) for option in PRODUCT])


def get_arguments(recipe: str | Recipe, device: torch.device, out_dtype: torch.dtype | None) -> tuple:
    """Recipe.get_options as positional arguments: a value for every option of a product."""
    if torch.compiler.is_compiling():
        return _make_arguments(recipe, device, out_dtype)
    key = (recipe, device, out_dtype)
    found = _arguments.get(key)
    if found is None:
        found = _arguments[key] = _make_arguments(recipe, device, out_dtype)
    return found
