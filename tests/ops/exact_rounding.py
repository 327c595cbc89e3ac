"""Numbers of mpmath rounded once, to the nearest float or double, ties to even: through an integer of the significand's
width, since float(x) would round to double first. Used by the generators of test vectors beside it."""

import struct

import mpmath


def _nearest(x, digits, min_exponent):
    """x rounded to `digits` binary digits; exact as a Python float."""
    if x == 0:
        return 0.0
    _, exponent = mpmath.frexp(abs(x))  # 2^(exponent - 1) <= |x| < 2^exponent
    assert exponent - 1 >= min_exponent
    shift = digits - exponent
    significand = int(mpmath.nint(mpmath.ldexp(abs(x), shift)))
    value = float(significand) * 2.0 ** -shift
    return value if x > 0 else -value


def nearest_double(x):
    return _nearest(x, 53, -1022)


def nearest_float(x):
    return _nearest(x, 24, -126)


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", nearest_float(x)))[0]
