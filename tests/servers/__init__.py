# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Providers on the loopback that say no exactly where the real ones do, in the real ones' words."""

from servers.anthropic_messages import StrictAnthropicServer
from servers.base import ApiError, Call, ChatServer, Reply
from servers.openai_chat import StrictOpenAIServer

__all__ = ["ApiError", "Call", "ChatServer", "Reply", "StrictAnthropicServer", "StrictOpenAIServer"]
