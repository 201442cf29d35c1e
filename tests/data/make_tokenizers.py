#!/usr/bin/env python3
"""Makes tests/data/tokenizer: small tokenizers, and the ids that other libraries give for texts that are hard to split.

Usage: make_tokenizers.py [OUT_DIR]        (pip install tokenizers tiktoken)

  gpt2.json     ByteLevel with its own regex, an added token that strips spaces
  prefix.json   ByteLevel with add_prefix_space, unlike the others
  llama3.json   Split by Llama 3's regex, then ByteLevel without one, ignore_merges
  qwen.json     NFC, Split by Qwen's regex, merges as pairs, added tokens found after NFC
  parts.json    Digits, Split with four behaviours and literals, then ByteLevel
  inverted.json Split that keeps what its regex matches
  ranks.model   a tiktoken rank file
  cases.json    "texts": [hex, repetitions]; "ids": for each tokenizer a list for each text. Invalid UTF-8 goes in as
                Python's errors="replace" gives it; "plain" is llama3.json with special tokens as text
"""
import base64
import json
import os
import random
import sys

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SENTENCES = """
The quick brown fox jumps over the lazy dog, and it's what they'd've done; we'll see that you're there.
Mixture of experts: each token chooses its experts, the router balances them, and training goes on.
Zwölf große Boxkämpfer jagen Viktor quer über den Sylter Deich. Straße, Äpfel, Öl, Übermut.
Portez ce vieux whisky au juge blond qui fume. L'été où j'ai reçu le cœur, ça m'a plu.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia; el niño añoraba a su querido cachorro.
Съешь же ещё этих мягких французских булок, да выпей чаю. Москва слезам не верит.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Η ταχεία αλεπού πηδάει πάνω από το σκύλο.
色は匂へど散りぬるを我が世誰ぞ常ならむ。カタカナとひらがな、漢字。
天地玄黄宇宙洪荒日月盈昃辰宿列张。我们训练一个语言模型。
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
דג סקרן שט בים מאוכזב ולפתע מצא חברה
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน
Do bạch kim rất quý nên sẽ dùng để lắp vô xương. Tiếng Việt có dấu.
for (int64_t i = 0; i < n; i++) sum += x[i] * y[i]; /* 0x1F, 3.14e-10 */ return sum;
def encode(self, text: str) -> list[int]:\n    return [self.vocab[t] for t in self.split(text)]
if (x != NULL && x->next == NULL) { free(x); x = NULL; }   // done
1 22 333 4444 55555 1234567890 3.14159 2026-12-01 12:34:56 $1,000.00 50% #hash @user
Well... hmm... so... then... and... but... wait... oh... no... yes... done...
😀 😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪 🇯🇵 ❤️ ☃ ✨ 🚀 é ñ Å
""".strip().replace("\\n", "\n").split("\n")


def make_texts():
    """(bytes, repetitions)"""
    texts = [(s.encode(), 1) for s in SENTENCES]
    texts += [(t.encode(), 1) for t in (
        "", " ", "  ", "\n", " \n \n\n  x", "\t\tint x;\r\n\r\n", "a  b   c    ", "trailing   ", "\u00a0\u2003 x\u3000y\u0085z",
        "a\u180eb \u180e\u180e c\u200bd\u2060e\ufefff", "I'M WE'LL it'S 's ' s ''s he'\u017f IT'\u017fX", "don't DON'T 'Tis 'twas", "x\u0000y\u0001\u007f\u0080",
        "<|begin|>hello<|end|>", "a <|mask|>  b<|mask|>", "<|end|><|end|>\n<|end|", "<|en<|end|>d|>", "<tool>call</tool> <tool", "<tool>s",
        "\u00e9 e\u0301 \u212b A\u030a \u1e9b\u0323 q\u0307\u0323 q\u0323\u0307", "\ud55c\uae00 \u1112\u1161\u11ab\u1100\u1173\u11af \uac00\u11a8",
        "\u0958 \u0915\u093c \u0bca \u0bc6\u0bbe \ufb1d \u2126 \uf900", "e\u0302\u0301 a\u0323\u0302 \u1eadn to\u0300n", "\u0301\u0301x\u0327\u0301\u0327",
        "<e\u0301>x<\u00e9>y", "a\u0331\u0323 o\u0331\u0323\u0302 \u1100\u0300\u1161", "x  \u180e  \u180ey   \u180e",
        "x <tool>  y<tool>\n\u3000z <tool>", "a.. b!?, c;;d ,, e.", "a -- b --- c", "one  two\n three", "³²¹ ½ Ⅷ ٣٤٥ १२३ 一二三", "abc123def456ghi 7", "--------====****####", "a-b--c---d -- - --", "x=1;y =2; z= 3", "....!!!???",
        "ABCdefGHIjkl camelCase snake_case kebab-case", "http://example.org/a?b=c&d=%20#e", "\u202eRTL\u202c \u2028line\u2029para",
    )]
    texts += [(b, 1) for b in (
        b"broken \xff\xfe bytes", b"\xc3", b"\xc3(\xa0\xa1", b"\xe2\x82", b"\xe2\x28\xa1 \xe2\x82\x28", b"\xf0\x90\x28\xbc \xf0\x9f\x98", b"\xed\xa0\x80 surrogate",
        b"\xc0\xaf overlong \xe0\x80\xaf \xf0\x80\x80\xaf", b"\xf4\x90\x80\x80 high \xf8\x88\x80\x80\x80", b"\x80\x80\x80", bytes(range(256)), bytes(range(255, -1, -1)),
    )]
    texts += [(u.encode(), n) for u, n in (("a", 1500), ("the", 300), ("-", 400), (" ", 300), ("\n", 200), ("ab1", 50), ("語", 100), ("😀", 60),
                                           ("nofoxes", 100), ("0", 200), ("e\u0301", 100), ("q\u0307\u0323", 60))]
    rng = random.Random(1)
    alphabet = list("aaaeeetttnnn  \n\t.,'-<|>{}()0123") + list("éßжあ漢한😀\u0301\u0323\u00a0\u3000\u200d\ufe0f")
    for _ in range(60):
        texts.append(("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60))).encode(), 1))
    words = [w for s in SENTENCES for w in s.split()]
    for _ in range(30):
        texts.append(("".join(rng.choice(words) + rng.choice(["", " ", "  ", "\n", ", "]) for _ in range(20)).encode(), 1))
    return texts


def train(splits, vocab_size, normalizer=None, specials=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits) if len(splits) > 1 else splits[0]
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=list(specials), show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    return tokenizer


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def make_tokenizers():
    gpt2 = train([byte_level()], 900, specials=["<|end|>"])
    gpt2.add_tokens([AddedToken("<|mask|>", lstrip=True, normalized=False), AddedToken("<tool>", rstrip=True), AddedToken("<tool>s")])
    prefix = train([byte_level(add_prefix_space=True)], 500)
    prefix.add_special_tokens(["<|end|>"])
    llama3 = train([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level(use_regex=False)], 1000)
    llama3.add_special_tokens(["<|begin|>", "<|end|>"])
    llama3.add_tokens(["<tool>", AddedToken("|>", normalized=False)])
    qwen = train([pre_tokenizers.Split(Regex(QWEN), "isolated"), byte_level(use_regex=False)], 800, normalizers.NFC())
    qwen.add_special_tokens(["<|end|>"])
    qwen.add_tokens([AddedToken("<é>", normalized=True), AddedToken("<tool>", normalized=False)])
    unsplit = byte_level(use_regex=False)  # merges reach across everything, so that ids show where texts are cut
    parts = train([unsplit], 600)
    parts.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("-", "contiguous"),
        pre_tokenizers.Split(Regex(r"\s"), "merged_with_next"), pre_tokenizers.Split(Regex(r"[.,;!?]"), "merged_with_previous"),
        pre_tokenizers.Split("=", "removed"), unsplit])
    inverted = train([unsplit], 600)
    inverted.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+"), "removed", invert=True), unsplit])
    return {"gpt2": gpt2, "prefix": prefix, "llama3": llama3, "qwen": qwen, "parts": parts, "inverted": inverted}


def save(tokenizer, path, edit):
    """ignore_merges and the two spellings of merges are set in the file itself."""
    data = json.loads(tokenizer.to_str())
    edit(data["model"])
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return Tokenizer.from_str(text)


def keep(model):
    model["merges"] = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def ignore_merges(model):
    """Drops the merges of every fifth longer token: only the whole-piece rule finds it then."""
    keep(model)
    model["ignore_merges"] = True
    model["merges"] = [m for i, m in enumerate(model["merges"]) if i % 5 or len(m) < 6]


def pairs(model):
    model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]


def make_ranks(tokenizer, path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (len(c.encode()), c))
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    others = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
    assert set(byte_of) == set(alphabet)
    tokens = [bytes([b]) for b in range(256)]
    for text, _ in sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1]):
        data = bytes(byte_of[c] for c in text)
        if len(data) > 1:
            tokens.append(data)
    with open(path, "w") as f:
        for rank, data in enumerate(tokens):
            f.write(f"{base64.b64encode(data).decode()} {rank}\n")
    return tiktoken.Encoding("test", pat_str=LLAMA3, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens={})


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "tokenizer")
    os.makedirs(out, exist_ok=True)
    edits = {"llama3": ignore_merges, "qwen": pairs}
    tokenizers = {
        name: save(t, os.path.join(out, name + ".json"), edits.get(name, keep)) for name, t in make_tokenizers().items()
    }
    ranks = make_ranks(tokenizers["llama3"], os.path.join(out, "ranks.model"))
    texts = make_texts()
    strings = [(b * n).decode("utf-8", errors="replace") for b, n in texts]
    ids = {name: [t.encode(s, add_special_tokens=False).ids for s in strings] for name, t in tokenizers.items()}
    tokenizers["llama3"].encode_special_tokens = True
    ids["plain"] = [tokenizers["llama3"].encode(s, add_special_tokens=False).ids for s in strings]
    ids["ranks"] = [ranks.encode_ordinary(s) for s in strings]
    with open(os.path.join(out, "cases.json"), "w") as f:
        json.dump({"texts": [[b.hex(), n] for b, n in texts], "ids": ids}, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
