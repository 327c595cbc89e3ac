#!/usr/bin/env python3
"""Makes pretokenizer_vectors.inc: how the models' own pre-tokenizers cut texts, as the pieces' lengths in bytes.

Run by hand when a rule is added. Needs `tokenizers` from PyPI. Usage:
generate_pretokenizer_vectors.py ../data/smollm2_135m_instruct_q4_1.json > pretokenizer_vectors.inc
"""
import json
import random
import sys

from tokenizers import Regex, pre_tokenizers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
RULES = {
    "gpt-2": BYTE_LEVEL,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL]),
    "llama-bpe": pre_tokenizers.Split(Regex(CL100K % r"\p{N}{1,3}"), "isolated"),
    "qwen2": pre_tokenizers.Split(Regex(CL100K % r"\p{N}"), "isolated"),
}
# What the rules tell apart, and what regular-expression libraries have disagreed about.
ALPHABET = [" ", "  ", "\n", "\r\n", "\t", "a", "B", "\u00e9", "\u4e16", "7", "42", "\u0664", "\u2167", "\u00b2", "!", "'", "'s", "'LL",
            "'\u017f", "\u0301", "\u00a0", "\u0085", "\u180e", "\u200b", "\u3000", "\U0001f600", "\u0000", "-", "\x1c", "\u2028"]


def quoted(text):
    out = ""
    for byte in text.encode():
        plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
        out += chr(byte) if plain else f"\\{byte:03o}"
    return f'"{out}"sv'


def main():
    generator = random.Random(1)
    texts = [entry["text"] for entry in json.load(open(sys.argv[1]))["tokenizer"]]
    texts += ["".join(generator.choice(ALPHABET) for _ in range(generator.randint(2, 9))) for _ in range(300)]
    print("// Made by generate_pretokenizer_vectors.py: text, then the lengths of the pieces by rule.")
    for text in texts:
        if not text:
            continue
        lengths = []
        for rule in RULES.values():
            pieces = [text[begin:end] for _, (begin, end) in rule.pre_tokenize_str(text)]
            assert "".join(pieces) == text, (text, pieces)
            lengths.append("{" + ", ".join(str(len(piece.encode())) for piece in pieces) + "}")
        print("    {" + quoted(text) + ",\n     {" + ", ".join(lengths) + "}},")


main()
