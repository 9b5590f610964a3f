# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A chat about documents. Each question brings five of them along, and soon those of old questions fill the window.

Two stages keep it small. First the largest contents are shortened, which are the documents of old questions: the
questions themselves and the answers stay. The documents of the question at hand come last. Only when that is not
enough do the oldest turns go.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, and set
`WINDOW` to the model's context window.
"""

from haystack import Document, Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.joiners import ListJoiner
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from scripted import ScriptedChatGenerator

from haystack_compaction import EstimateTokenCounter, HybridCompactor, SlidingWindowCompactor, TruncationCompactor

WINDOW = 6_000
PORTS = ("Brest", "Cherbourg", "Dunkirk", "Lorient", "Roscoff", "Douarnenez")

# The question comes before the documents, since what is shortened keeps its beginning and its end.
PROMPT = """{{ question }}

Documents:
{% for document in documents %}{{ document.content }}
{% endfor %}"""


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Refuse what does not fit, as a provider would, and look the answer up in the documents."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    question, documents = (messages[-1].text or "").split("\n", 1)
    port = next(port for port in PORTS if port in question)
    line = next(line for line in documents.splitlines() if line.startswith(f"High tide in {port}"))
    return ChatMessage.from_assistant(line)


store = InMemoryDocumentStore()
store.write_documents(
    [
        Document(content=f"High tide in {port} at quay {quay}: 12:{10 + quay}.\n" + f"{port} is a fine harbour. " * 40)
        for port in PORTS
        for quay in range(5)
    ]
)
pipeline = Pipeline()
pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=5))
pipeline.add_component("prompt", ChatPromptBuilder([ChatMessage.from_user(PROMPT)], required_variables="*"))
pipeline.add_component("conversation", ListJoiner(list[ChatMessage]))
pipeline.add_component(
    "compactor",
    HybridCompactor(
        [TruncationCompactor(), SlidingWindowCompactor()],
        trigger_threshold_tokens=int(WINDOW * 0.8),
        target_tokens=int(WINDOW * 0.5),
    ),
)
pipeline.add_component("llm", ScriptedChatGenerator(reply))
pipeline.connect("retriever.documents", "prompt.documents")
pipeline.connect("prompt.prompt", "conversation.values")
pipeline.connect("conversation.values", "compactor.messages")
pipeline.connect("compactor.messages", "llm.messages")

history = [ChatMessage.from_system("Answer from the documents only.")]
for number in range(24):
    question = f"Question {number + 1}: when is high tide in {PORTS[number % len(PORTS)]}?"
    result = pipeline.run(
        {
            "conversation": {"values": history},
            "retriever": {"query": question},
            "prompt": {"question": question},
        },
        include_outputs_from={"compactor"},
    )
    report, answer = result["compactor"]["report"], result["llm"]["replies"][0]
    print(f"{question} {answer.text} ({report.tokens_before} tokens before, {report.tokens_after} after)")
    history = [*result["compactor"]["messages"], answer]

print("\nWhat the model still sees of the first questions:\n")
for message in history[1:5]:
    print(f"{message.role.value}: {(message.text or '')}\n")
