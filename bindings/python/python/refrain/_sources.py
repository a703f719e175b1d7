"""The interface of draft sources written in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class DraftSource(Protocol):
    """Proposes the next tokens, from whatever it knows. Give it to :meth:`Engine.session` or to a ``Drafter`` as one of its ``sources``.

    It is asked once per step, with the interpreter's lock held: for sources that know something, not for speed. What it proposes is
    verified like every draft, so the output stays the same, however wrong or random the proposals are.

    The source's name in statistics and origins is its attribute ``name``, if it has one, and else its class's. Sources of one session
    have different names. Several sessions, and forks of a session, may share an object: their threads then call it in turns.
    """

    def propose(self, tokens: list[int], /) -> Iterable[int | tuple[int, float]]:
        """The tokens that may follow, one behind the other, at most 63; further ones are dropped.

        Args:
            tokens: all committed tokens, prompt and output. The list is a copy.

        Returns:
            Token ids, or pairs of an id and the probability that it follows the tokens before it. Without a probability 0.7 is assumed;
            the engine corrects either by how often the source turned out to be right. Nothing, if there is nothing to propose.

        An exception, a token outside the vocabulary, or a probability outside 0 to 1 switches the source off for the session or the
        sequence. A :class:`~refrain.errors.SourceError` is reported through :func:`sys.unraisablehook`, with the exception as its cause,
        and the generation goes on. Ctrl-C is raised as it is without sources.
        """
        ...
