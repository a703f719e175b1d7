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

from typing import Final

from refrain._native import Drafter, Proposal, Sequence
from refrain.errors import OptionError

__all__ = ["N_LIKELIEST", "Drafter", "Proposal", "Sequence", "check_chain"]

N_LIKELIEST: Final = 8
"""Tokens of a row that :meth:`Sequence.observe_logits` uses: the likeliest ones."""


def check_chain(drafter: Drafter) -> Drafter:
    """The drafter, if it proposes chains: for engines that verify no trees.

    Raises:
        OptionError: it was not made with ``tree=False``.
    """
    if drafter.tree:
        error = OptionError("tree is True, and this engine verifies chains: make the drafter with tree=False")
        error.option, error.given = "tree", True
        raise error
    return drafter
