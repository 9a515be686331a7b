r"""Numbers as completions write them: thousands, powers of ten.

One number: 1000, 1,000, 1 000, 1\,000, 1\ 000, 1{,}000, 10^{3}, 1\times10^{3}, 1e3. Groups have three digits and one
separator, so 1,00 is none, and 1,000 is never 1 with a decimal comma.
"""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 200  # characters
LARGEST = 400  # exponent of ten
BLANK = r"\\[,;:! ]|\\thinspace\s?|~|\{,\}|[\u00a0\u2009\u202f]"  # no reader of mathematics takes these for a separator
SEPARATED = re.compile(rf"(?<=\d)(?<!(?<!\d)0)(?:{BLANK}|\\!,|,\\!)(?=\d{{3}}(?!\d))")
WHOLE = rf"[1-9]\d{{0,2}}(?P<mark>{BLANK}|\\!,|,\\!|[, ])\d{{3}}(?:(?P=mark)\d{{3}})*|\d+"
DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
POWER = r"10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\d+)\s*\}|(?P<bare>-?\d+))"
NUMERAL = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<whole>{WHOLE})?(?P<part>\.\d+)?(?:[eE](?P<e>[-+]?\d+)"
    rf"|(?(whole)|(?(part)|(?!)))\s*(?:\\times|\\cdot|[*x\u00d7\u00b7])\s*{POWER})?"
    r"|10\s*\^\s*(?:\{\s*(?P<alone>[-+]?\d+)\s*\}|(?P<naked>-?\d+)))"
)
WRAPPED = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def numeral(text: str) -> Fraction | None:
    r"""The number that is all of a text; None for anything else.

    >>> numeral(r"1\,000"), numeral("10^{-2}"), numeral("2.5e3"), numeral("(1, 0)"), numeral("1,00")
    (Fraction(1000, 1), Fraction(1, 100), Fraction(2500, 1), None, None)
    """
    if len(text) > LONGEST:
        return None
    text = text.strip()
    for begin, end in WRAPPED:
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin) + len(end):
            text = text[len(begin) : -len(end)].strip()
    text = text.replace("\u2212", "-").removesuffix(".").strip()
    match = NUMERAL.fullmatch(text)
    if match is None or not (match["whole"] or match["part"] or match["alone"] or match["naked"]):
        return None
    digits = re.sub(r"\D", "", match["whole"] or "") if match["whole"] else ""
    power = next((int(x) for x in match.group("e", "braced", "bare", "alone", "naked") if x is not None), 0)
    if abs(power) > LARGEST:
        return None
    is_power = match["alone"] is not None or match["naked"] is not None
    value = Fraction(1 if is_power else (digits or "0") + (match["part"] or "")) * Fraction(10) ** power
    return -value if match["sign"] == "-" else value


def plain(text: str) -> str:
    r"""A number in digits, as every reader takes it; any other text without the separators in its numbers.

    >>> plain("1e-3"), plain("10^{-2}"), plain(r"1\,000"), plain(r"1\,000 x"), plain("x")
    ('0.001', '0.01', '1000', '1000 x', 'x')
    """
    value = numeral(text)
    if value is None or DIGITS.fullmatch(text.strip()):
        return unseparated(text)
    places = next(n for n in range(len(text) + LARGEST + 1) if 10**n % value.denominator == 0)
    digits = str(abs(value.numerator) * (10**places // value.denominator)).zfill(places + 1)
    integer, part = (digits[:-places], f".{digits[-places:]}") if places else (digits, "")
    return f"{'-' if value < 0 else ''}{integer}{part}"


def unseparated(text: str) -> str:
    r"""A text without the blanks that separate thousands in its numbers.

    >>> unseparated(r"it is 1\,000 or 1{,}000")
    'it is 1000 or 1000'
    """
    return SEPARATED.sub("", text)
