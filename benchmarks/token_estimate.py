# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0
"""
Measure the error and the speed of `estimate_text_tokens` against tiktoken and write docs/token-estimates.md.

Run it with `python benchmarks/token_estimate.py`; it needs the `test` extra and no network.
"""

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tiktoken

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from vocabulary import install_vocabulary  # noqa: E402

from haystack_compaction.tokens.text_estimate import estimate_text_tokens  # noqa: E402

SAMPLES = ROOT / "tests" / "data" / "token_samples"
PAGE = ROOT / "docs" / "token-estimates.md"
LENGTHS = (200, 2_000, 20_000)

TEMPLATE = """\
# Token estimates

`estimate_text_tokens(text)` says about how many tokens a text has in the vocabulary o200k_base, without running a
tokenizer. It serves where an exact count is too slow or not needed, for example to decide whether a conversation is
anywhere near the context window.

Every byte of the text is mapped to a small code, and the estimate adds up how much the codes of neighbouring bytes
differ, because tokens tend to end where the kind of character changes. The codes were fitted to the token counts of
prose in many languages, source code, data formats and logs. The texts measured below took no part in the fitting,
though they served to choose between the last few fitted tables.

## Error

"Mean error" and "worst" are the absolute error of single texts relative to tiktoken's count. "Bias" is the mean error
with its sign: above zero, the estimate is too high. The texts have about 100 to 2,200 characters.

| Kind | Texts | Mean error | Worst | Bias |
| --- | ---: | ---: | ---: | ---: |
{error_rows}

## Speed

The time per call on English text, against `encode(text, disallowed_special=())`: the best of several rounds over many
different texts of the same length, single thread.

| Characters | tiktoken | Estimate | Ratio |
| ---: | ---: | ---: | ---: |
{speed_rows}

Measured with tiktoken {tiktoken_version} and Python {python_version} on {machine}. The estimate takes about as long for
other ASCII text; text beyond ASCII takes longer in proportion to its UTF-8 bytes.

## Limits

- It is an estimate: a single short text can be off by a quarter. The errors of many texts partly cancel out.
- It knows o200k_base only. Other vocabularies give other counts, above all outside English.
- Long runs of one repeated character are counted by rule of thumb.
- Languages that took little part in the fitting can be further off than those in the table.
"""


def error_row(path: Path, encoding: tiktoken.Encoding) -> str:
    errors = []
    for sample in json.loads(path.read_text(encoding="utf-8")):
        count = len(encoding.encode(sample, disallowed_special=()))
        errors.append(estimate_text_tokens(sample) / count - 1)
    mean = sum(map(abs, errors)) / len(errors)
    bias = sum(errors) / len(errors)
    kind = path.stem.replace("_", " ")
    return f"| {kind} | {len(errors)} | {mean:.1%} | {max(map(abs, errors)):.1%} | {bias:+.1%} |"


def english_texts(length: int) -> list[str]:
    """Cut texts from the English samples, each beginning at another place so that they all differ."""
    samples = json.loads((SAMPLES / "english.json").read_text(encoding="utf-8"))
    prose = "\n\n".join(samples)
    supply = prose * (length // len(prose) + 2)
    return [supply[start : start + length] for start in range(0, len(prose), 17)]


def microseconds(function: Callable[[str], object], texts: list[str], rounds: int = 7) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for text in texts:
            function(text)
        best = min(best, time.perf_counter() - start)
    return best / len(texts) * 1e6


def speed_row(length: int, encoding: tiktoken.Encoding) -> str:
    texts = english_texts(length)
    exact = microseconds(lambda text: encoding.encode(text, disallowed_special=()), texts)
    estimate = microseconds(estimate_text_tokens, texts)
    return f"| {length:,} | {exact:,.1f} µs | {estimate:,.2f} µs | {exact / estimate:.1f} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        install_vocabulary(Path(directory))
        os.environ["TIKTOKEN_CACHE_DIR"] = directory
        encoding = tiktoken.get_encoding("o200k_base")
    page = TEMPLATE.format(
        error_rows="\n".join(error_row(path, encoding) for path in sorted(SAMPLES.glob("*.json"))),
        speed_rows="\n".join(speed_row(length, encoding) for length in LENGTHS),
        tiktoken_version=tiktoken.__version__,
        python_version=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
    )
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
