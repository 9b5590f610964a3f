# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a conversation says, weighed: read once, for the digest and for the scores of units."""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage

from haystack_compaction.salience.corrections import corrections
from haystack_compaction.salience.statements import Listener, Statement
from haystack_compaction.salience.weights import Scale

# What may have been put right is written down where there is room to spare.
_DOUBTED = 0.1


class Reading:
    """
    The statements of a conversation and what each of them is worth.

    :param messages: The whole conversation, oldest to newest. What earlier digests and summaries in it say is read too.
    :param task_text: What the conversation is about now.
    :param previous: A digest or summary that came before the conversation.
    """

    def __init__(self, messages: Sequence[ChatMessage], *, task_text: str = "", previous: str = "") -> None:
        listener = Listener()
        heard = [*listener.statements_of_note(previous, -1), *listener.statements(messages)]
        said = [statement for statement in heard if not listener.is_solved(statement)]
        self.scale = Scale(said, listener.terms(task_text))
        found = corrections(said, self.scale)
        for index in found.newest:
            said[index].corrects = True
        for statement in said:
            statement.weight = self.scale.weight(statement)
        for index in found.doubtful:
            said[index].weight *= _DOUBTED
        #: How often each tool was called, by the index of the message that has the result.
        self.calls = listener.calls
        #: All statements that still hold, in order.
        self.statements: list[Statement] = [
            statement for index, statement in enumerate(said) if index not in found.stale
        ]
        #: The indexes of the messages that say something which was put right later.
        self.stale_messages: set[int] = {said[index].message for index in found.stale}
        #: The same for what may have been put right.
        self.doubtful_messages: set[int] = {said[index].message for index in found.doubtful}
