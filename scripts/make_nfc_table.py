#!/usr/bin/env python3
"""Writes src/train/tokenizer_nfc_table.h from Python's own Unicode tables: make_nfc_table.py >src/train/tokenizer_nfc_table.h

The tables of Hugging Face's `tokenizers` are those of Unicode 9.0, and ids have to equal its ids: what later versions
added is left out. The list was found by comparing the two for every character (tokenizers 0.23, Unicode 14).
"""
import sys
import unicodedata

LATER = """7FD 898-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27 10EAB-10EAC 10F46-10F50
    10F82-10F85 11070 1133B 1145E 11839-1183A 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97
    16FF0-16FF1 1E130-1E136 1E2AE 1E2EC-1E2EF"""
later = set()
for word in LATER.split():
    ends = [int(end, 16) for end in word.split("-")]
    later.update(range(ends[0], ends[-1] + 1))
codes = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and c not in later]
decompositions, compositions, unsafe = [], [], set()
for c in codes:
    text = unicodedata.decomposition(chr(c))
    if text and not text.startswith("<"):
        parts = [int(part, 16) for part in text.split()] + [0]
        decompositions.append(c << 42 | parts[0] << 21 | parts[1])
        if unicodedata.normalize("NFC", chr(c)) == chr(c):
            compositions.append(parts[0] << 42 | parts[1] << 21 | c)
            unsafe.add(parts[1])
        else:
            unsafe.add(c)
    if unicodedata.combining(chr(c)):
        unsafe.add(c)
unsafe.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))  # Hangul vowels and finals join what is before them


def runs(pairs):
    """(first, last, value) of neighbours with the same value."""
    out = []
    for c, value in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


classes = [
    first << 40 | last << 8 | value
    for first, last, value in runs((c, unicodedata.combining(chr(c))) for c in codes)
    if value
]
ranges = [first << 32 | last for first, last, _ in runs((c, 1) for c in sorted(unsafe))]


def show(name, comment, values):
    print(f"/* {comment} */\nstatic const uint64_t {name}[] = {{")
    for at in range(0, len(values), 5):
        print("    " + " ".join(f"0x{v:016X}," for v in values[at : at + 5]))
    print("};\n")


print(f"/* Canonical normalization, Unicode 9.0. Written by scripts/make_nfc_table.py; do not edit. */\n/* clang-format off */")
print("#ifndef MX8_TRAIN_TOKENIZER_NFC_TABLE_H\n#define MX8_TRAIN_TOKENIZER_NFC_TABLE_H\n\n#include <stdint.h>\n")
show("decompositions", "code << 42 | first << 21 | second (0: none), sorted", sorted(decompositions))
show("compositions", "first << 42 | second << 21 | code, sorted", sorted(compositions))
show("classes", "first code << 40 | last code << 8 | combining class, sorted", classes)
show("unsafe", "first code << 32 | last code of what may change or join what is before it, sorted", ranges)
print("#endif")
