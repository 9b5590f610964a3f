# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A fast estimate of how many tokens a text has, without a tokenizer."""

import string

# The table below gives each byte of UTF-8 text a code of eight bits. The number of bits in which the codes of two
# neighbouring bytes differ says how likely a token ends between them: bytes that often share a token have close codes,
# a letter and a digit have distant ones. The codes were fitted to o200k_base; no single bit has a meaning of its own.
_ASCII_CODES = {
    0b00100011: b")d",
    0b00000101: b"k",
    0b00100001: b"aceghimnoprst",
    0b10100001: b"blu",
    0b01100001: b"fv",
    0b00100101: b"w",
    0b11100000: b"x",
    0b00000001: b"y",
    0b11100101: b"jqz",
    0b00010010: b"AEIO",
    0b00011010: b"BCDFGHKLMNPRSTW",
    0b11011110: b"JQUVXYZ",
    0b11011101: b"02468",
    0b11101110: b"13579",
    0b01101001: b"\t",
    0b10110110: b"\n\r",
    0b00000011: b" ",
    0b00110000: b'"',
    0b10110000: b"(",
    0b10100010: b"',",
    0b00111110: b"-",
    0b00110010: b".",
    0b00110110: b":",
    0b10111010: b"<",
    0b11000011: b"=",
    0b00111010: b">",
    0b10110010: b"!#*/;?",
    0b11110000: b"\\",
    0b01010001: b"_",
    0b01110010: b"`",
    0b10010000: b"[{",
    0b00100010: b"]}",
    0b11010000: b"$%&+@^|~",
}

# All other ASCII characters, that is, the control characters.
_CONTROL_CODE = 0b01101101

# Bytes beyond ASCII: each pair is the first byte of a range, which reaches to the next pair, and the code of the range.
# fmt: off
_NON_ASCII_CODES = (
    # continuation bytes
    (0x80, 0b10000010), (0x84, 0b00000000), (0x88, 0b00000001), (0x8C, 0b00000000), (0x90, 0b00000011),
    (0x94, 0b10000010), (0x98, 0b10000001), (0x9C, 0b00000001), (0xA0, 0b00000000), (0xA8, 0b00000001),
    (0xAC, 0b00000000), (0xB0, 0b00000010), (0xB4, 0b00000011), (0xB8, 0b00000000), (0xBC, 0b00000010),
    # lead bytes: Latin with accents, Greek, Cyrillic, Hebrew, Arabic
    (0xC0, 0b10000110), (0xC3, 0b00100111), (0xC4, 0b00010011), (0xC5, 0b00001111), (0xC6, 0b11111110),
    (0xCE, 0b00000011), (0xCF, 0b00000010), (0xD2, 0b11111111), (0xD5, 0b11111101), (0xD7, 0b00000001),
    (0xD9, 0b00000000), (0xDA, 0b00000100), (0xDC, 0b11111110),
    # Indic and Thai, symbols, kana, Han, Hangul, emoji
    (0xE0, 0b00000000), (0xE1, 0b00000001), (0xE2, 0b10000010), (0xE3, 0b00000010), (0xE5, 0b00000001),
    (0xE6, 0b10000001), (0xE7, 0b00000000), (0xE8, 0b10100100), (0xE9, 0b00000000), (0xEA, 0b00000011),
    (0xEC, 0b00000000), (0xED, 0b10000010), (0xEE, 0b11111111), (0xEF, 0b10100010), (0xF0, 0b00101110),
)
# fmt: on

# Both in tokens / 1024. The second keeps the estimate of a long run of one character growing with the run.
_PER_DIFFERING_BIT = 163
_PER_BYTE = 16

# In bytes. A text of some length that seems to have tokens longer than this consists of runs of one character.
_LONGEST_TOKEN = 32
_SHORTEST_RUN = 1_000


def _code_table() -> bytes:
    table = bytearray([_CONTROL_CODE]) * 256
    for code, characters in _ASCII_CODES.items():
        for character in characters:
            table[character] = code
    for first, code in _NON_ASCII_CODES:
        table[first:] = bytes([code]) * (256 - first)
    return bytes(table)


_CODES = _code_table()


def estimate_text_tokens(text: str) -> int:
    """
    Estimate how many o200k_base tokens a text has.

    The estimate walks over the UTF-8 bytes of the text and adds up how far apart the codes of neighbouring bytes are
    (see the table above). All bytes are handled at once, as one long integer, so the work grows linearly with the
    text and does not depend on what it says. The method and the codes are our own, fitted by local search to the
    token counts of prose in many languages, source code, data formats and logs.

    For texts of 100 characters or more the mean error was between 2 and 13 % for each kind of text measured, and 4 %
    for English; a single short text may be off by 25 %.

    :param text: Any string; lone surrogates are fine.
    :returns: The estimated number of tokens: 0 for the empty string, otherwise at least 1.
    """
    if not text:
        return 0
    data = text.encode("utf-8", "surrogatepass")
    codes = int.from_bytes(data.translate(_CODES), "big")
    # Shifting by one byte lines every byte up with its neighbour.
    differing_bits = (codes ^ (codes >> 8)).bit_count()
    tokens = (_PER_DIFFERING_BIT * differing_bits + _PER_BYTE * len(data) + 512) >> 10 or 1
    if _SHORTEST_RUN <= len(data) > tokens * _LONGEST_TOKEN:
        return max(tokens, _tokens_of_runs(data))
    return tokens


def _tokens_of_runs(data: bytes) -> int:
    """What long runs of one letter or digit take. Nothing changes in them, and tokens end even so."""
    digits = len(data) - len(data.translate(None, b"0123456789"))
    letters = len(data) - len(data.translate(None, string.ascii_letters.encode()))
    return digits // 3 + letters // 8
