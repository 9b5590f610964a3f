# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""One run of a compactor as a pipeline node: the trigger, and all that a hook would see to in an Agent."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from haystack import logging
from haystack.dataclasses import ChatMessage
from haystack.tools import ToolsType

from haystack_compaction.archive.recall import reference_tokens
from haystack_compaction.archive.writer import ArchiveWriter, not_archived
from haystack_compaction.compaction_pass import CompactionPass, Outcome
from haystack_compaction.conversation.merging import NoteMerger
from haystack_compaction.conversation.repair import is_valid, repaired, repaired_messages
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.calibration import RequestSize
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from haystack_compaction.compactors.base import Compactor

logger = logging.getLogger(__name__)


@dataclass
class PipelineRun:
    """
    What one run of the node takes, see `Compactor.run`.

    :param compactor: The compactor, whose options say when and how.
    :param ledger: What measures the conversation.
    :param messages: The conversation, oldest to newest. It is left as it is.
    :param target_tokens: The size to compact to now; None to look at the trigger first.
    :param tools: The tools whose schemas will be sent along.
    :param conversation_id: What the archive holds the conversation under.
    """

    compactor: "Compactor"
    ledger: TokenLedger
    messages: list[ChatMessage]
    target_tokens: int | None
    tools: ToolsType | None
    conversation_id: str | None
    notes: NoteMerger = field(default_factory=NoteMerger)

    def passes(self) -> Generator[CompactionPass, Outcome, dict[str, Any]]:
        """
        Do it.

        :returns: A generator of the passes to run, to be sent what each came to, which returns what the node returns.
        """
        given = self.notes.split(self.messages) if self.compactor.merge_notes else self.messages
        valid = repaired(given) if self.compactor.repair and not is_valid(given) else given
        tools_tokens = self.ledger.count([], self.tools)
        if self.compactor.archive is not None:
            tools_tokens += self._reference_tokens
        ledger = self.ledger.calibrated(valid)
        tokens = ledger.measure(valid) + tools_tokens
        if self.target_tokens is None and tokens < self.compactor.trigger_threshold_tokens:
            compacted, report = valid, self._below_trigger(tokens)
        else:
            compacted, report = yield CompactionPass(
                self.compactor,
                valid,
                self.target_tokens or self.compactor.target_tokens,
                ledger,
                request=RequestSize(tools_tokens=tools_tokens),
            )
        report = replace(
            report,
            messages_before=len(given),
            messages_after=len(compacted),
            repaired_messages=0 if valid is given else self._repairs(given, valid),
        )
        compacted, report = self._archived(given, valid, compacted, report)
        compacted = self.notes.merged(compacted) if self.compactor.merge_notes else list(compacted)
        return {"messages": compacted, "report": report}

    @cached_property
    def _reference_tokens(self) -> int:
        """What a note's line about the tool that reads the archive takes."""
        return reference_tokens(self.tools, self.ledger)

    def _below_trigger(self, tokens: int) -> CompactionReport:
        trigger, target = self.compactor.trigger_threshold_tokens, self.compactor.target_tokens
        return CompactionReport(
            strategy=self.compactor.strategy,
            compacted=False,
            tokens_before=tokens,
            tokens_after=tokens,
            target_tokens=target,
            messages_before=len(self.messages),
            messages_after=len(self.messages),
            reached_target=tokens <= target,
            reason=f"{tokens} tokens are below the trigger of {trigger}",
        )

    def _repairs(self, given: list[ChatMessage], valid: list[ChatMessage]) -> int:
        number = repaired_messages(given, valid)
        logger.warning(
            "The history was not one that providers accept; it was repaired in {number} places.", number=number
        )
        return number

    def _archived(
        self, given: list[ChatMessage], valid: list[ChatMessage], compacted: list[ChatMessage], report: CompactionReport
    ) -> Outcome:
        """Archive what is gone. Without that nothing goes but what a repair takes out."""
        archive = self.compactor.archive
        if archive is None or set(map(id, given)) <= set(map(id, compacted)):
            return compacted, report
        writer = ArchiveWriter(archive, self.conversation_id, on_failure=self.compactor.on_archive_failure)
        report = replace(report, conversation_id=writer.conversation_id)
        if self._reference_tokens:
            compacted = writer.with_references(given, compacted)
        if writer.write(given, compacted, report, fits=report.compacted):
            return compacted, report
        return valid, not_archived(report)
