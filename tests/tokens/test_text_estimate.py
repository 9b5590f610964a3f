# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from vocabulary import install_vocabulary

from haystack_compaction.tokens.text_estimate import estimate_text_tokens

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "token_samples").glob("*.json"))

any_text = st.text(st.characters(exclude_categories=()))


@pytest.fixture(scope="session")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiktoken.Encoding]:
    directory = tmp_path_factory.mktemp("vocabulary")
    install_vocabulary(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(directory))
        yield tiktoken.get_encoding("o200k_base")


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 25


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_mean_error_per_kind(path: Path, encoding: tiktoken.Encoding) -> None:
    samples = json.loads(path.read_text(encoding="utf-8"))
    counts = [len(encoding.encode(sample, disallowed_special=())) for sample in samples]
    errors = [abs(estimate_text_tokens(sample) / count - 1) for sample, count in zip(samples, counts, strict=True)]
    assert sum(errors) / len(errors) <= 0.15


def test_empty_text_has_no_tokens() -> None:
    assert estimate_text_tokens("") == 0


@pytest.mark.parametrize("text", ["a", " ", "\0", "\ud800", "\udfff\ud800", "\U0010ffff", "é", "中"])
def test_single_characters(text: str) -> None:
    assert 1 <= estimate_text_tokens(text) <= 8


@pytest.mark.parametrize("character", [" ", "\n", "a", "0", "中", "😀", "\ud800"])
def test_a_million_characters_of_one_kind(character: str) -> None:
    assert estimate_text_tokens(character * 1_000_000) >= 10_000


@given(any_text)
def test_any_text_has_a_stable_positive_estimate(text: str) -> None:
    estimate = estimate_text_tokens(text)
    assert estimate == estimate_text_tokens(text)
    assert estimate >= 1 if text else estimate == 0


@given(st.text(st.characters(exclude_categories=()), min_size=51))
def test_twice_the_text_has_about_twice_the_tokens(text: str) -> None:
    once, twice = estimate_text_tokens(text), estimate_text_tokens(text * 2)
    # One token either way is the rounding of a very small estimate.
    assert 1.5 * once - 1 <= twice <= 2.5 * once + 1


@given(st.text(st.characters(exclude_categories=()), min_size=1), st.integers(2, 200))
def test_estimate_is_linear_in_repetitions(text: str, times: int) -> None:
    two, many = estimate_text_tokens(text * 2), estimate_text_tokens(text * (2 * times))
    # Long runs of one character are counted by a rule of their own, which gives more.
    assert (two - 1) * times - 2 * times <= many <= max((two + 1) * times + 2 * times, len(text) * times)


@given(any_text, any_text)
def test_parts_add_up_to_the_whole(left: str, right: str) -> None:
    # Only the seam between the parts can make a difference.
    whole = estimate_text_tokens(left + right)
    assert abs(whole - estimate_text_tokens(left) - estimate_text_tokens(right)) <= 4
