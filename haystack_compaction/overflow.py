# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Telling the refusal of a request that is too long from every other error, whoever the provider is."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

# What providers and servers say, in any case and inside any wrapping.
_REFUSALS = re.compile(
    # OpenAI (chat, responses, one overlong text), Azure, DeepSeek, vLLM, SGLang, OpenRouter and whoever follows them
    r"context[ _](?:length|window)[ _]exceeded|maximum context length"
    r"|exceeds? (?:the )?context (?:window|length|limit)"
    r"|input tokens exceed the configured limit|string with maximum length \d{6,}"
    # Anthropic, Ollama, Bedrock
    r"|prompt (?:is )?too long|request_too_large|input is too long for"
    r"|too many total text bytes|too many input tokens|number of input tokens exceeds|expected maxlength: \d{5,}"
    # Google
    r"|input token count\b.{0,40}?(?:exceeds|only supports)"
    # Mistral, Cohere, Groq, xAI, Together and Hugging Face
    r"|too large for model with \d|total number of tokens\b.{0,40}?cannot exceed|reduce the length of the messages"
    r"|maximum prompt length is \d|longer than the model'?s context length|`inputs` (?:tokens \+|must have less than)"
    # llama.cpp, LM Studio
    r"|exceed_context_size_error|exceeds the available context size|configured context size is"
    r"|greater than the context length|context length of only \d"
    # Copilot, Moonshot, MiniMax, Alibaba, Poolside, Baidu
    r"|token count of \d+ exceeds|exceeded model token limit|context window exceeds limit|input length should be \["
    r"|maximum allowed input length|prompt tokens too long",
    re.IGNORECASE | re.DOTALL,
)
_REFUSING_CLASSES = re.compile(
    r"context_?(?:window|length|size|limit)?_?(?:exceed|overflow)|(?:prompt|input|request)_?too_?(?:long|large)",
    re.IGNORECASE,
)
_REFUSING_STATUS = 413

# A rate limit may speak of requests that are too large and come as a 413, yet waiting is what helps.
_RATE_LIMITS = re.compile(r"rate.?limit|tokens per (?:min|hour|day)|too many requests|throttl|\bquota", re.IGNORECASE)
_OTHER_CLASSES = re.compile(
    r"ratelimit|throttl|toomanyrequests|authenti|permission|timeout|connecti|quota|cancel|content_?(?:filter|policy)",
    re.IGNORECASE,
)
_OTHER_STATUSES = frozenset({401, 402, 403, 408, 429})

# A size in a message: 4097, or 300,000, or 524300.0.
_N = r"(\d[\d,]*)(?:\.0)?"


def _sizes(*templates: str) -> list[re.Pattern[str]]:
    return [re.compile(template.replace("<N>", _N), re.IGNORECASE) for template in templates]


_LIMITS = _sizes(
    r"maximum context length(?: is| of|:)? \(?<N>",
    r"context limit: \d+ \+ \d+ > <N>",
    r"> <N> maximum",
    r"configured limit of <N>",
    r"tokens allowed \(?<N>",
    r"only supports up to <N>",
    r"model with <N> maximum context length",
    r"cannot exceed <N>",
    r"maximum prompt length is <N>",
    r"context length (?:of only |of )?\(?<N>",
    r"context window of <N>",
    r"context size (?:is )?\(?<N>",
    r"n_ctx\W+<N>",
    r"must be <= <N>",
    r"must have less than <N>",
    r"max input tokens: <N>",
    r"exceeds the limit of <N>",
    r"model token limit: <N>",
    r"input length of <N>",
    r"input length should be \[\d+, <N>\]",
)
_REQUESTS = _sizes(
    r"too long: <N>\b",
    r"context limit: <N> \+",
    r"token count (?:of |is )?\(?<N>",
    r"(?:prompt|request) (?:contains|has) <N>",
    r"n_prompt_tokens\W+<N>",
    r"(?:request|requested tokens|the input) \(<N>",
    r"input length \(?<N>",
    r"requested: <N>",
    r"received <N>",
    r"given: <N>",
    r"request input token count: <N>",
)
# What they name is the size of the request and what is kept free for the reply.
_TOTALS = _sizes(r"(?:you requested|a total of|messages resulted in)(?: about)? <N> tokens")
_REPLIES = _sizes(
    r"<N> (?:tokens )?(?:in|for) the completion",
    r"requested <N> output tokens",
    r"context limit: \d+ \+ <N>",
    r"and <N> `max_new_tokens`",
    r"max(?:_completion)?_tokens'? is too large: <N>",
)

# Some servers repeat the request in their answer. What they have to say themselves comes first.
_READ_CHARACTERS = 4_000


def is_context_overflow(error: BaseException) -> bool:
    """
    Return whether a provider refused a request because it is too long for the model.

    Looks at class, status, code and message of the error, at the provider's answer where the error carries it, and at
    the errors that it was raised from. A rate limit is never taken for a refusal, however much it speaks of size, nor
    is a limit on the length of the reply: no compaction helps against these.

    ### Usage example

    ```python
    from haystack_compaction.overflow import is_context_overflow

    assert is_context_overflow(RuntimeError("prompt is too long: 213462 tokens > 200000 maximum"))
    assert not is_context_overflow(RuntimeError("Rate limit reached on tokens per min (TPM): Limit 30000"))
    ```

    :param error: What the chat generator raised.
    :returns: Whether a shorter request may succeed.
    """
    verdicts = (_verdict(link) for link in _chain(error))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def overflow_sizes(error: BaseException) -> tuple[int | None, int | None]:
    """
    Return the sizes that the refusal of a too long request names.

    ### Usage example

    ```python
    from haystack_compaction.overflow import overflow_sizes

    error = RuntimeError("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000")
    assert overflow_sizes(error) == (178959, 136000)
    ```

    :param error: What the chat generator raised.
    :returns: The size of the request and the largest size that is taken, both in the provider's tokens and without
        what is kept free for the reply; None for a size that is not named.
    """
    for link in _chain(error):
        requested, limit, reply = _named_sizes(_text(link))
        if requested or limit:
            room = limit - reply if limit else 0
            return requested, room if room > 0 else None
    return None, None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, outermost first."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # What merely happened to be handled when a provider answered says nothing about the answer.
        unrelated = link.__suppress_context__ or _status(link) is not None
        link = link.__cause__ or (None if unrelated else link.__context__)


def _verdict(error: BaseException) -> bool | None:
    """Whether the error by itself is such a refusal, None where it does not say."""
    status, text, name = _status(error), _text(error), type(error).__name__
    if status in _OTHER_STATUSES or _RATE_LIMITS.search(text):
        return False
    if status == _REFUSING_STATUS or _REFUSING_CLASSES.search(name) or _REFUSALS.search(text):
        _, limit, reply = _named_sizes(text)
        return limit is None or reply < limit
    return False if _OTHER_CLASSES.search(name) else None


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    candidates = [
        getattr(holder, name, None)
        for holder in (error, response)
        for name in ("status_code", "http_status", "status", "code")
    ]
    if isinstance(response, dict):
        candidates.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    return next((number for number in candidates if isinstance(number, int) and 400 <= number < 600), None)


def _text(error: BaseException) -> str:
    sources = (str(error), getattr(error, "body", None), getattr(error, "response", None), getattr(error, "code", None))
    return "\n".join(_read(source)[:_READ_CHARACTERS] for source in sources)


def _read(source: Any) -> str:
    if isinstance(source, str):
        return source
    if isinstance(source, (dict, list)):
        return json.dumps(source, default=str)
    try:
        text = getattr(source, "text", None)
    except Exception:
        # The answer to a streaming request that nobody has read, say.
        text = None
    return text if isinstance(text, str) else ""


def _named_sizes(text: str) -> tuple[int | None, int | None, int]:
    """The sizes of the request, the limit, and what of the limit is kept free for the reply."""
    reply = _first(_REPLIES, text) or 0
    total = _first(_TOTALS, text)
    return total - reply if total else _first(_REQUESTS, text), _first(_LIMITS, text), reply


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    matches = (pattern.search(text) for pattern in patterns)
    return next((int(match[1].replace(",", "")) for match in matches if match), None)
