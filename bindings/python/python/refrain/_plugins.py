"""What the plug-ins for other engines share."""

from __future__ import annotations

import logging

from refrain.draft import Sequence
from refrain.errors import StoreError


def finish_or_warn(sequence: Sequence, log: logging.Logger) -> None:
    """Ends a text within a request of the engine. An output that cannot be kept, as on a full disk, costs later drafts and no request."""
    try:
        sequence.finish()
    except StoreError as error:
        log.warning("an output was not kept: %s", error)
