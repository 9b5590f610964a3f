# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which conversation an Agent's run belongs to."""

import uuid

from haystack.components.agents.state.state import State

_KEY = "conversation_id"
_CONTEXT = "hook_context"


def conversation_id_in(state: State) -> str | None:
    """
    Return the id of the conversation that a run belongs to.

    :param state: The Agent's live state.
    :returns: `conversation_id` of the run's `hook_context`, or else of the state; None where neither has one.
    """
    context = state.data.get(_CONTEXT) or {}
    given = context.get(_KEY) if context.get(_KEY) is not None else state.data.get(_KEY)
    return None if given is None else str(given)


def assigned_conversation_id(state: State) -> str:
    """
    Return the id of the conversation that a run belongs to, and make one for a run without.

    :param state: The Agent's live state. An id that was made is put into its `hook_context`, where tools find it.
    :returns: The id.
    """
    known = conversation_id_in(state)
    if known is not None:
        return known
    made = uuid.uuid4().hex
    # A new dictionary: the caller may use the one that is there for other runs, too.
    state.data[_CONTEXT] = {**(state.data.get(_CONTEXT) or {}), _KEY: made}
    return made
