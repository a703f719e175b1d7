"""The assistant and the index of notes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refrain
from conftest import FIXTURES, MODEL
from refrain import errors
from refrain.assistant import (
    Answer,
    Assistant,
    Bubble,
    Change,
    Document,
    Edit,
    Estimate,
    Notes,
    Part,
    Passage,
    Prefill,
    Sentence,
    SentenceReady,
    Source,
    Summary,
    Text,
    Turn,
    document_id,
    document_path,
)

TRIP = "Who comes along on the trip to Aniarda?"
NOTE = Passage("Car repair", "Qulittus Works takes care of the repair of the car. The repair is planned for 18 August.")
MAIL = Passage("Mail from Baidris", "Hi Bouma,\n\nWhat is the company for the repair of the car?\n\nCheers,\nBaidris")
SCREEN = '# Mail screen\n1 field "Search"\n2 item "Rafael Onduri"\n3 button "Archive"\n4 switch "Notifications"\n5 button "Reply"\n'


@dataclass
class Place:
    """A copy of the sample notes with an index."""

    folder: Path

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    def has(self, text: str, *names: str) -> bool:
        """Whether a file of these folders contains the bytes."""
        files = [file for name in names for file in (self.folder / name).rglob("*") if file.is_file()]
        assert files
        return any(text.encode() in file.read_bytes() for file in files)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    shutil.copytree(FIXTURES / "notes", place.notes)
    report = Notes(place.index).add([place.notes])
    assert report.n_added > 5 and report.n_passages >= report.n_added and not report.is_incomplete
    return place


def plain(engine: refrain.Engine, prompt: str) -> str:
    session = engine.session(drafting="off", history=False)
    session.append_turn("user", prompt)
    return session.generate(max_tokens=256).run().text


def test_a_search_finds_words_in_any_form(place: Place) -> None:
    notes = Notes(place.index)
    hits = notes.search(TRIP, limit=3)
    assert hits[0].path.name == "aniarda-travel.md" and hits[0].path.is_absolute()
    assert hits[0].kind == "note" and hits[0].score >= hits[-1].score and 1 < len(hits) <= 3
    words = {hits[0].snippet[start:end].lower() for start, end in hits[0].matched}
    assert "aniarda" in words
    start, end = hits[0].place
    assert hits[0].is_verbatim and hits[0].path.read_bytes()[start:end].decode() == hits[0].text
    assert notes.search("Aniarda", kinds=["mail"]) == []
    assert {hit.path for hit in notes.search("the", limit=50, folders=[hits[0].path])} <= {hits[0].path}
    files = notes.files()
    assert len(files) == len(list(place.notes.iterdir())) and all(file.n_passages > 0 for file in files)


def test_an_index_follows_its_notes(place: Place) -> None:
    notes = Notes(place.index)
    other = Notes(place.index)
    assert other.search("Zürichsee") == []
    (place.notes / "lake.md").write_text("# Lake\n\nThe boat on the Zürichsee leaves at nine. 🚢 Bring a coat for the Zürichsee.\n")
    assert (notes.update().n_added, notes.update().n_unchanged) == (1, len(notes.files()))
    (hit,) = notes.search("Zürichsee")
    # Places in texts count characters.
    assert {hit.snippet[start:end] for start, end in hit.matched} == {"Zürichsee"}
    # Another object reads what it has read until it refreshes.
    assert other.search("Zürichsee") == []
    other.refresh()
    assert len(other.search("Zürichsee")) == 1
    assert place.has("Zürichsee", "index")
    report = notes.forget([place.notes / "lake.md", place.folder / "nothing.md"])
    assert report.unknown == (place.folder / "nothing.md",)
    assert notes.search("Zürichsee") == [] and not place.has("Zürichsee", "index")
    assert (place.notes / "lake.md").exists()


def test_documents_without_files(place: Place) -> None:
    notes = Notes(place.index)
    before = notes.documents_since()
    rows = [
        Document(b"rows/1", "# Lake\n\nThe boat on the Thunersee leaves at nine. #boats", date=1_714_521_600),
        Document(b"\xff\x00", "The ferry on the Thunersee leaves at ten.", title="Ferry", tags=["Boats"], kind="mail"),
    ]
    change = notes.put(rows, cursor=b"17")
    assert (change, notes.cursor()) == (notes.documents_since(change).change, b"17")
    hits = notes.search("Thunersee", tags=["boats"])
    assert {document_id(hit.path) for hit in hits} == {b"rows/1", b"\xff\x00"}
    assert [hit.date for hit in notes.search("Thunersee", folders=["document:/rows"])] == [1_714_521_600]
    assert [hit.title for hit in notes.search("Thunersee", kinds=["mail"])] == ["Ferry"]
    assert document_path(b"rows/1") in {file.path for file in notes.files()} and document_id(place.notes) is None
    # The same again changes nothing.
    assert notes.put(rows) == change
    assert notes.put([], remove=[b"\xff\x00", b"none"]) == change + 1
    changes = notes.documents_since(change)
    assert (changes.put, changes.removed, changes.is_complete) == ((), (b"\xff\x00",), True)
    assert [row.id for row in notes.documents_since(before.change).put] == [b"rows/1"]
    assert not place.has("leaves at ten", "index")
    for bad in (Document(b"", "a"), Document(b"x" * 513, "a"), Document(b"a", "x" * (8 << 20 | 1)), Document(b"a", "\0")):
        with pytest.raises(errors.NotesError):
            notes.put([Document(b"good", "a good one"), bad])
    assert notes.documents_since(changes.change).put == ()
    with pytest.raises(errors.NotesError, match="id"):
        document_path(b"")
    notes.forget([document_path(b"rows/1")])
    assert not place.has("Thunersee", "index") and not place.has("rows/1", "index")


def test_bad_notes(place: Place, tmp_path: Path) -> None:
    for call in (Notes(tmp_path / "none").files, Notes(tmp_path / "none").refresh):
        with pytest.raises(errors.NotesError, match="no index"):
            call()
    with pytest.raises(errors.NotesError) as missing:
        Notes(place.index).add([tmp_path / "missing.md"])
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("not an index")
    with pytest.raises(errors.NotesError, match="file.txt"):
        Notes(tmp_path / "other").add([place.notes])
    with pytest.raises(errors.OptionError):
        Notes(place.index, languages=["xx"])
    unknown: Any = ["letter"]
    with pytest.raises(errors.OptionError):
        Notes(place.index).search("x", kinds=unknown)
    (place.notes / "broken.md").write_bytes(b"\xff\xfb\x00")
    ((path, reason),) = Notes(place.index).update().skipped
    assert path == place.notes / "broken.md" and "UTF-8" in reason


def test_an_answer_is_that_of_plain_decoding_and_names_its_passages(engine: refrain.Engine, place: Place) -> None:
    assistant = Assistant(engine, notes=place.index, store=place.folder / "store", keeps_prompts="all")
    for is_repeated in (False, True):
        *events, answer = assistant.answer(TRIP)
        assert isinstance(answer, Answer)
        assert "Proambe Oriarnell" in answer.text
        assert "".join(event.text for event in events if isinstance(event, Text)) == answer.text
        prompt = "".join(f"# {p.title}\n{p.text.strip()}\n\n" for p in answer.passages)
        assert answer.text == plain(engine, f"Answer the question from the notes.\n\n{prompt}{TRIP}")
        source = answer.passages[0].source
        assert source is not None and source.path == place.notes / "aniarda-travel.md" and source.score is not None
        for span in answer.provenance.copied:
            shown = answer.passages[span.passage].text[slice(*span.place)]
            assert not span.is_exact or answer.text[slice(*span.output)] == shown != ""
        assert answer.provenance.sentences and answer.report.not_kept is None
        stats = answer.report.stats[0]
        prefilled = [event for event in events if isinstance(event, Prefill)]
        if is_repeated:
            # The prompt was restored, and the answer drafted from the first one.
            assert prefilled == [] and stats.prefilled_tokens == 0
        else:
            assert prefilled[-1].done == prefilled[-1].total == stats.prefilled_tokens


def test_passages_of_the_program(engine: refrain.Engine) -> None:
    assistant = Assistant(engine)
    question = "Who takes care of the repair of the car?"
    answer = assistant.answer(question, passages=[NOTE]).run()
    assert "Qulittus Works" in answer.text and answer.passages == (NOTE,)
    sampled = [assistant.answer(question, passages=[NOTE], temperature=1.5, seed=3).run() for _ in range(2)]
    assert sampled[0].text == sampled[1].text and sampled[0].report.seed == 3
    short = assistant.answer(question, passages=[NOTE], max_tokens=3).run()
    assert short.report.finish == "max_tokens" and short.report.stats[0].tokens == 3
    with pytest.raises(errors.NothingError):
        assistant.answer(question, passages=[])
    with pytest.raises(errors.AssistantError, match="no notes"):
        assistant.answer(question)
    with pytest.raises(errors.NoRoomError) as long:
        assistant.answer("word " * 3000, passages=[NOTE])
    assert long.value.n_tokens is not None and long.value.n_tokens > long.value.room
    # A closed or cancelled job leaves the others alone.
    job = assistant.answer(question, passages=[NOTE])
    next(job)
    job.close()
    assert job.is_ended and next(job, None) is None
    with pytest.raises(errors.AssistantError, match="taken before"):
        job.run()
    cancel = refrain.CancelToken()
    job = assistant.answer(question, passages=[NOTE], cancel=cancel)
    next(job)
    cancel.cancel()
    with pytest.raises(errors.JobCancelledError):
        list(job)
    with assistant.answer(question, passages=[NOTE]) as job:
        assert job.run().text == answer.text
    assert repr(job) == "Job(ended)"


def test_unknown_keywords_and_values(engine: refrain.Engine, tmp_path: Path) -> None:
    assistant = Assistant(engine)
    bad: dict[str, Any]
    for bad in ({"temprature": 1.0}, {"temperature": "hot"}):
        with pytest.raises(TypeError):
            assistant.answer("?", passages=[NOTE], **bad)
        with pytest.raises(TypeError):
            Assistant(engine, **bad)
    with pytest.raises(TypeError, match="one of"):
        assistant.summarize()
    with pytest.raises(TypeError, match="one of"):
        assistant.forget()
    for bad in ({"priority": "urgent"}, {"temperature": -1.0}):
        with pytest.raises(errors.OptionError):
            assistant.answer("?", passages=[NOTE], **bad).run()
    for bad in ({"prompts": {"answer": "no places"}}, {"prompts": {"poem": "{request}"}}, {"namespace": ""}):
        with pytest.raises(errors.OptionError):
            Assistant(engine, **bad)
    with pytest.raises(errors.NotesError, match="no index"):
        Assistant(engine, notes=tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StoreError):
        Assistant(engine, store=tmp_path / "file")
    with pytest.raises(errors.OptionError):
        assistant.forget(before=float("nan"))


def test_templates_with_citations(engine: refrain.Engine) -> None:
    template = "Answer in one sentence.\n\n{cited_passages}\n\nQuestion: {request}"
    answer = Assistant(engine, prompts={"answer": template}).answer("Who repairs the car?", passages=[NOTE], max_tokens=12).run()
    assert answer.text == plain_text(engine, f"Answer in one sentence.\n\n# [1] {NOTE.title}\n{NOTE.text}\n\nQuestion: Who repairs the car?", 12)


def test_a_bubble_has_all_that_is_shown(engine: refrain.Engine, place: Place) -> None:
    assistant = Assistant(engine, notes=place.index)
    bubble = assistant.ask("Who comes along on the trip to Aniarda?", max_tokens=24).run()
    assert isinstance(bubble, Bubble) and bubble.text and bubble.report.left_out == bubble.left_out
    first = bubble.sources[0]
    assert first.number == 1 and first.path is not None and first.path.name == "aniarda-travel.md" and first.locator
    assert all(isinstance(sentence, Sentence) for sentence in bubble.sentences) and bubble.is_cut in (True, False)
    template = "Answer in one sentence.\n\n{cited_passages}\n\nQuestion: {request}"
    cited = Assistant(engine, prompts={"cited_answer": template}).ask("Who repairs the car?", passages=[NOTE], max_tokens=12).run()
    assert cited.text == plain_text(engine, f"Answer in one sentence.\n\n# [1] {NOTE.title}\n{NOTE.text}\n\nQuestion: Who repairs the car?", 12)
    assert cited.sources[0].text == NOTE.text and cited.sources[0].path is None


def test_sentences_are_announced_when_they_are_complete(engine: refrain.Engine) -> None:
    job = Assistant(engine).summarize([Passage("Boats", "The boat leaves at ten. It comes back at noon. " * 4)], max_tokens=40)
    job.announce_sentences()
    *events, summary = job
    assert isinstance(summary, Summary)
    ready = [event for event in events if isinstance(event, SentenceReady)]
    assert ready and [sentence.index for sentence in ready] == list(range(len(ready)))
    for sentence in ready:
        assert summary.text[slice(*sentence.place)] == sentence.text


def plain_text(engine: refrain.Engine, prompt: str, max_tokens: int) -> str:
    session = engine.session(drafting="off", history=False)
    session.append_turn("user", prompt)
    return session.generate(max_tokens=max_tokens).run().text


def test_a_summary_in_parts_and_its_changes(engine: refrain.Engine, place: Place) -> None:
    assistant = Assistant(engine, store=place.folder / "store", context_len=256, max_tokens=24)
    texts = [Passage(f"Note {i}", f"The boat leaves at {i} o'clock. " * 12) for i in range(3)]
    *events, first = assistant.summarize(texts, request="In one sentence.", id="boats")
    assert isinstance(first, Summary) and first.previous is None and first.changes == ()
    parts = [event for event in events if isinstance(event, Part)]
    estimates = [event for event in events if isinstance(event, Estimate)]
    assert estimates[0] == events[0] and estimates[0].n_prompts > estimates[-1].n_prompts >= 1
    assert estimates[0].seconds > 0 and first.n_kept_parts == 0
    assert len(first.parts) >= 2 and parts and parts[0].n_parts >= 2
    second = assistant.summarize(texts, request="In one sentence.", id="boats").run()
    assert second.previous == first.text == second.text
    kept = [change for change in second.changes if change.kind == "keep"]
    assert all(change.new and first.text[slice(*change.old)] == second.text[slice(*change.new)] for change in kept)
    with pytest.raises(errors.NothingError):
        assistant.summarize([])
    with pytest.raises(errors.AssistantError):
        assistant.summarize(notes=[place.notes])
    of_notes = Assistant(engine, notes=place.index)
    one = of_notes.summarize(notes=[place.notes / "aniarda-travel.md"], max_tokens=16).run()
    source = one.passages[0].source
    assert source is not None and source.path.name == "aniarda-travel.md"
    assert of_notes.summarize(query="the trip to Aniarda", max_tokens=16).run().passages
    with pytest.raises(errors.AssistantError, match="not in the index"):
        of_notes.summarize(notes=[place.folder / "missing.md"])


def test_a_reply(engine: refrain.Engine, place: Place) -> None:
    reply = Assistant(engine, notes=place.index).reply(MAIL, passages=[NOTE], tone="friendly", length="short").run()
    assert reply.passages[0] == MAIL and NOTE in reply.passages and reply.text
    length: Any = "endless"
    with pytest.raises(errors.OptionError, match="length"):
        Assistant(engine).reply(MAIL, length=length)
    with pytest.raises(errors.NothingError):
        Assistant(engine).reply(Passage("Mail", " "))


def test_parts_of_a_text_are_edited(engine: refrain.Engine) -> None:
    old = "# Für Ada\n\nThe tap drips.\n\n## Tür\n\nThe car is blue.\n"
    assistant = Assistant(engine)
    start = old.index("The car")
    parts: list[dict[str, Any]] = [{"selection": (start, start + 16)}, {"lines": (7, 7)}, {"section": "Tür"}]
    for part in parts:
        edit = assistant.edit(old, "Say bike.", max_tokens=40, **part).run()
        begin, end = edit.old_part
        assert old[:begin] == edit.text[: edit.new_part[0]] and old[end:] == edit.text[edit.new_part[1] :]
        assert "The car is blue." in old[begin:end] and "tap" not in old[begin:end]
    missing: list[dict[str, Any]] = [{"selection": (0, 99)}, {"lines": (1, 99)}, {"section": "Hotel"}]
    for bad in missing:
        with pytest.raises(errors.AssistantError):
            assistant.edit(old, "Say bike.", **bad)
    with pytest.raises(TypeError, match="one of"):
        assistant.edit(old, "Say bike.", lines=(1, 1), section="Tür")


def test_files_are_read_as_an_index_reads_them(tmp_path: Path) -> None:
    mail = b"Subject: =?utf-8?q?T=61p?=\nFrom: ada@x\n\nIt drips.\n"
    read = Assistant.read_texts(tmp_path / "a.eml", mail)
    assert read.lost is None and [(text.title, text.text) for text in read.texts] == [("Tap", "From: ada@x\n\nIt drips.")]
    with pytest.raises(errors.NotesError):
        Assistant.read_texts(tmp_path / "a.png", b"")


def test_changes_of_an_edit_give_the_new_text(engine: refrain.Engine) -> None:
    # Characters of two and four bytes before the changes.
    old = "  Grüße 🚂\nThe meeting is on Friday at ten. Bring the plan.\n"
    job = Assistant(engine).edit(old, "Change Friday to Monday.")
    *events, edit = job
    assert isinstance(edit, Edit)
    assert edit.changes == tuple(event for event in events if isinstance(event, Change)) != ()
    new, at = "", 0
    for change in edit.changes:
        assert change.old[0] == at
        if change.new is not None:
            assert change.new[0] == len(new)
            new += edit.text[slice(*change.new)]
        if change.kind == "keep":
            assert change.new is not None and old[slice(*change.old)] == edit.text[slice(*change.new)]
        at = change.old[1]
    assert at == len(old) and new == edit.text
    with pytest.raises(errors.NothingError):
        Assistant(engine).edit(" ", "Change it.")


def test_commands_are_for_elements_of_the_screen(engine: refrain.Engine) -> None:
    assistant = Assistant(engine)
    for goal in ("Archive the mail.", "Search for Ada.", "Go back."):
        chosen = assistant.ui_command(SCREEN, goal, steps=[(None, "scroll up")], lists_actions=False).run()
        command = chosen.command
        assert command.element is None or command.element in "12345"
        assert command.element is not None or command.kind not in ("tap", "long_press", "type")
        assert (command.text is not None) == (command.kind in ("type", "ask"))
        assert chosen.text.split()[0] == command.kind
    actions = """{"commands": [], "actions": [
        {"name": "archive", "parameters": {"properties": {"mail": {"x-element": true}}, "required": ["mail"]}}]}"""
    chosen = assistant.ui_command(SCREEN, "Archive it.", steps=[(SCREEN, "wait")], actions=actions, lists_actions=False).run()
    assert (chosen.command.kind, chosen.command.name) == ("own", "archive")
    assert chosen.command.arguments is not None and json.loads(chosen.command.arguments)["mail"] in "12345"
    with pytest.raises(errors.AssistantError):
        assistant.ui_command(SCREEN, "Tap it.", actions="[1]")
    with pytest.raises(errors.AssistantError):
        assistant.ui_command("1 button\n1 button\n", "Tap it.")


def test_a_conversation_goes_on_after_it_was_stored(engine: refrain.Engine, place: Place) -> None:
    assistant = Assistant(engine, notes=place.index)
    conversation = assistant.conversation()
    answer = conversation.say(TRIP, n_passages=2, max_tokens=30).run()
    assert answer.passages and answer.dropped == ()
    turns = conversation.turns
    assert [turn.role for turn in turns] == ["user", "assistant"] and turns[1].content == answer.text
    assert place.notes / "aniarda-travel.md" in turns[0].notes
    job = conversation.say("And when?", max_tokens=10)
    with pytest.raises(errors.SessionBusyError):
        conversation.say("Another one.")
    job.close()
    assert conversation.turns == turns
    again = assistant.conversation(conversation.id, turns)
    outputs = [each.say("And when?", max_tokens=10).run().text for each in (conversation, again)]
    assert outputs[0] == outputs[1] and again.id == conversation.id
    assert assistant.conversation(7, [Turn("user", "Hi"), Turn("assistant", "Hello", keep=False)]).turns[1].keep is False
    unknown: Any = [Turn("somebody", "Hi")]  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError):
        assistant.conversation(turns=unknown)


def test_prefetched_prompts_are_not_computed_again(engine: refrain.Engine, place: Place) -> None:
    assistant = Assistant(engine, notes=place.index, store=place.folder / "store")
    prefetched = assistant.prefetch_answer(passages=[NOTE]).run()
    assert 0 < prefetched.n_kept <= prefetched.n_tokens
    stats = assistant.answer("Who repairs it?", passages=[NOTE], max_tokens=4).run().report.stats[0]
    assert stats.cached_tokens > 0
    assert assistant.prefetch_summary([NOTE]).run().n_kept > 0
    with pytest.raises(errors.AssistantError, match="no store"):
        Assistant(engine).prefetch_answer("?", passages=[NOTE])


def test_what_is_forgotten_leaves_no_byte(engine: refrain.Engine, place: Place) -> None:
    note = place.notes / "aniarda-travel.md"
    assistant = Assistant(engine, notes=place.index, store=place.folder / "store")
    assistant.answer(TRIP, folders=[note]).run()
    assert place.has("Proambe", "index")
    done = assistant.forget(note=note)
    assert done.n_answers == 1 and not done.is_notes_pending
    assert not place.has("Proambe", "index") and note.exists()
    with pytest.raises(errors.NothingError):
        assistant.answer("Proambe Oriarnell", folders=[note])
    assistant.answer("Who?", passages=[NOTE], max_tokens=4).run()
    private = assistant.in_namespace("other")
    assert private.namespace == "other"
    assert assistant.forget(before=time.time() + 1).n_answers == 1
    conversation = assistant.conversation()
    conversation.say("Hello.", max_tokens=4).run()
    assert assistant.forget(conversation=conversation.id).n_answers == 1
    assistant.forget(everything=True)
    assistant.refresh_notes()
    with pytest.raises(errors.NothingError):
        assistant.answer("dinner")
    # A deletion finds what is made from texts whose note is named.
    assistant.answer("Who?", passages=[Passage("Car", NOTE.text, Source(place.notes / "car.md"))], max_tokens=4).run()
    assert assistant.forget(note=place.notes / "car.md").n_answers == 1


def test_a_store_is_used_once(engine: refrain.Engine, place: Place) -> None:
    first = Assistant(engine, store=place.folder / "store")
    with pytest.raises(errors.StoreError):
        Assistant(engine, store=place.folder / "store")
    assert repr(first) == 'Assistant(namespace="default", with a store)'


def test_jobs_in_threads_and_event_loops(engine: refrain.Engine) -> None:
    assistant = Assistant(engine)
    expected = assistant.answer("Who?", passages=[NOTE], max_tokens=20).run().text
    texts: list[str] = []

    def work() -> None:
        texts.extend(assistant.answer("Who?", passages=[NOTE], max_tokens=20).run().text for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()

    async def ask() -> str:
        text = ""
        async for event in assistant.answer("Who?", passages=[NOTE], max_tokens=20):
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, Answer):
                assert event.text == text
                return text
        raise AssertionError("no result")

    async def together() -> list[str]:
        return await asyncio.gather(*(ask() for _ in range(4)))

    texts.extend(asyncio.run(together()))
    for thread in threads:
        thread.join()
    assert texts == [expected] * 16


def test_sources_written_in_python(engine: refrain.Engine) -> None:
    class Words:
        name = "words"

        def __init__(self, ids: list[int]) -> None:
            self.ids = ids

        def propose(self, tokens: list[int]) -> list[int]:
            n = next((n for n in range(len(self.ids), 0, -1) if tokens[-n:] == self.ids[:n]), 0)
            return self.ids[n:]

    assistant = Assistant(engine, history=False)
    answer = assistant.answer("Who repairs the car?", passages=[NOTE]).run()
    source = Words(engine.tokenizer.encode(answer.text))
    again = assistant.answer("Who repairs the car?", passages=[NOTE], sources=[source]).run()
    assert again.text == answer.text
    assert "words" in {stats.name for stats in again.report.stats[0].sources}


def test_vectors_of_a_model(place: Place) -> None:
    engine = refrain.Engine(MODEL, measure_time=0)
    notes = Notes(place.folder / "vectors", embedder=engine)
    notes.add([place.notes / "aniarda-travel.md"])
    assert notes.search("a journey", limit=2)
    assert Assistant(engine, notes=place.folder / "vectors", embedder=engine).answer("a journey", max_tokens=4).run().passages


def test_vectors_of_a_sentence_encoder(engine: refrain.Engine, place: Place) -> None:
    encoder = FIXTURES.parent / "tests/golden/encoders/bert"
    notes = Notes(place.folder / "vectors", embedder=encoder)
    notes.add([place.notes / "aniarda-travel.md"])
    assert notes.search("a journey", limit=2)
    assert Assistant(engine, notes=place.folder / "vectors", embedder=encoder).answer("a journey", max_tokens=4).run().passages
    with pytest.raises(errors.LoadError, match="model.safetensors"):
        Notes(place.folder / "others", embedder=place.notes)


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_forked_child_is_refused(engine: refrain.Engine, place: Place) -> None:
    notes, assistant = Notes(place.index), Assistant(engine, notes=place.index, store=place.folder / "store")
    conversation, job = assistant.conversation(), assistant.answer("Who?", passages=[NOTE])
    history = refrain.History(engine, place.folder / "history")
    calls: list[Callable[[], object]] = [
        notes.files, notes.update, lambda: assistant.answer("Who?", passages=[NOTE]), lambda: assistant.forget(everything=True),
        lambda: conversation.turns, job.run, job.close, lambda: next(job), lambda: history.append([1]), history.maintain,
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except errors.ForkedError:
                refused += 1
        os._exit(0 if refused == len(calls) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert job.run().text


def test_one_key_encrypts_notes_and_store(engine: refrain.Engine, tmp_path: Path) -> None:
    key, other = bytes(range(32)), bytes(32)
    place = Place(tmp_path)
    shutil.copytree(FIXTURES / "notes", place.notes)
    assert Notes(place.index, key=key).add([place.notes]).n_added > 5
    store = place.folder / "store"
    with_key = Assistant(engine, notes=place.index, store=store, key=key)
    text = with_key.answer(TRIP).run().text
    del with_key
    assert text and not place.has("Aniarda", "index", "store") and not place.has(text, "index", "store")
    assert Notes(place.index, key=key).search("Aniarda")
    for wrong in (None, other):
        with pytest.raises(errors.NotesError):
            Notes(place.index, key=wrong).search("Aniarda")
        with pytest.raises((errors.NotesError, errors.StoreError)):
            Assistant(engine, store=store, key=wrong)
    for length in (0, 31, 33):
        with pytest.raises(errors.OptionError, match="32"):
            Notes(place.folder / "other", key=bytes(length))
    history = refrain.History(engine, place.folder / "history", key=key)
    history.append([5, 6, 7])
    with pytest.raises(errors.StoreError):
        refrain.History(engine, place.folder / "history", key=other)
    with pytest.raises(errors.OptionError, match="32"):
        refrain.History(engine, place.folder / "history", key=b"short")
