# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What providers really answer, to requests that are too long and to others."""

import json

import httpx
import openai
import pytest
from haystack.core.errors import PipelineRuntimeError

from haystack_compaction.overflow import is_context_overflow, overflow_sizes

# The wording, and the sizes of the request and of its limit without what is kept free for the reply.
REFUSALS = [
    (
        "openai",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 tokens. "
        "Please reduce the length of the messages.",
        (204308, 128000),
    ),
    (
        "openai with tools",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens (8000 "
        "in the messages, 1000 in the functions). Please reduce the length of the messages or functions.",
        (9000, 8192),
    ),
    (
        "openai with a reply",
        "This model's maximum context length is 4097 tokens. However, you requested 4120 tokens (3120 in the messages, "
        "1000 in the completion). Please reduce the length of the messages or completion.",
        (3120, 3097),
    ),
    (
        "openai completions",
        "This model's maximum context length is 4097 tokens, however you requested 4231 tokens (3975 in your "
        "prompt; 256 for the completion). Please reduce your prompt; or completion length.",
        (3975, 3841),
    ),
    (
        "openai responses",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        (None, None),
    ),
    (
        "openai limited",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 428548 tokens. Please "
        "reduce the length of the messages.",
        (428548, 272000),
    ),
    (
        "openai one text",
        "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576, but got a "
        "string with length 1540820 instead.",
        (None, None),
    ),
    ("anthropic", "prompt is too long: 208732 tokens > 200000 maximum", (208732, 200000)),
    (
        "anthropic with a reply",
        "input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease input length or "
        "`max_tokens` and try again",
        (143653, 136000),
    ),
    (
        "anthropic bytes",
        "Error code: 413 - {'type': 'error', 'error': {'type': 'request_too_large', 'message': 'Request exceeds the "
        "maximum size'}}",
        (None, None),
    ),
    (
        "google",
        "400 INVALID_ARGUMENT. {'error': {'code': 400, 'message': 'The input token count (1200293) exceeds the maximum "
        "number of tokens allowed (1048576).', 'status': 'INVALID_ARGUMENT'}}",
        (1200293, 1048576),
    ),
    (
        "google without the size",
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        (None, 1048576),
    ),
    (
        "bedrock",
        "An error occurred (ValidationException) when calling the ConverseStream operation: Input is too long for "
        "requested model.",
        (None, None),
    ),
    (
        "bedrock claude",
        "An error occurred (ValidationException) when calling the Converse operation: The model returned the following "
        "errors: prompt is too long: 903884 tokens > 200000 maximum",
        (903884, 200000),
    ),
    (
        "bedrock titan",
        "ValidationException: 400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token "
        "count: 9279",
        (9279, 8192),
    ),
    (
        "bedrock characters",
        "Malformed input request: expected maxLength: 50000, actual: 60000, please reformat your input",
        (None, None),
    ),
    (
        "mistral",
        "Prompt contains 1000172 tokens and 0 draft tokens, too large for model with 40960 maximum context length",
        (1000172, 40960),
    ),
    (
        "cohere",
        "status_code: 400, body: {'message': 'too many tokens: total number of tokens in the prompt cannot exceed "
        "4081 - received 4292. Try using a shorter prompt, or enabling prompt truncating.'}",
        (4292, 4081),
    ),
    ("ollama", "prompt too long; exceeded max context length by 100918 tokens (status code: 400)", (None, None)),
    ("ollama input", "the input length exceeds the context length (status code: 400)", (None, None)),
    (
        # What it says of the size is a lower bound: it stops counting at the limit.
        "vllm",
        "This model's maximum context length is 202752 tokens. However, you requested 65536 output tokens and your "
        "prompt contains at least 137217 input tokens, for a total of at least 202753 tokens. Please reduce the "
        "length of the input prompt or the number of requested output tokens.",
        (None, 137216),
    ),
    (
        "vllm with a reply",
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 32768 "
        "tokens and your request has 29000 input tokens (4096 > 32768 - 29000).",
        (29000, 28672),
    ),
    (
        "sglang",
        "Requested token count exceeds the model's maximum context length of 262144 tokens. You requested a total of "
        "267042 tokens: 201506 tokens from the input messages and 65536 tokens for the completion.",
        (201506, 196608),
    ),
    (
        "llama.cpp",
        "request (268914 tokens) exceeds the available context size (262144 tokens), try increasing it",
        (268914, 262144),
    ),
    (
        "llama.cpp body",
        '{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context '
        'size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":1407,"n_ctx":256}}',
        (1407, 256),
    ),
    ("llama-cpp-python", "Requested tokens (2285) exceed context window of 2048", (2285, 2048)),
    (
        "lm studio",
        "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded with context "
        "length of only 7866 tokens, which is not enough.",
        (None, 7866),
    ),
    ("groq", "Please reduce the length of the messages or completion.", (None, None)),
    (
        "together",
        "The input (516368 tokens) is longer than the model's context length (262144 tokens).",
        (516368, 262144),
    ),
    (
        "xai",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        (537812, 131072),
    ),
    (
        "hugging face",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3474 `inputs` tokens "
        "and 60 `max_new_tokens`",
        (3474, 1988),
    ),
    (
        "openrouter",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 "
        "of text input). Please reduce the length of either one.",
        (42832, 32768),
    ),
    ("copilot", "prompt token count of 93854 exceeds the limit of 90000", (93854, 90000)),
    ("moonshot", "Your request exceeded model token limit: 262144 (requested: 300000)", (300000, 262144)),
    ("alibaba", "InternalError.Algo.InvalidParameter: Range of input length should be [1, 258048]", (None, 258048)),
    ("minimax", "invalid params, context window exceeds limit (2013)", (None, None)),
    ("grouped digits", "prompt has 300,000 tokens, the configured context size is 131,072 tokens", (300000, 131072)),
]

OTHERS = {
    "openai tokens per minute": "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit "
    "30000, Requested 32042. The input or output tokens must be reduced in order to run successfully.",
    "groq tokens per minute": "Error code: 413 - {'error': {'message': 'Request too large for model `llama-3.1-8b` in "
    "organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 9012, please "
    "reduce your message size and try again.', 'type': 'tokens', 'code': 'rate_limit_exceeded'}}",
    "anthropic rate limit": "This request would exceed your organization's rate limit of 30,000 input tokens per "
    "minute.",
    "bedrock throttling": "An error occurred (ThrottlingException) when calling the Converse operation: Too many "
    "tokens, please wait before trying again.",
    "quota": "You exceeded your current quota, please check your plan and billing details.",
    "openai reply": "max_tokens is too large: 32768. This model supports at most 16384 completion tokens, whereas you "
    "provided 32768.",
    "anthropic reply": "max_tokens: 30000 > 16000, which is the maximum allowed number of output tokens",
    "cohere reply": "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model",
    "deepseek reply": "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "a reply as large as the window": "This model's maximum context length is 4097 tokens. However, you requested "
    "10057 tokens (57 in the messages, 10000 in the completion). Please reduce the length of the messages or "
    "completion.",
    "vllm reply": "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is "
    "4096 tokens and your request has 14 input tokens (4096 > 4096 - 14).",
    "key": "Incorrect API key provided: none. You can find your API key at "
    "https://platform.openai.com/account/api-keys.",
    "credit": "Your credit balance is too low to access the Anthropic API.",
    "filter": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    "a call id": "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length "
    "40, but got a string with length 45 instead.",
    "history": "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'.",
    "anything": "list index out of range",
}


@pytest.mark.parametrize(("message", "sizes"), [pytest.param(m, s, id=name) for name, m, s in REFUSALS])
def test_refusals_are_recognised_with_their_sizes(message, sizes):
    error = RuntimeError(message)
    assert is_context_overflow(error)
    assert overflow_sizes(error) == sizes


@pytest.mark.parametrize("message", [pytest.param(message, id=name) for name, message in OTHERS.items()])
def test_other_errors_are_not(message):
    assert not is_context_overflow(RuntimeError(message))


class ProviderError(Exception):
    """An error as clients raise it: the attributes differ, the message often says nothing."""

    def __init__(self, message="Bad Request", **attributes):
        super().__init__(message)
        vars(self).update(attributes)


TOO_LONG = "prompt is too long: 208732 tokens > 200000 maximum"


@pytest.mark.parametrize(
    "attributes",
    [
        {"body": {"error": {"message": TOO_LONG}}},
        {"body": json.dumps({"error": {"message": TOO_LONG}})},
        {"response": {"Error": {"Code": "ValidationException", "Message": TOO_LONG}}},
        {"response": httpx.Response(400, json={"error": {"message": TOO_LONG}})},
    ],
    ids=["body", "body as text", "response as botocore has it", "response as httpx has it"],
)
def test_it_reads_what_the_error_carries(attributes):
    error = ProviderError(status_code=400, **attributes)
    assert is_context_overflow(error)
    assert overflow_sizes(error) == (208732, 200000)


def test_a_code_is_enough():
    assert is_context_overflow(ProviderError(code="context_length_exceeded"))
    assert is_context_overflow(ProviderError(status_code=400, body={"error": {"code": "exceed_context_size_error"}}))


@pytest.mark.parametrize(
    "name", ["ContextWindowExceededError", "ContextLengthExceededException", "RequestTooLargeError"]
)
def test_a_class_is_enough(name):
    assert is_context_overflow(type(name, (Exception,), {})("no"))


def test_a_status_is_enough_where_it_means_nothing_else():
    assert is_context_overflow(ProviderError(status_code=413))
    assert not is_context_overflow(ProviderError(status_code=400))


@pytest.mark.parametrize(
    "attributes",
    [
        {"status_code": 429},
        {"status_code": 401},
        {"code": 429},
        {"response": httpx.Response(429)},
        {"response": {"ResponseMetadata": {"HTTPStatusCode": 429}}},
    ],
)
def test_a_status_that_means_something_else_outweighs_the_wording(attributes):
    assert not is_context_overflow(ProviderError(TOO_LONG, **attributes))


def raised_from(outer, inner, *, explicitly):
    try:
        try:
            raise inner
        except Exception as error:
            if explicitly:
                raise outer from error
            raise outer  # noqa: B904
    except Exception as error:
        return error


@pytest.mark.parametrize("explicitly", [True, False])
def test_it_looks_through_wrappers(explicitly):
    error = raised_from(PipelineRuntimeError("llm", None, "failed"), RuntimeError(TOO_LONG), explicitly=explicitly)
    error = raised_from(ValueError("the run failed"), error, explicitly=explicitly)
    assert is_context_overflow(error)
    assert overflow_sizes(error) == (208732, 200000)


def test_an_answer_that_comes_while_a_refusal_is_handled_is_judged_by_itself():
    refused = RuntimeError(TOO_LONG)
    assert not is_context_overflow(raised_from(ProviderError(status_code=500), refused, explicitly=False))
    assert not is_context_overflow(raised_from(TimeoutError("timed out"), refused, explicitly=False))


def test_a_rate_limit_inside_a_wrapper():
    limited = ProviderError("slow down", status_code=429)
    assert not is_context_overflow(raised_from(RuntimeError("failed"), limited, explicitly=True))


def test_errors_that_lead_to_each_other_come_to_an_end():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_context_overflow(first)
    assert overflow_sizes(first) == (None, None)


def test_an_answer_that_nobody_has_read():
    response = httpx.Response(400, stream=httpx.ByteStream(b"never read"))
    assert not is_context_overflow(ProviderError(response=response))


def openai_error(kind, status, body):
    request = httpx.Request("POST", "http://localhost/v1/chat/completions")
    return kind(
        f"Error code: {status} - {body}", response=httpx.Response(status, json=body, request=request), body=body
    )


def test_errors_of_the_openai_client():
    body = {"error": {"message": REFUSALS[0][1], "type": "invalid_request_error", "code": "context_length_exceeded"}}
    assert is_context_overflow(openai_error(openai.BadRequestError, 400, body))
    body = {"error": {"message": OTHERS["openai tokens per minute"], "code": "rate_limit_exceeded"}}
    assert not is_context_overflow(openai_error(openai.RateLimitError, 429, body))
    # In the middle of a stream there is no status any more.
    request = httpx.Request("POST", "http://localhost/v1/responses")
    assert is_context_overflow(openai.APIError("", request, body={"code": "context_length_exceeded"}))
    assert not is_context_overflow(openai.APITimeoutError(request))


def test_errors_of_the_anthropic_client():
    anthropic = pytest.importorskip("anthropic")
    request = httpx.Request("POST", "http://localhost/v1/messages")
    body = {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
    response = httpx.Response(413, json=body, request=request)
    assert is_context_overflow(anthropic.APIStatusError("too large", response=response, body=body))


def test_errors_of_botocore():
    exceptions = pytest.importorskip("botocore.exceptions")

    def client_error(code, message, status):
        answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
        return exceptions.ClientError(answer, "Converse")

    assert is_context_overflow(client_error("ValidationException", "Input is too long for requested model.", 400))
    assert not is_context_overflow(client_error("ThrottlingException", "Too many tokens, please wait.", 429))
    assert is_context_overflow(
        exceptions.EventStreamError(
            {"Error": {"Code": "modelStreamErrorException", "Message": TOO_LONG}}, "ConverseStream"
        )
    )


def test_errors_of_google_genai():
    errors = pytest.importorskip("google.genai.errors")
    message = "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."
    body = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    refused = errors.ClientError(400, body)
    wrapped = raised_from(RuntimeError(f"Error in Google Gen AI chat generation: {refused}"), refused, explicitly=True)
    assert is_context_overflow(wrapped)
    assert overflow_sizes(wrapped) == (1200293, 1048576)
    exhausted = {"error": {"code": 429, "message": "Resource has been exhausted.", "status": "RESOURCE_EXHAUSTED"}}
    assert not is_context_overflow(errors.ClientError(429, exhausted))
