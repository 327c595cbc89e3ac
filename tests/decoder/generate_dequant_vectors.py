#!/usr/bin/env python3
"""Makes dequant_vectors.inc: blocks of each quantised type and the f32 values that the format's own reader gives.

Run by hand when a type is added. Needs `gguf` and `numpy` from PyPI. Usage: generate_dequant_vectors.py > dequant_vectors.inc
"""
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

# Type -> (bytes of a block, offsets of its f16 numbers).
TYPES = {
    Type.Q8_0: (34, [0]), Type.Q4_0: (18, [0]), Type.Q4_1: (20, [0, 2]), Type.Q5_0: (22, [0]), Type.Q5_1: (24, [0, 2]),
    Type.Q4_K: (144, [0, 2]), Type.Q5_K: (176, [0, 2]), Type.Q6_K: (210, [208]),
}
# Ordinary, negative, the smallest denormal, a large denormal, the greatest.
SCALES = np.array([0.0123, -1.5, 2.0**-24, 6.0e-5, 65504.0], dtype=np.float16)


def rows(values, form, per_row):
    for start in range(0, len(values), per_row):
        print("        " + " ".join(form.format(x) + "," for x in values[start:start + per_row]))


def main():
    random = np.random.default_rng(1)
    print("// Made by generate_dequant_vectors.py: type, block, bits of the values.")
    for kind, (size, places) in TYPES.items():
        num_blocks = 5 if size < 100 else 2
        data = random.integers(0, 256, (num_blocks, size), dtype=np.uint8)
        for block in range(num_blocks):
            for i, place in enumerate(places):
                data[block, place:place + 2] = np.frombuffer(SCALES[(block + 3 * i) % 5].tobytes(), dtype=np.uint8)
        for block in data:
            values = dequantize(block[None], kind).astype(np.float32).ravel()
            print(f"    {{TensorType::k{kind.name},\n     {{")
            rows(block, "{}", 24)
            print("     },\n     {")
            rows(values.view(np.uint32), "0x{:08X}", 10)
            print("     }},")


main()
