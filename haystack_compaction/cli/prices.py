# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What calls of a model cost, with the extra `models`."""

from collections.abc import Mapping
from typing import Any


def cost_of(usage: Mapping[str, Any], model: str, api_base_url: str | None) -> float | None:
    """
    Return what calls of a model cost by its provider's list.

    :param usage: What the calls used, summed up, as OpenAI's API reports it.
    :param model: The name of the model.
    :param api_base_url: Where its API is; None for OpenAI's own.
    :returns: The cost in US dollars; None where `genai-prices` is not installed or knows no price.
    """
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    tokens = Usage(input_tokens=usage.get("prompt_tokens", 0), output_tokens=usage.get("completion_tokens", 0))
    try:
        return float(calc_price(tokens, model, provider_api_url=api_base_url).total_price)
    # It has several of its own for what it does not know.
    except Exception:
        return None
