"""The drafter alone: proposals for engines that verify them.

No model is loaded. A :class:`Drafter` reads the tokens of a text and proposes the next ones, from the text itself and from earlier outputs::

    from refrain.draft import Drafter

    drafter = Drafter(tokenizer, store="drafts", namespace="mail")
    sequence = drafter.sequence(prompt)
    while True:
        proposal = sequence.propose(max_rows=8)
        committed = verify(proposal)  # the engine's pass: accepted tokens, then its own
        sequence.observe(committed)
        ...
    sequence.finish()
"""

from __future__ import annotations

from refrain._native import Drafter, Proposal, Sequence

__all__ = ["Drafter", "Proposal", "Sequence"]
