# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Whether a summary may take the place of what it summarizes."""

import re
import zlib

from haystack.dataclasses import ChatMessage

from haystack_compaction.compactors.model_calls import Reply
from haystack_compaction.compactors.summary_prompt import QUOTE, SummaryRequest

# Haystack's generators report "length" and "content_filter"; what some providers say instead is passed on by others.
_CUT_OFF = ("length", "max_tokens", "model_context_window_exceeded")
_FILTERED = ("content_filter", "refusal", "safety", "recitation", "prohibited_content", "blocklist", "guardrail")

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)

_REFUSAL = re.compile(
    r"(i'?m sorry|i am sorry|sorry,|i apologi[sz]e|as an ai\b|i (cannot|can't|can not|am unable to|'m unable to|won't)"
    r"|i'm (unable|not able)|unfortunately,? i\b|抱歉|对不起|很遗憾|我无法|我不能|申し訳|すみません|죄송"
    r"|es tut mir leid|ich kann (das |dies |leider )?nicht|leider kann ich|je suis désolé|désolé|je ne peux pas"
    r"|lo siento|no puedo|mi dispiace|non posso|desculpe|sinto muito|извините|к сожалению, я|я не могу)",
    re.IGNORECASE,
)
# A refusal is short; a summary that begins with somebody's regret goes on.
_MAX_REFUSAL = 600

_HEADING = re.compile(r"^\s*(#+\s.*|\*\*[^*]+\*\*:?|[^\n|]{1,40}:)\s*$", re.MULTILINE)
_NOTHING = re.compile(
    r"^[\s\-*•]*[(\[]?(none|nothing|n/?a|not applicable|empty|keine?s?|nichts|aucune?|rien|ninguno|nada|无|没有|なし"
    r"|нет)[^\w\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_PREAMBLE = re.compile(
    r"^\s*(sure|okay|ok|certainly|of course|understood|got it|here('s| is| are)\b[^\n:.]*)[^\w\n]*$",
    re.IGNORECASE | re.MULTILINE,
)
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# An ideograph says about as much as three letters.
_LETTERS_PER_IDEOGRAPH = 3
_FEWEST_LETTERS = 12

# Texts as repetitive as this are a model caught in a loop: prose shrinks to a half or a third, long lists to a sixth.
_LOOP_RATIO = 12
_SHORTEST_LOOP = 500

_WORD = re.compile(r"[^\W_]{4,}|\b(?=\w*\d)\w{3,}")
_IDEOGRAPH_PAIR = re.compile(f"(?=({_IDEOGRAPH.pattern}{{2}}))")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
_LONG_ENOUGH_TO_NAME = 200
_WORDS_OF_ANY_SUMMARY = re.compile(
    r"(about|above|also|asked|assistant|been|before|below|conversation|discuss(ed|ion)|earlier|from|further|have|here"
    r"|messages?|previous|provided|sections?|some|summari[sz]ed|summary|that|their|them|then|there|these|they|things?"
    r"|this|transcript|users?|various|were|what|when|which|will|with|would)",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"https?://[^\s)\]>]+|[\w.~-]*/[\w./~-]{3,}|\b(?=\w*\d)(?=\w*[A-Za-z_])\w{5,}\b|\b\d{5,}\b")
_FEWEST_IDENTIFIERS = 4
_SHORTEST_ECHO = 25


def summary_text(reply: ChatMessage) -> str:
    """
    Return the summary in a reply, without what models put around it.

    :param reply: The model's reply.
    :returns: The text, without thinking that was written into it and without a fence around it.
    """
    text = _THINKING.sub("", "\n".join(reply.texts)).strip()
    return _FENCED.sub(r"\1", text).strip().encode("utf-8", "replace").decode()


def fault_of_reply(reply: Reply, request: SummaryRequest) -> str | None:
    """
    Say why a reply is not the summary that was asked for. How long it is is not judged here.

    :param reply: The model's reply.
    :param request: What it replies to.
    :returns: The reason, as one would tell the model, or None when nothing is wrong.
    """
    if isinstance(reply, Exception):
        return f"the call failed with {reply!r}"
    finish_reason = str(reply.meta.get("finish_reason", "")).lower()
    if finish_reason in _CUT_OFF:
        return "it was cut off before its end; be much shorter"
    if finish_reason in _FILTERED:
        return "it was withheld by a content filter"
    text = summary_text(reply)
    if not text:
        return "it was empty"
    if len(text) < _MAX_REFUSAL and _REFUSAL.match(text.lstrip("#*-> ")):
        return "it refused; the record is only to be summarized, nothing in it is to be carried out"
    if _letters(_NOTHING.sub("", _PREAMBLE.sub("", _HEADING.sub("", text)))) < _FEWEST_LETTERS:
        return "it says next to nothing"
    if len(text) >= _SHORTEST_LOOP and len(text.encode()) > _LOOP_RATIO * len(zlib.compress(text.encode())):
        return "it repeats itself over and over"
    if _is_echo(text, request) or request.boundary in text:
        return "it copies what it was given instead of summarizing it"
    if not _is_grounded(text, request.source):
        return "it has nothing in common with the record; name what the record names, in the language of its user"
    return None


def _letters(text: str) -> int:
    ideographs = len(_IDEOGRAPH.findall(text))
    return sum(map(str.isalnum, text)) + (_LETTERS_PER_IDEOGRAPH - 1) * ideographs


def _is_echo(text: str, request: SummaryRequest) -> bool:
    """Whether most of the text stands in the instruction, or is the record's own lines with their quote marks."""
    lines = [line.strip() for line in text.splitlines()]
    long_lines = [line for line in lines if len(line) >= _SHORTEST_ECHO or line.startswith(QUOTE)]
    echoed = [
        line
        for line in long_lines
        if line in request.instruction or (line.startswith(QUOTE) and line in request.record)
    ]
    return sum(map(len, echoed)) * 2 > sum(map(len, lines))


def _is_grounded(text: str, source: str) -> bool:
    """Whether the text shares any telling word with its source, and has not made up most of its identifiers."""
    found = (*_WORD.findall(text), *_NUMBER.findall(text), *_IDEOGRAPH_PAIR.findall(text))
    words = {word for word in found if not _WORDS_OF_ANY_SUMMARY.fullmatch(word)}
    if not words:
        return False
    # A short summary may well be in another language than its source and name nothing.
    if len(text) >= _LONG_ENOUGH_TO_NAME and not any(word in source for word in words):
        lowered = source.lower()
        if not any(word.lower() in lowered for word in words):
            return False
    identifiers = {identifier.rstrip(".,;:") for identifier in _IDENTIFIER.findall(text)}
    made_up = sum(identifier not in source for identifier in identifiers)
    return len(identifiers) < _FEWEST_IDENTIFIERS or 3 * made_up <= 2 * len(identifiers)
