"""Find matrix products in a kernel's assembly that read an operand which an earlier product has overwritten.

A product may read its left operand from registers. ptxas has been seen to keep a loop's constant operand in registers
that the loop then reuses for another product's operand: from the second round on, both products read the same. So
two products of one loop with different results must not read the same registers without a write in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LABEL = re.compile(r"(LBB\d+|\.L_\w+):")
JUMP_BACK = re.compile(r"@!?U?P\d+ BRA (\S+)")
"""With a condition: jumps without one lead back from code for long waits."""
PRODUCT = re.compile(r"HGMMA\.64x(\d+)\S* R(\d+), R(\d+),")
OPERAND_REGISTERS = 4
"""16 columns of 64 rows, in half precision, over 128 threads"""
WRITES_NOTHING = ("ST", "RED", "BAR", "BRA", "SYNCS", "WARP", "DEPBAR", "ISETP", "FSETP", "U")


class Product(NamedTuple):
    result: int
    operand: int


def overwritten(sass: str) -> list[str]:
    """One line for each pair of products in a loop that read the same registers."""
    found = []
    for body in _loops(sass):
        for place, instruction in enumerate(body):
            product = _product(instruction)
            if product is not None:
                later = [*body[place + 1 :], *body[: place + 1]]
                found += _reads_the_same(product, later)
    return found


def count_products(sass: str) -> int:
    """Of loops, with the left operand in registers: those that are looked at."""
    return sum(_product(instruction) is not None for body in _loops(sass) for instruction in body)


def _reads_the_same(product: Product, later: list[str]) -> list[str]:
    registers = set(range(product.operand, product.operand + OPERAND_REGISTERS))
    for instruction in later:
        other = _product(instruction)
        if other is not None and other.operand == product.operand and other.result != product.result:
            return [f"R{product.result} and R{other.result} are made of the same R{product.operand}"]
        if registers & _written(instruction):
            break
    return []


def _loops(sass: str) -> Iterator[list[str]]:
    begins: dict[str, int] = {}
    instructions: list[str] = []
    for line in sass.splitlines():
        if label := LABEL.match(line.strip()):
            begins[label[1]] = len(instructions)
        elif "\t" in line:
            instructions.append(line.split("\t", 1)[1].strip().rstrip(";"))
            jump = JUMP_BACK.match(instructions[-1])
            if jump and jump[1] in begins:
                yield instructions[begins[jump[1]] :]


def _product(instruction: str) -> Product | None:
    match = PRODUCT.search(instruction)
    return Product(int(match[2]), int(match[3])) if match else None


def _written(instruction: str) -> set[int]:
    """The registers of the first operand; as many as the widest instructions of a name write."""
    name, _, operands = re.sub(r"^@!?U?P\w+ ", "", instruction).partition(" ")
    first = re.match(r"R(\d+)\b", operands.strip())
    if first is None or name.startswith(WRITES_NOTHING):
        return set()
    if name.startswith("HGMMA"):
        width = int(name.split("x")[1]) // 2
    elif ".128" in name or name.endswith(".4"):
        width = 4
    else:
        width = 2 if ".64" in name or name.startswith(("CS2R", "IMAD.WIDE", "LDSM")) else 1
    return set(range(int(first[1]), int(first[1]) + width))
