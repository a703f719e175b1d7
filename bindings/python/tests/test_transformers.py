"""The plug-in for transformers, with the real library and a small random model: `check --plugins` installs both."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from refrain import errors
from refrain.draft import Drafter

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

VOCABULARY = 256


@pytest.fixture(scope="module")
def model() -> Any:
    """A Llama with random weights. Its greedy outputs run in circles, so drafts are accepted."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Counted:
    """Counts the passes of a model."""

    def __init__(self, model: Any) -> None:
        self.n_passes = 0
        self._hook = model.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.n_passes += 1

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: Any) -> None:
        self._hook.remove()


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in (1, 2, 40, 130)]


def generate(model: Any, prompt: list[int], **options: Any) -> list[int]:
    output: list[int] = model.generate(torch.tensor([prompt]), do_sample=False, **options)[0].tolist()
    return output


def assistant(**options: Any) -> Any:
    from refrain.transformers import Assistant

    return Assistant(Drafter(VOCABULARY, tree=False, **options), max_rows=8)


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("row_us", [None, {1: 1000.0, 8: 1300.0, 16: 2500.0}])
def test_greedy_outputs_are_the_models_own(model: Any, row_us: dict[int, float] | None, logits: bool) -> None:
    from refrain.transformers import Assistant

    drafted = Assistant(Drafter(VOCABULARY, tree=False, row_us=row_us), max_rows=8, logits=logits)
    for prompt in prompts():
        for n in (1, 2, 3, 64):
            expected = generate(model, prompt, max_new_tokens=n)
            assert generate(model, prompt, max_new_tokens=n, custom_generate=drafted) == expected


def test_drafts_save_passes_and_later_outputs_more(model: Any) -> None:
    drafted = assistant()
    prompt = prompts()[2]
    expected = generate(model, prompt, max_new_tokens=64)
    passes: list[int] = []
    for _ in range(2):
        with Counted(model) as counted:
            assert generate(model, prompt, max_new_tokens=64, custom_generate=drafted) == expected
        passes.append(counted.n_passes)
    assert passes[1] < passes[0] < 64


def test_an_end_token_ends_a_drafted_output(model: Any) -> None:
    """Every token of the plain output in turn as the end token, the drafted outputs of earlier rounds as history."""
    drafted = assistant()
    prompt = prompts()[3]
    for end in dict.fromkeys(generate(model, prompt, max_new_tokens=64)[len(prompt) :]):
        expected = generate(model, prompt, max_new_tokens=64, eos_token_id=end)
        assert expected[-1] == end
        assert generate(model, prompt, max_new_tokens=64, eos_token_id=end, custom_generate=drafted) == expected


def test_logits_processors_and_scores_count(model: Any) -> None:
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "max_new_tokens": 48}
    prompt = prompts()[2]
    drafted = assistant()
    for _ in range(2):
        assert generate(model, prompt, custom_generate=drafted, **options) == generate(model, prompt, **options)
    scored = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    plain = model.generate(torch.tensor([prompt]), **scored)
    ours = model.generate(torch.tensor([prompt]), custom_generate=drafted, **scored)
    assert torch.equal(plain.sequences, ours.sequences) and len(plain.scores) == len(ours.scores)
    for a, b in zip(plain.scores, ours.scores):
        # A pass of several rows adds in another order than passes of one.
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_sampling_draws_from_the_models_distribution(model: Any) -> None:
    """The second token's frequencies, given the first: drafted (from an output of the store) and plain agree within 4 standard errors."""
    prompt = prompts()[1]
    n = 1500
    options = {"do_sample": True, "max_new_tokens": 2, "top_k": 3, "temperature": 0.3}
    counts: list[dict[tuple[int, ...], int]] = []
    for extra in ({}, {"custom_generate": assistant()}):
        torch.manual_seed(5)
        seen: dict[tuple[int, ...], int] = {}
        for _ in range(n):
            pair = tuple(model.generate(torch.tensor([prompt]), **options, **extra)[0].tolist()[len(prompt) :])
            seen[pair] = seen.get(pair, 0) + 1
        counts.append(seen)
    for pair in set(counts[0]) | set(counts[1]):
        a, b = (seen.get(pair, 0) / n for seen in counts)
        mean = (a + b) / 2
        assert abs(a - b) <= 4 * (2 * mean * (1 - mean) / n) ** 0.5, (pair, a, b)


class Recorded:
    """A sequence whose rows of logits are kept."""

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self.proposed: list[tuple[int, ...]] = []
        self.rows: list[tuple[list[list[int]], list[list[float]]]] = []

    def propose(self, max_rows: int) -> Any:
        proposal = self._sequence.propose(max_rows)
        self.proposed.append((len(self._sequence), *proposal.tokens))
        return proposal

    def observe_logits(self, tokens: list[list[int]], values: list[list[float]], **options: Any) -> None:
        self.rows.append((tokens, values))
        self._sequence.observe_logits(tokens, values, **options)

    def __len__(self) -> int:
        return len(self._sequence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)


def test_the_drafter_gets_the_logits_of_its_proposals(model: Any) -> None:
    """Row by row those of the model after the committed text and the proposed tokens."""
    from refrain.transformers import Assistant

    drafter = Drafter(VOCABULARY, tree=False)
    recorded: list[Recorded] = []

    class Recording:
        tree = False

        def sequence(self, tokens: list[int]) -> Any:
            recorded.append(Recorded(drafter.sequence(tokens)))
            return recorded[-1]

    prompt = prompts()[2]
    output = generate(model, prompt, max_new_tokens=48, custom_generate=Assistant(Recording(), 8, logits=True))  # type: ignore[arg-type]
    (sequence,) = recorded
    assert output == generate(model, prompt, max_new_tokens=48)
    assert sequence.rows and sum(len(tokens) - 1 for _, *tokens in sequence.proposed) > 8
    for (n, *tokens), (ids, values) in zip(sequence.proposed, sequence.rows):
        with torch.no_grad():
            logits = model(torch.tensor([output[:n] + tokens])).logits[0, n - 1 :]
        expected = torch.log_softmax(logits, -1).topk(8)
        assert len(ids) == len(tokens) + 1
        torch.testing.assert_close(torch.tensor(values), expected.values, rtol=1e-4, atol=1e-4)


def test_threads_share_an_assistant(model: Any) -> None:
    drafted = assistant()
    expected = [generate(model, prompt, max_new_tokens=32) for prompt in prompts()]

    def work(prompt: list[int]) -> list[int]:
        return generate(model, prompt, max_new_tokens=32, custom_generate=drafted)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(work, prompts())) == expected


def test_a_store_that_fails_costs_drafts_only(model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from refrain.transformers import Assistant

    # A namespace whose name is too long is refused when an output is kept.
    drafter = Drafter(VOCABULARY, tree=False, store=tmp_path, fingerprint=1, namespace="x" * 100)
    with caplog.at_level(logging.WARNING):
        drafted = generate(model, prompts()[2], max_new_tokens=24, custom_generate=Assistant(drafter))
    assert drafted == generate(model, prompts()[2], max_new_tokens=24)
    assert [record.name for record in caplog.records] == ["refrain.transformers"]


def test_bad_input(model: Any) -> None:
    from refrain.transformers import Assistant

    with pytest.raises(errors.OptionError) as tree:
        Assistant(Drafter(VOCABULARY))
    assert tree.value.option == "tree"
    with pytest.raises(errors.TokenOutOfRangeError):
        generate(model, prompts()[2], max_new_tokens=4, custom_generate=Assistant(Drafter(100, tree=False)))
    with pytest.raises(ValueError, match="batch_size"):
        model.generate(torch.ones((2, 3), dtype=torch.long), max_new_tokens=4, custom_generate=assistant())
