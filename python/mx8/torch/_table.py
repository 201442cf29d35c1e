"""What the operator table does not say in data: the options of each operator, and its output shapes as formulas.

The library's infer knows all shapes, but only as numbers. Under torch.compile a size may be a symbol, so the same rules
stand here once more in letters; tests/python/test_shapes.py holds them against infer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import lib, ops

FROM_TORCH = {
    torch.float32: lib.Dtype.F32,
    torch.bfloat16: lib.Dtype.BF16,
    torch.float8_e4m3fn: lib.Dtype.F8_E4M3,
    torch.float8_e5m2: lib.Dtype.F8_E5M2,
    torch.uint8: lib.Dtype.U8,
    torch.int32: lib.Dtype.I32,
    torch.int64: lib.Dtype.I64,
    torch.float64: lib.Dtype.F64,
}
if hasattr(torch, "float8_e8m0fnu"):
    FROM_TORCH[torch.float8_e8m0fnu] = lib.Dtype.F8_E8M0
# Scales come out as bytes: torch.float8_e8m0fnu is missing in older versions and upsets compilers in newer ones.
TO_TORCH = {value: key for key, value in FROM_TORCH.items()} | {lib.Dtype.F8_E8M0: torch.uint8}

RULES = {"rceil": 0, "floor": 1, "ceil": 2, "even": 3}
FORMATS = {"e4m3": int(lib.Dtype.F8_E4M3), "e5m2": int(lib.Dtype.F8_E5M2)}
CODE_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Option:
    """An argument behind the tensors. `words` are the values of a text; without, numbers go through as they are."""

    name: str
    type: str
    default: Any
    words: dict[str, int] | None = None

    def declare(self) -> str:
        text = f'"{self.default}"' if isinstance(self.default, str) else str(self.default)
        return f"{self.type} {self.name}={text}"

    def encode(self, op: str, value: Any) -> int:
        if self.words is not None:
            if value not in self.words:
                raise lib.InvalidArgument(f"{op}: {self.name} is {value!r}, expected one of {', '.join(self.words)}")
            return self.words[value]
        if self.type == "ScalarType?":
            if value is not None and value not in FROM_TORCH:
                raise lib.InvalidArgument(f"{op}: {self.name} is {value}, expected float32 or bfloat16")
            return 0 if value is None else 1 + FROM_TORCH[value]
        return int(value)


RULE = Option("scale_rule", "str", "rceil", RULES)
FORMAT = Option("format", "str", "e4m3", FORMATS)
OUT_DTYPE = Option("out_dtype", "ScalarType?", None)
STYLE = (RULE, Option("scale_group", "int", 32), Option("tile_rows", "int", 1), FORMAT)
LAYOUT = Option("layout", "str", "plain", {"plain": 0, "m_groups": 1, "k_groups": 2, "per_expert": 3})
ALIGNMENT = Option("alignment", "int", 32)
COL_TILE = Option("col_tile_rows", "int", 0)
VIA_BF16 = Option("via_bf16", "bool", False)
PRODUCT = (
    Option("precision", "str", "mxfp8", {"high": 0, "mxfp8": 1}),
    *STYLE,
    COL_TILE,
    ALIGNMENT,
    Option("weight_scale_group", "int", 32),
    Option("weight_tile_rows", "int", 1),
    Option("exact", "bool", False),
    Option("wgrad_hp", "bool", False),
    OUT_DTYPE,
)
# Of the backward passes alone, and no fields of the struct: which outputs the caller allocates and how.
GRADIENTS = (Option("weight_dtype", "ScalarType?", None), Option("bias_grad", "bool", False))

Sizes = dict[str, Any]  # letters to numbers or symbols


def ceil_div(a: Any, b: int) -> Any:
    return (a + b - 1) // b


def round_up(a: Any, b: int) -> Any:
    return ceil_div(a, b) * b


@dataclass(frozen=True)
class Rule:
    """Shapes of one pass. `inputs`: a letter for each dimension of each tensor, None for any shape. `outputs`: sizes
    (None: not computed) and dtype of each, from the letters of a call. `extra`: letters that follow from others."""

    op: str  # row of the library's table
    backward: bool
    inputs: tuple[str | None, ...]
    outputs: Callable[[Call], list[tuple[Sequence[Any] | None, torch.dtype]]]
    options: tuple[Option, ...] = ()
    extra: Callable[[Call], Sizes] = field(default=lambda call: {})
    shape_argument: bool = False  # the table's `like` tensor is a list of sizes here

    @functools.cached_property
    def ports(self) -> ops.Pass:
        row = ops.get_ops()[self.op]
        side = row.backward if self.backward else row.forward
        assert side is not None
        return side

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs that are tensors here."""
        return tuple(port.name for port in self.ports.inputs if port.name != "like")

    @functools.cached_property
    def key(self) -> str:
        return self.op + (".backward" if self.backward else "")

    def declare(self, name: str) -> str:
        ports = [port for port in self.ports.inputs if port.name != "like"]
        last = max((i for i, port in enumerate(ports) if not port.optional), default=-1)
        inputs = [
            f"Tensor{'?' if port.optional else ''} {port.name}{'=None' if i > last and not self.shape_argument else ''}"
            for i, port in enumerate(ports)
        ]
        inputs += ["SymInt[] shape"] if self.shape_argument else []
        outputs = ", ".join(f"Tensor {p.name}" for p in self.ports.outputs)
        options = [option.declare() for option in self.options]
        result = f"({outputs})" if len(self.ports.outputs) > 1 else "Tensor"
        return f"{name}({', '.join(inputs + options)}) -> {result}"


class Call:
    """Tensors and options of one call, with the sizes that its letters stand for."""

    def __init__(
        self, rule: Rule, tensors: Sequence[torch.Tensor | None], shape: Sequence[Any], options: Sequence[Any]
    ):
        self.tensors, self.shape = tensors, shape
        self.options = dict(zip((option.name for option in rule.options), options))
        self.sizes: Sizes = {}
        for letters, tensor in zip(rule.inputs, tensors):
            if letters and tensor is not None:
                for letter, size in zip(letters, tensor.shape):
                    self.sizes.setdefault(letter, size)
        self.sizes.update(rule.extra(self))

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def has(self, index: int) -> bool:
        return self.tensors[index] is not None

    def spell(self, letters: str) -> list[Any]:
        return [self.sizes[c] if c.isupper() else ceil_div(self.sizes[c.upper()], lib.BLOCK) for c in letters]

    @property
    def first(self) -> torch.Tensor:
        """The first tensor, of operators that cannot do without."""
        tensor = self.tensors[0]
        assert tensor is not None
        return tensor

    @property
    def codes(self) -> torch.dtype:
        return CODE_DTYPES[self["format"]]


def _padded(call: Call) -> Sizes:
    rows, align = call.sizes["M"], call["alignment"] or lib.BLOCK
    return {"P": round_up(rows + align * call.sizes["G"], align) if "G" in call.sizes else rows}


def _columns(call: Call) -> list:
    ends = call.spell("G") if call.has(1) else None
    return [(call.spell("KP"), call.codes), (call.spell("Kp"), torch.uint8), (ends, torch.int32)]


def _rows(call: Call) -> list:
    return [(call.spell("MK"), call.codes), (call.spell("Mk"), torch.uint8)]


def _experts(call: Call) -> list:
    return [(call.spell("ENK"), call.codes), (call.spell("EnK"), torch.uint8)]


def _both_experts(call: Call) -> list:
    return [(call.spell("ENK"), call.codes), (call.spell("ENk"), torch.uint8), *_experts(call)]


def _blocked(call: Call) -> list:
    plain: Sequence[Any] = call.first.shape
    rows, cols = plain[-2], plain[-1]
    tall, wide = round_up(rows, 128), round_up(cols, 4)
    groups: Any = call.sizes.get("G")
    shapes = {
        "plain": lambda: [tall * wide],
        "m_groups": lambda: [rows + 128 * groups, wide],
        "k_groups": lambda: [tall, cols + 4 * groups],
        "per_expert": lambda: [plain[0], tall * wide],
    }
    starts = [groups + 1] if call["layout"] in ("m_groups", "k_groups") else None
    return [(shapes[call["layout"]](), torch.uint8), (starts, torch.int64)]


def _product(call: Call) -> list:
    present = [t.dtype for t in call.tensors[:2] if t is not None]
    return [(call.spell("MN"), call["out_dtype"] or (present[0] if present else torch.bfloat16))]


def _gradients(weight: str, w: int, x: int) -> Callable[[Call], list]:
    """dx, dw and dbias; w and x are the last codes that stand in for the operands."""

    def outputs(call: Call) -> list:
        quantized = call["precision"] == "mxfp8"
        has_dx = call.has(2) or (quantized and call.has(w))
        has_dw = call.has(1) or (quantized and not call["wgrad_hp"] and call.has(x))
        return [
            (call.spell("MK") if has_dx else None, call["out_dtype"] or call.first.dtype),
            (call.spell(weight) if has_dw else None, call["weight_dtype"] or torch.float32),
            (call.spell("N") if call["bias_grad"] else None, torch.float32),
        ]

    return outputs


def _aligned(call: Call) -> Sizes:
    align = call["alignment"]
    return {"P": round_up(call.sizes["M"] + align * call.sizes["G"], align)}


RULES_OF = {
    "quantize_rows": Rule("quantize_rows", False, ("MK",), _rows, STYLE),
    "quantize_cols": Rule("quantize_cols", False, ("MK", "G"), _columns, (*STYLE, ALIGNMENT), _padded),
    "quantize_both": Rule(
        "quantize_both",
        False,
        ("MK", "G"),
        lambda c: _rows(c) + _columns(c),
        (*STYLE, COL_TILE, ALIGNMENT, VIA_BF16),
        _padded,
    ),
    "quantize_3d": Rule("quantize_3d", False, ("ENK",), _experts, STYLE),
    "quantize_experts": Rule("quantize_experts", False, ("ENK",), _both_experts, (*STYLE, VIA_BF16)),
    "dequantize": Rule(
        "dequantize",
        False,
        (None, None),
        lambda c: [(list(c.first.shape), c["out_dtype"] or torch.bfloat16)],
        (FORMAT, OUT_DTYPE),
    ),
    "block_scales": Rule("block_scales", False, (None, "G"), _blocked, (LAYOUT,)),
    "unblock_scales": Rule(
        "unblock_scales", False, (None, "G"), lambda c: [(list(c.shape), torch.uint8)], (LAYOUT,), shape_argument=True
    ),
    "group_pad": Rule(
        "group_pad",
        False,
        ("MK", "G"),
        lambda c: [(c.spell("PK"), c.first.dtype), (c.spell("G"), torch.int32), (c.spell("G"), torch.int32)],
        (ALIGNMENT,),
        _aligned,
    ),
    "group_unpad": Rule(
        "group_unpad",
        False,
        ("PK", "G", "G"),
        lambda c: [(list(c.shape), c.first.dtype)],
        (ALIGNMENT,),
        shape_argument=True,
    ),
    "linear": Rule("linear", False, ("MK", "NK", "N", "MK", None, "NK", None), _product, PRODUCT),
    "linear_backward": Rule(
        "linear",
        True,
        ("MN", "MK", "NK", "MN", None, "NP", None, "KP", None, "KN", None),
        _gradients("NK", 9, 7),
        PRODUCT + GRADIENTS,
    ),
    "grouped_linear": Rule(
        "grouped_linear", False, ("MK", "ENK", "E", "N", "MK", None, "ENK", None), _product, PRODUCT
    ),
    "grouped_linear_backward": Rule(
        "grouped_linear",
        True,
        ("MN", "MK", "ENK", "E", "MN", None, "NP", None, "E", "KP", None, "ENK", None),
        _gradients("ENK", 11, 9),
        PRODUCT + GRADIENTS,
    ),
}
