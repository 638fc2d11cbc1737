"""How many chips are enough, to and from its message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from go_opt.errors import ServiceError
from go_opt.proto import optimizer_pb2
from go_opt.service.messages.convert import result_from_proto, result_to_proto
from go_opt.service.messages.sent_graph import SentGraph

if TYPE_CHECKING:
    from go_opt.api.chip_counts import ChipCount, FewestChips


def fewest_chips_to_proto(fewest: FewestChips, sent: SentGraph) -> optimizer_pb2.OptimizeResponse:
    """The message of the answer, for who sent the graph."""
    response = result_to_proto(fewest.result, sent)
    response.chips_needed.chips = fewest.chips
    response.chips_needed.is_proven = fewest.is_proven
    response.chips_needed.tried.extend(_count_to_proto(found, sent) for found in fewest.tried)
    return response


def fewest_chips_from_proto(message: optimizer_pb2.OptimizeResponse) -> FewestChips:
    """The answer of a message; the results of what was tried have no history.

    Raises:
      ServiceError: it has none.
    """
    # The search loads where it is asked for.
    from go_opt.api.chip_counts import FewestChips

    if not message.HasField("chips_needed"):
        raise ServiceError("the service does not look for the fewest chips: it is of an earlier version.")
    needed = message.chips_needed
    tried = tuple(map(_count_from_proto, needed.tried))
    return FewestChips(result_from_proto(message), needed.chips, needed.is_proven, tried)


def _count_to_proto(found: ChipCount, sent: SentGraph) -> optimizer_pb2.ChipCount:
    result = None if found.result is None else result_to_proto(replace(found.result, history=()), sent)
    return optimizer_pb2.ChipCount(
        chips=found.chips, result=result, is_proven=found.is_proven, reason=found.reason
    )


def _count_from_proto(message: optimizer_pb2.ChipCount) -> ChipCount:
    from go_opt.api.chip_counts import ChipCount

    result = result_from_proto(message.result) if message.HasField("result") else None
    return ChipCount(message.chips, result, message.is_proven, message.reason)
