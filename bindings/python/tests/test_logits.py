"""Rows of an engine's logits, given to the drafter."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from refrain import errors
from refrain.draft import Drafter, Sequence

VOCABULARY = 1000

# Texts in which token 7 is followed by something else each time, so that the text alone does not say what comes next.
TEXT = [7, 100, 101, 7, 102, 103, 7, 104, 105, 9, 7]


def sequence(**options: Any) -> Sequence:
    return Drafter(VOCABULARY, **options).sequence(TEXT)


def origins(sequence: Sequence, rows: int = 16) -> set[str]:
    return set(sequence.propose(rows).origins)


def test_the_engines_own_likeliest_tokens_are_proposed() -> None:
    """After the token 7 the engine has always found 500 likely, which the text has not."""
    calibrated = sequence()
    before = calibrated.propose(16)
    assert 500 not in before.tokens
    rows = [position for position, token in enumerate(TEXT[:-1]) if token == 7]
    for position in rows:
        calibrated.observe_logits([[500, 101]], [[0.9, 0.05]], kind="probabilities", position=position)
    proposal = calibrated.propose(16)
    assert 500 in proposal.tokens and proposal.origins[proposal.tokens.index(500)] == "predictions"


def test_rows_of_a_proposal_are_rows_of_the_accepted_tokens() -> None:
    """Rows given between `propose` and `observe` do the same as the rows of the same tokens by their positions."""
    text = list(range(20, 40)) * 2 + [20, 21]
    by_proposal, by_position = (Drafter(VOCABULARY).sequence(text) for _ in range(2))
    proposal = by_proposal.propose(6)
    assert by_position.propose(6).tokens == proposal.tokens and proposal.tokens[:2] == (22, 23) and proposal.is_chain
    rows = [[600 + i, 700 + i] for i in range(len(proposal) + 1)]
    values = [[-0.2, -2.0]] * len(rows)
    by_proposal.observe_logits(rows, values, kind="log_probabilities")
    committed = [22, 23, 999]
    assert by_proposal.observe(committed) == by_position.observe(committed) == 2
    # The rows of the newest token before the step and of the two accepted ones.
    by_position.observe_logits(rows[:3], values[:3], kind="log_probabilities", position=len(text) - 1)
    # The text comes to these tokens again: what the engine found likely there is proposed, and nothing of the rejected rows.
    seen: set[int] = set()
    for token in (21, 22, 23, 24, 25):
        assert by_proposal.observe([token]) == by_position.observe([token])
        one, two = by_proposal.propose(40), by_position.propose(40)
        assert (one.tokens, one.parents, one.origins) == (two.tokens, two.parents, two.origins)
        seen.update(one.tokens)
    assert {600, 601, 602} <= seen and not {603, 604, 605, 606} & seen


def test_a_rejected_segment_that_is_likely_is_proposed_again() -> None:
    text = list(range(20, 40)) * 3 + [20, 21]
    drafted = Drafter(VOCABULARY, tree=False).sequence(text)
    proposal = drafted.propose(8)
    assert proposal.tokens[:4] == (22, 23, 24, 25)
    # The engine chooses 900 instead of 22, and finds the rest of the draft likely all the same.
    rows = [[900, 22]] + [[token, 901] for token in proposal.tokens[1:]] + [[902, 903]]
    drafted.observe_logits(rows, [[0.6, 0.1]] + [[0.9, 0.05]] * (len(rows) - 1), kind="probabilities")
    drafted.observe([900])
    drafted.observe([23])
    again = drafted.propose(8)
    assert "predictions" in again.origins or again.tokens[:2] == (24, 25)


@pytest.mark.parametrize("array", [list, np.asarray])
def test_the_three_kinds_say_the_same(array: Any) -> None:
    probabilities = [0.7, 0.2, 0.1]
    logits = [math.log(p) + 5.0 for p in probabilities]
    given: dict[Any, list[float]] = {
        "logits": logits,
        "log_probabilities": [math.log(p) for p in probabilities],
        "probabilities": probabilities,
    }
    proposals: list[tuple[Any, ...]] = []
    for kind, values in given.items():
        calibrated = sequence()
        calibrated.observe_logits(array([[500, 501, 502]] * 7), array([values] * 7), kind=kind, position=0)
        proposal = calibrated.propose(16)
        proposals.append((proposal.tokens, proposal.parents, proposal.origins))
        assert 500 in proposal.tokens
    assert proposals[0] == proposals[1] == proposals[2]


def test_bad_rows_change_nothing() -> None:
    reference = sequence()
    tested = sequence()
    nan, inf = math.nan, math.inf
    proposal = tested.propose(4)
    reference.propose(4)
    n = len(proposal) + 1
    bad: list[tuple[list[Any], list[Any], dict[str, Any], int | None]] = [
        ([[1]], [[0.5], [0.5]], {}, None),
        ([[1, 2]], [[0.5]], {}, 0),
        ([[5, 5]], [[0.5, 0.4]], {}, 0),
        ([[1]] * (n + 1), [[0.5]] * (n + 1), {}, n),
        ([[1]], [[nan]], {}, 0),
        ([[3], [1, 2]], [[1.0], [0.0, nan]], {"kind": "logits"}, 1),
        ([[1]], [[inf]], {"kind": "logits"}, 0),
        ([[1]], [[nan]], {"kind": "log_probabilities"}, 0),
        ([[1]], [[1.0]], {"kind": "log_probabilities"}, 0),
        ([[1]], [[-0.5]], {}, 0),
        ([[1, 2]], [[0.7, 0.7]], {}, 0),
        ([[1]] * 2, [[0.5]] * 2, {"position": len(TEXT) - 1}, 1),
        ([[1]], [[0.5]], {"position": len(TEXT)}, 0),
        ([[1]], [[0.5]], {"position": 1 << 60}, 0),
    ]
    for tokens, values, options, row in bad:
        options.setdefault("kind", "probabilities")
        with pytest.raises(errors.LogitsError) as raised:
            tested.observe_logits(tokens, values, **options)
        assert raised.value.row == row, (tokens, values, options, str(raised.value))
    with pytest.raises(errors.TokenOutOfRangeError) as token:
        tested.observe_logits([[1, VOCABULARY]], [[0.5, 0.4]], kind="probabilities")
    assert (token.value.token, token.value.vocab_size) == (VOCABULARY, VOCABULARY)
    with pytest.raises(OverflowError):
        tested.observe_logits([[-1]], [[0.5]])
    with pytest.raises(TypeError):
        tested.observe_logits([1, 2], [0.5, 0.5])  # type: ignore[list-item]
    with pytest.raises(errors.OptionError, match="kind"):
        tested.observe_logits([[1]], [[0.5]], kind="odds")  # type: ignore[arg-type]
    for each in (tested, reference):
        each.observe([7, 100])
    assert tested.propose(16).tokens == reference.propose(16).tokens
    tested.observe([101])
    with pytest.raises(errors.LogitsError, match="propose first") as raised:
        tested.observe_logits([[1]], [[0.5]])
    assert raised.value.row is None
    tested.finish()
    with pytest.raises(errors.SequenceEndedError):
        tested.observe_logits([[1]], [[0.5]], position=0)


def test_what_says_nothing_is_allowed() -> None:
    quiet = sequence()
    quiet.propose(4)
    quiet.observe_logits([], [])
    quiet.observe_logits([[], [3]], [[], [-math.inf]], position=0)
    quiet.observe_logits([[1, 2]], [[-math.inf, -math.inf]])
    quiet.observe_logits([[1, 2]], [[0.0, 1.0]], kind="probabilities")
    assert quiet.observe([100]) in (0, 1)


def test_random_rows_at_random_times_never_disturb_the_text() -> None:
    rng = random.Random(5)
    for tree in (True, False):
        drafted = Drafter(VOCABULARY, tree=tree).sequence([rng.randrange(30) for _ in range(40)])
        expected = drafted.tokens
        for _ in range(300):
            if rng.random() < 0.8:
                proposal = drafted.propose(rng.randrange(1, 20))
                n_rows = rng.randrange(len(proposal) + 2)
                rows = [rng.sample(range(30), rng.randrange(12)) for _ in range(n_rows)]
                drafted.observe_logits(rows, [[rng.gauss(0, 3) for _ in row] for row in rows])
            if rng.random() < 0.3:
                at = rng.randrange(len(expected))
                drafted.observe_logits([[rng.randrange(30)]], [[0.0]], position=at)
            if rng.random() < 0.1:
                expected = expected[: rng.randrange(1, len(expected) + 1)] + [rng.randrange(30)]
                drafted.follow(expected)
            else:
                new = [rng.randrange(30) for _ in range(rng.randrange(1, 4))]
                drafted.observe(new)
                expected += new
            assert drafted.tokens == expected
