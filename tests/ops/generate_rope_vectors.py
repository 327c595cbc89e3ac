#!/usr/bin/env python3
"""Sine and cosine of rotary angles, computed with 400 bits and rounded to float once.

Writes into its own folder: rope_vectors.inc (angles of positions), sin_cos_vectors.inc (angles whose sine or cosine
lies next to the middle between two floats), rope_16_bit_vectors.inc (the unit vector rotated, in each type) and
rope_factor_vectors.inc (factors of scalings). Needs mpmath. Run by hand when a case is added; the tests read the
committed results.
"""

import pathlib
import random
import struct
from fractions import Fraction

import mpmath
from exact_rounding import float_bits, nearest_double, nearest_float

mpmath.mp.prec = 400

POSITIONS = [0, 1, 2, 255, 256, 257, 2049, 4097, 65537, 131071, 131072, 1000003, 2**24 - 1, 2**24, -1, -131071]
# name -> (rotary_dim, base, scaling, pairs that are listed)
SPECS = {
    "kPlain2": (2, 10000.0, None, [0]),
    "kPlain64": (64, 10000.0, None, [0, 1, 2, 7, 15, 30, 31]),
    "kPlain128": (128, 500000.0, None, [0, 1, 5, 31, 32, 33, 63]),
    "kPlain80": (80, 1e6, None, [0, 3, 20, 39]),
    "kLinear": (64, 10000.0, ("linear", 3.0), [0, 1, 9, 31]),
    # Values of published checkpoints: pairs that are kept, interpolated and divided.
    "kLlama3": (64, 500000.0, ("llama3", 32.0, 1.0, 4.0, 8192.0), [0, 1, 8, 14, 15, 16, 17, 18, 19, 25, 31]),
    "kDivisors": (64, 10000.0, ("divisors",), [0, 1, 2, 3, 16, 31]),
    "kNtk": (128, 10000.0, ("ntk", 4.0), [0, 1, 2, 31, 32, 33, 62, 63]),
    "kNtk2": (2, 10000.0, ("ntk", 4.0), [0]),
    # factor, original context, length of the sequence
    "kDynamicNtk": (64, 10000.0, ("dynamic", 3.0, 4096, 10001), [0, 1, 16, 30, 31]),
    "kDynamicNtkShort": (64, 10000.0, ("dynamic", 3.0, 4096, 4096), [0, 1, 16, 31]),
    # factor, original context, beta_fast, beta_slow, truncate, attention factor or None
    "kYarn": (128, 1e6, ("yarn", 4.0, 32768.0, 32.0, 1.0, True, None), [0, 1, 22, 23, 24, 31, 39, 40, 41, 63]),
    "kYarnNotTruncated": (64, 150000.0, ("yarn", 32.0, 4096.0, 32.0, 1.0, False, None), [0, 7, 8, 9, 13, 17, 18, 31]),
    "kYarnBetas": (64, 10000.0, ("yarn", 8.0, 2048.0, 16.0, 2.0, True, 0.75), [0, 10, 11, 12, 16, 17, 18, 19, 31]),
    # A ramp between two pairs' neighbours, around pair 12.
    "kYarnNarrow": (64, 10000.0, ("yarn", 8.0, 2048.0, 11.0, 9.7, False, None), [0, 11, 12, 13, 31]),
    # No pair turns once in the original context, and all turn more than 32 times in it.
    "kYarnAllSlow": (64, 10000.0, ("yarn", 4.0, 4.0, 32.0, 1.0, True, None), [0, 1, 2, 31]),
    "kYarnAllFast": (64, 10000.0, ("yarn", 4.0, 1e30, 32.0, 1.0, True, None), [0, 1, 31]),
    # Divisors of a file and the attention factor of factor 32 on an original context of 4096.
    "kLongRope": (64, 10000.0, ("longrope", 32.0, 4096.0), [0, 1, 2, 16, 31]),
}


def divisor(pair):
    """Exact in float, and no power of two."""
    return mpmath.mpf(1) + mpmath.mpf(pair) * 5 / 8


def dynamic_factor(factor, context, length):
    """Rounded to double once."""
    if length <= context:
        return 1.0
    exact = Fraction(factor) * length / context - (Fraction(factor) - 1)
    return exact.numerator / exact.denominator  # Python rounds the quotient of integers correctly


def yarn_mscale(factor, mscale):
    return nearest_double(1 + mpmath.mpf(mscale) / 10 * mpmath.log(factor)) if factor > 1 else 1.0


def longrope_mscale(factor, context):
    return nearest_double(mpmath.sqrt(1 + mpmath.log(factor) / mpmath.log(context))) if factor > 1 else 1.0


def ntk_frequency(rotary_dim, base, factor, pair):
    if rotary_dim > 2:
        base = mpmath.mpf(base) * mpmath.mpf(factor) ** (mpmath.mpf(rotary_dim) / (rotary_dim - 2))
    return mpmath.mpf(base) ** (mpmath.mpf(-2 * pair) / rotary_dim)


def yarn_frequency(rotary_dim, base, scaling, pair):
    factor, context, beta_fast, beta_slow = (mpmath.mpf(x) for x in scaling[1:5])

    def index_of(turns):
        return rotary_dim * mpmath.log(context / (turns * 2 * mpmath.pi)) / (2 * mpmath.log(base))

    low, high = index_of(beta_fast), index_of(beta_slow)
    if scaling[5]:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = min(max(low, 0), rotary_dim - 1), min(max(high, 0), rotary_dim - 1)
    ramp = min(max((pair - low) / max(high - low, mpmath.mpf(0.001)), 0), 1)
    f = mpmath.mpf(base) ** (mpmath.mpf(-2 * pair) / rotary_dim)
    return f * (1 - ramp) + f / factor * ramp


def frequency(rotary_dim, base, scaling, pair):
    kind = scaling[0] if scaling else None
    if kind == "ntk":
        return ntk_frequency(rotary_dim, base, scaling[1], pair)
    if kind == "dynamic":
        return ntk_frequency(rotary_dim, base, dynamic_factor(*scaling[1:]), pair)
    if kind == "yarn":
        return yarn_frequency(rotary_dim, base, scaling, pair)
    f = mpmath.mpf(base) ** (mpmath.mpf(-2 * pair) / rotary_dim)
    if kind is None:
        return f
    if kind == "linear":
        return f / mpmath.mpf(scaling[1])
    if kind in ("divisors", "longrope"):
        return f / divisor(pair)
    factor, low, high, context = (mpmath.mpf(x) for x in scaling[1:])
    wavelength = 2 * mpmath.pi / f
    if wavelength < context / high:
        return f
    if wavelength > context / low:
        return f / factor
    smooth = (context / wavelength - low) / (high - low)
    return (1 - smooth) * f / factor + smooth * f


def attention_factor(scaling):
    kind = scaling[0] if scaling else None
    if kind == "yarn":
        return scaling[6] if scaling[6] is not None else yarn_mscale(scaling[1], 1)
    return longrope_mscale(*scaling[1:]) if kind == "longrope" else 1.0


def rope_vectors():
    yield "// Generated by generate_rope_vectors.py: {spec, pair, position, bits of cos, bits of sin}."
    for name, (rotary_dim, base, scaling, pairs) in SPECS.items():
        for pair in pairs:
            f = frequency(rotary_dim, base, scaling, pair)
            scale = mpmath.mpf(attention_factor(scaling))
            for position in POSITIONS:
                angle = f * position
                yield "{%s, %d, %d, 0x%08x, 0x%08x}," % (
                    name, pair, position, float_bits(scale * mpmath.cos(angle)), float_bits(scale * mpmath.sin(angle)))


def sin_cos_vectors():
    yield "// Generated by generate_rope_vectors.py: {angle hi, angle lo, scale, bits of scaled cos, bits of scaled sin}."
    rng = random.Random(1)
    for scale, turns in ((1.0, 0), (1.0, 1), (1.0, 100003), (1.0, 2670176), (0.75, 1), (1.346, 100003), (1e10, 0)):
        for inverse in (mpmath.asin, mpmath.acos):
            for _ in range(3):
                # A middle between two floats, in [0.5, 1) for a scale of 1, and an angle that misses it by less than
                # double can tell.
                middle = mpmath.mpf(2 * rng.randrange(2**23, 2**24) + 1) / 2**25
                middle *= mpmath.mpf(2) ** int(mpmath.floor(mpmath.log(scale, 2)))
                for side in (-1, 1):
                    angle = inverse(middle / scale) * (1 + side * mpmath.mpf(2) ** -65) + 2 * mpmath.pi * turns
                    hi = nearest_double(angle)
                    lo = nearest_double(angle - hi)
                    exact = mpmath.mpf(hi) + mpmath.mpf(lo)
                    yield "{%s, %s, %s, 0x%08x, 0x%08x}," % (
                        hi.hex(), lo.hex(), scale.hex(), float_bits(scale * mpmath.cos(exact)),
                        float_bits(scale * mpmath.sin(exact)))


def f16_code(x):
    return struct.unpack("<H", struct.pack("<e", x))[0]


def bf16_code(x):
    """Of a number that is no tie: the nearest of the two codes around it."""
    low = struct.unpack("<I", struct.pack("<f", x))[0] >> 16
    codes = [low, low + 1]
    errors = [abs(struct.unpack("<f", struct.pack("<I", code << 16))[0] - x) for code in codes]
    assert errors[0] != errors[1]
    return codes[errors.index(min(errors))]


def rope_16_bit_vectors():
    yield "// Generated by generate_rope_vectors.py: (1, 0) turned by its position, in radians:"
    yield "// {position, bits of f32 cos and sin, codes of f16, codes of bf16}."
    for position in [0, 1, 255, 256, 257, 2048, 2049, 4096, 4097, 65536, 65537, 131070, 131071]:
        values = [nearest_float(f(position)) for f in (mpmath.cos, mpmath.sin)]
        yield "{%d, {0x%08x, 0x%08x}, {0x%04x, 0x%04x}, {0x%04x, 0x%04x}}," % (
            position, *map(float_bits, values), *map(f16_code, values), *map(bf16_code, values))


def rope_factor_vectors():
    yield "// Generated by generate_rope_vectors.py: {kind, three arguments, the factor}."
    for arguments in [(2.0, 4096, 8192), (2.0, 4096, 4097), (3.0, 4096, 10001), (1.1, 3000, 100000),
                      (0.3, 2048, 1000003), (7.0, 4096, 4096), (7.0, 4096, 1)]:
        yield "{kDynamic, %s, %s, %s, %s}," % (*map(float.hex, map(float, arguments)), dynamic_factor(*arguments).hex())
    for arguments in [(4.0, 1.0), (32.0, 1.0), (40.0, 0.707), (40.0, 1.0), (1.0000001, 1.0), (1e100, 1.0), (8.0, -3.0),
                      (1.0, 1.0), (0.5, 1.0), (1e-100, 5.0), (2.5, 0.0)]:
        yield "{kYarnMscale, %s, %s, 0, %s}," % (*map(float.hex, arguments), yarn_mscale(*arguments).hex())
    # For factors 6 and 11 the root of the rounded sum is not the nearest double.
    for arguments in [(32.0, 4096.0), (6.0, 4096.0), (11.0, 4096.0), (4.0, 8192.0), (16.0, 131072.0),
                      (1.0000001, 4096.0), (1e100, 2.0), (1.0, 4096.0), (0.5, 4096.0)]:
        yield "{kLongRopeMscale, %s, %s, 0, %s}," % (*map(float.hex, arguments), longrope_mscale(*arguments).hex())


folder = pathlib.Path(__file__).parent
(folder / "rope_vectors.inc").write_text("\n".join(rope_vectors()) + "\n", encoding="utf-8")
(folder / "rope_16_bit_vectors.inc").write_text("\n".join(rope_16_bit_vectors()) + "\n", encoding="utf-8")
(folder / "rope_factor_vectors.inc").write_text("\n".join(rope_factor_vectors()) + "\n", encoding="utf-8")
(folder / "sin_cos_vectors.inc").write_text("\n".join(sin_cos_vectors()) + "\n", encoding="utf-8")
