"""The operator table: names, schemas and descriptions as the library states them; `python -m mx8.ops` prints it."""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass

from . import lib


@dataclass(frozen=True)
class Port:
    """An input or output of an operator."""

    name: str
    optional: bool


@dataclass(frozen=True)
class Pass:
    """Inputs and outputs of a forward or backward pass, in the order of struct mx8_op_call."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True)
class Op:
    """One row of the table. `address` is what mx8_infer_op and mx8_run_op take."""

    name: str
    schema: str
    backward_schema: str | None
    description: str
    address: int
    forward: Pass
    backward: Pass | None


def parse_schema(text: str) -> Pass:
    """Pass of a schema such as "linear(Tensor x, Tensor? bias) -> (Tensor y)"."""
    match = re.fullmatch(r"\w+\((.*?)\) -> (.*)", text)
    if not match:
        raise ValueError(f"parse_schema: {text!r} is no schema, expected NAME(PORTS) -> PORTS")
    sides = (re.findall(r"Tensor(\??) (\w+)", side) for side in match.groups())
    return Pass(*(tuple(Port(name, mark == "?") for mark, name in side) for side in sides))


@functools.cache
def get_ops() -> dict[str, Op]:
    """Every row of the table by name, in the table's order."""
    library = lib.get_library()
    ops = {}
    for index in range(library.mx8_get_op_count()):
        pointer = library.mx8_get_op(index)
        row = pointer.contents
        backward = row.backward_schema.decode() if row.backward_schema else None
        schema = row.schema.decode()
        ops[row.name.decode()] = Op(
            name=row.name.decode(),
            schema=schema,
            backward_schema=backward,
            description=row.description.decode(),
            address=ctypes.cast(pointer, ctypes.c_void_p).value or 0,
            forward=parse_schema(schema),
            backward=parse_schema(backward) if backward else None,
        )
    return ops


def infer(op: Op, backward: bool, call: lib.OpCall) -> None:
    """Fills the outputs and the workspace size of a call from its inputs' shapes; raises what the call itself would."""
    lib.check(lib.get_library().mx8_infer_op(op.address, int(backward), ctypes.byref(call)))


def main() -> None:
    for op in get_ops().values():
        print(op.schema)
        if op.backward_schema:
            print(op.backward_schema)
        print(f"    {op.description}\n")


if __name__ == "__main__":
    main()
