# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How large the context windows of known models are, with the extra `models`."""

from contextlib import suppress
from difflib import get_close_matches

from haystack.lazy_imports import LazyImport

with LazyImport("Run 'pip install haystack-compaction[models]' to give a model's name as `context_window`") as prices:
    from genai_prices.data_snapshot import get_snapshot

_CLOSE_MATCHES = 5
_CLOSE = 0.4


def window_size(context_window: int | str) -> int:
    """
    Return the size of a context window.

    ### Usage example

    ```python
    from haystack_compaction.models import window_size

    assert window_size(32_000) == 32_000
    ```

    :param context_window: The size in tokens, or the name of a model, as its provider writes it, whose window is meant.
    :returns: The size in tokens.
    :raises ImportError: If a name is given without the extra `models`.
    :raises ValueError: If no window is known for the name; the message lists the names that are most like it.
    """
    if not isinstance(context_window, str):
        return context_window
    prices.check()
    snapshot = get_snapshot()
    with suppress(LookupError):
        _, model = snapshot.find_provider_model(context_window, None, None, None)
        if model.context_window:
            return int(model.context_window)
    models = [model for provider in snapshot.providers for model in provider.models if model.context_window]
    windows = [model.context_window or 0 for model in models if model.is_match(context_window)]
    if windows:
        # Not everybody who offers a model offers all of its window.
        return min(windows)
    close = ", ".join(
        map(repr, get_close_matches(context_window, {model.id for model in models}, n=_CLOSE_MATCHES, cutoff=_CLOSE))
    )
    raise ValueError(
        f"No context window is known for the model '{context_window}'. "
        f"{f'Models of a name like it are {close}. ' if close else ''}"
        f"Give the name of a known model, or the size of the window in tokens."
    )
