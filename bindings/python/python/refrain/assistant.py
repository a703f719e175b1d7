"""The tasks of a notes or assistant app on an engine: answers from notes, summaries, replies, edits, commands for screens, conversations.

::

    from refrain import Engine
    from refrain.assistant import Assistant, Notes

    Notes("index").add(["notes"])
    assistant = Assistant(Engine("model.gguf"), notes="index", store="store")
    answer = assistant.answer("When is the dentist?").run()
    print(answer.text, [passage.title for passage in answer.passages])

A task returns a :class:`Job`: an iterator of :class:`Searched`, :class:`Prefill`, :class:`Text`, :class:`Estimate`, :class:`Part`,
:class:`Window` and :class:`Change` that ends with the result.
:meth:`Assistant.ask` gives all that a chat bubble shows.
Places in texts are pairs of a start and an end in characters, as slices have them; places in files are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from refrain._events import Finish, Stats
from refrain._native import Assistant, CancelToken, Conversation, Job, Notes, document_id, document_path
from refrain._sources import DraftSource

__all__ = [
    "Answer",
    "Assistant",
    "Bubble",
    "BubbleSource",
    "Change",
    "ChatAnswer",
    "Citation",
    "Command",
    "Conversation",
    "CopiedSpan",
    "Document",
    "DocumentChanges",
    "Edit",
    "Estimate",
    "FileTexts",
    "Forgotten",
    "Hit",
    "Job",
    "JobEvent",
    "JobOptions",
    "LeftOut",
    "NoteDocument",
    "NoteFile",
    "Notes",
    "Part",
    "Searched",
    "Passage",
    "Place",
    "Prefetched",
    "Prefill",
    "Provenance",
    "Reply",
    "Report",
    "SamplingOptions",
    "Sentence",
    "SentenceReady",
    "Source",
    "Summary",
    "Text",
    "Turn",
    "UiCommand",
    "UpdateReport",
    "document_id",
    "document_path",
    "Window",
]

Place: TypeAlias = tuple[int, int]
"""Start and end."""


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen, as in :meth:`refrain.Session.generate`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None


class JobOptions(SamplingOptions, total=False):
    """The keywords of every task."""

    priority: Literal["foreground", "interactive", "background"]
    """Who waits for the job: a person who looks at this very app, a person, or nobody."""
    max_tokens: int | None
    """Room for the output."""
    keep: bool
    """Whether the answer is kept, and drafts later ones."""
    cancel: CancelToken | None
    """Stops the job from any thread."""
    sources: Sequence[DraftSource]
    """Draft sources written in Python, for the last generation of the job."""


@dataclass(frozen=True)
class Prefill:
    """A chunk of the prompt was computed."""

    done: int
    """Prompt tokens that are computed, restored ones included."""
    total: int
    """Prompt tokens to be computed."""


@dataclass(frozen=True)
class Text:
    """A piece of the output: complete characters, never empty."""

    text: str
    """The text. The pieces of kind ``"answer"`` together are the text of the result."""
    kind: Literal["reasoning", "answer"]
    """Answer, or the reasoning before it."""
    origin: str | None
    """The source that drafted its last token; ``None`` if no source did."""


@dataclass(frozen=True)
class SentenceReady:
    """A sentence of the answer is complete, for reading it aloud; after :meth:`Job.announce_sentences`."""

    index: int
    """Its number among the sentences of the answer, from 0."""
    place: Place
    """Its place in the answer, with its citations."""
    text: str
    """Its words, without citations."""


@dataclass(frozen=True)
class Part:
    """A part of a long text was summarised."""

    index: int
    """The number of the part, from 0."""
    n_parts: int
    """Parts on its level."""
    text: str
    """Its summary."""


@dataclass(frozen=True)
class Estimate:
    """What a task of several prompts has to do still: before the first one, and again after each."""

    n_prompts: int
    """Prompts."""
    read_tokens: int
    """Their tokens."""
    written_tokens: int
    """Tokens of the outputs, about."""
    seconds: float
    """The time, if nothing else runs."""


@dataclass(frozen=True)
class Window:
    """A window of a long text was edited. Who cancels the job later may keep the new text up to its end, then the old one."""

    index: int
    """The number of the window, from 0."""
    n_windows: int
    """Windows of the text."""
    old: Place
    """Its place in the old text."""
    new: Place
    """What became of it: its place in the new text."""


@dataclass(frozen=True)
class Change:
    """A part of the difference between an older text and the new one."""

    kind: Literal["keep", "insert", "delete"]
    """What became of it."""
    old: Place
    """Its place in the older text; empty where text is inserted."""
    new: Place | None
    """Its place in the new text; ``None`` where text is deleted."""


JobEvent: TypeAlias = "Searched | Prefill | Text | SentenceReady | Estimate | Part | Window | Change"
"""An event of a job before its result. A summary has its changes in the result only."""


@dataclass(frozen=True)
class Source:
    """Where a passage is in the notes."""

    path: Path
    """The note."""
    place: Place = (0, 0)
    """The bytes of the note from which the text was read; empty if they are unknown."""
    is_verbatim: bool = False
    """Whether these bytes are the text itself."""
    score: float | None = None
    """The score of the search that found it."""
    locator: str | None = None
    """The line or page on which it begins, such as ``line 12`` or ``page 3``."""


@dataclass(frozen=True)
class Passage:
    """A piece of text that is shown to the model. Given to a task, its source names the note that it was read from, so that
    :meth:`Assistant.forget` finds what is made from it."""

    title: str
    """A title; may be empty."""
    text: str
    """The text."""
    source: Source | None = None
    """Where it was read from."""


@dataclass(frozen=True)
class Searched:
    """What a task has searched the notes for: the first event of such a task, and a part of its result."""

    words: tuple[tuple[str, float], ...]
    """The words with their weights: those of the request, then those of earlier turns, which weigh less than 1."""
    coverage: float
    """The largest coverage (see :class:`Hit`) of a passage that was found."""
    is_not_in_notes: bool
    """Whether nothing was found that covers enough of the request: the model is shown no passage."""
    nearest: tuple[Passage, ...]
    """In that case, the passages that were found."""


@dataclass(frozen=True)
class CopiedSpan:
    """A part of the output that stands in a passage."""

    output: Place
    """Its place in the output."""
    passage: int
    """Index of the passage."""
    place: Place
    """Its place in the passage's text."""
    is_exact: bool
    """Whether both texts are equal. Otherwise they differ in white space, citations, or signs that begin lines of lists and quotes."""
    n_words: int
    """Number of words."""


@dataclass(frozen=True)
class Citation:
    """A passage that a sentence cites."""

    place: Place
    """The citation's place in the output."""
    number: int
    """The cited number: 1 is the first passage."""
    verdict: Literal["supports", "not_shown", "does_not_support", "too_short"]
    """Whether it holds."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the output, and what supports it. The measure is about words: it does not see a negation."""

    place: Place
    """Its place in the output."""
    support: Literal["copied", "words", "none", "too_short"]
    """Copied from a passage; of its words; no passage supports it; or it claims nothing."""
    passage: int | None
    """Index of the passage that supports it."""
    share: float | None
    """The share of its content words that the passage has, 0 to 1."""
    citations: tuple[Citation, ...]
    """Its citations, in order."""


@dataclass(frozen=True)
class Provenance:
    """Where a text comes from, judged by the texts alone."""

    copied: tuple[CopiedSpan, ...]
    """The spans that stand in a passage."""
    sentences: tuple[Sentence, ...]
    """The sentences."""


@dataclass(frozen=True)
class LeftOut:
    """Text that the model was not shown."""

    title: str
    """The title of its passage."""
    source: Source | None
    """The note, and the bytes of it that were left out."""
    n_tokens: int
    """Its tokens; estimated for long texts."""
    reason: Literal["context", "rest", "parts"]
    """The passage, or its rest, does not fit the context; or there are more parts than are summarised."""


@dataclass(frozen=True)
class Report:
    """How an output came about."""

    finish: Finish
    """Why the last generation ended."""
    n_cut: int
    """Generations that ended at a limit of tokens: with one of them, the text or what it was made from is cut."""
    seed: int | None
    """The seed, given or drawn; ``None`` at temperature 0."""
    stats: tuple[Stats, ...] = field(repr=False)
    """The statistics of each generation, in order."""
    left_out: tuple[LeftOut, ...]
    """What the model was not shown."""
    not_kept: str | None
    """Why the answer was not kept in the store, though it should be."""


@dataclass(frozen=True)
class Answer:
    """An answer from notes."""

    text: str
    """The answer."""
    reasoning: str
    """The reasoning before it; empty for most models."""
    passages: tuple[Passage, ...]
    """The passages that the model was shown, in their order."""
    searched: Searched | None
    """What the notes were searched for; ``None`` if they were not."""
    provenance: Provenance
    """Where the text comes from."""
    report: Report
    """How it came about."""


@dataclass(frozen=True)
class BubbleSource:
    """A source below a chat bubble."""

    number: int
    """The number that the text cites, from 1."""
    title: str
    """The title of its passage; may be empty."""
    path: Path | None
    """The note; ``None`` for the program's own text."""
    locator: str | None
    """The line or page on which it begins, such as ``line 12`` or ``page 3``."""
    text: str
    """The passage, as it was shown."""
    is_cited: bool
    """Whether a citation names it and holds."""
    supports: tuple[int, ...]
    """The sentences that it supports, by their index."""


@dataclass(frozen=True)
class Bubble:
    """What a chat bubble shows."""

    text: str
    """The answer, with its citations such as ``[1]``."""
    reasoning: str
    """The reasoning before it; empty for most models."""
    sources: tuple[BubbleSource, ...]
    """What the model was shown, in the order of their numbers."""
    copied: tuple[CopiedSpan, ...]
    """The parts of the text that are copied from a source; a span's passage is the index in ``sources``."""
    sentences: tuple[Sentence, ...]
    """The sentences, each with its support and its citations."""
    unsupported: tuple[int, ...]
    """The sentences that no source supports, by their index."""
    searched: Searched | None
    """What the notes were searched for; ``None`` if they were not."""
    left_out: tuple[LeftOut, ...]
    """What the model was not shown."""
    is_cut: bool
    """Whether the text ends at a limit of tokens."""
    report: Report
    """How it came about."""


@dataclass(frozen=True)
class Reply(Answer):
    """A reply to a message; of the passages, the first ones are the message and its thread."""


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Its author."""
    content: str
    """Its text."""
    notes: tuple[Path, ...] = ()
    """The notes that it shows or was made from."""
    asked: str | None = None
    """The user's words, if the text has passages too."""
    keep: bool = True
    """Whether the conversation may be kept with it."""


@dataclass(frozen=True)
class ChatAnswer(Answer):
    """An answer in a conversation. Its passages are those that this turn shows."""

    dropped: tuple[Turn, ...]
    """The oldest turns, which were left out because the conversation no longer fitted the context."""


@dataclass(frozen=True)
class Summary:
    """A summary."""

    text: str
    """The summary."""
    reasoning: str
    """The reasoning before it; empty for most models."""
    passages: tuple[Passage, ...]
    """What was summarised, in order."""
    parts: tuple[str, ...]
    """The summaries of the parts; empty if everything fitted one prompt."""
    n_kept_parts: int
    """How many of them an earlier job has kept, which may have been stopped."""
    previous: str | None
    """The stored summary of the same subject and request from before. It drafted this one."""
    changes: tuple[Change, ...]
    """The changes from the previous summary to this one."""
    report: Report
    """How it came about."""


@dataclass(frozen=True)
class Edit:
    """An edited text."""

    text: str
    """The new text."""
    reasoning: str
    """The reasoning before it; empty for most models."""
    changes: tuple[Change, ...]
    """The changes from the old text to the new one."""
    old_part: Place
    """The part of the old text that was edited."""
    new_part: Place
    """What became of it: its place in the new text."""
    around: tuple[str, ...]
    """What the model wrote around the text and does not belong to it, such as ``"Here is the text:"``."""
    report: Report
    """How it came about."""


@dataclass(frozen=True)
class Command:
    """A command for a screen."""

    kind: Literal[
        "tap", "long_press", "type", "swipe", "scroll", "back", "key", "open", "wait", "ask", "done", "none", "own", "other"
    ]
    """What to do: ``own`` is an action of the app, ``done`` says that the goal is reached, ``none`` that no command leads to it."""
    element: str | None
    """The id of its element."""
    text: str | None
    """The text to type, or the question: one line, never empty."""
    direction: Literal["up", "down", "left", "right"] | None
    """Where the finger moves, or the screen is scrolled."""
    name: str | None
    """The key, the app, or the app's own action."""
    arguments: str | None
    """The arguments of an own action: a JSON object."""


@dataclass(frozen=True)
class UiCommand:
    """The next command on a screen."""

    command: Command
    """The command."""
    text: str
    """The command as the model wrote it, such as ``tap 4 "Sign in"``."""
    report: Report
    """How it came about."""


@dataclass(frozen=True)
class FileTexts:
    """The texts of a file."""

    texts: tuple[Passage, ...]
    """The texts, in their order."""
    lost: str | None
    """Why a part of the file was left out."""


@dataclass(frozen=True)
class Prefetched:
    """A prompt that was computed."""

    n_tokens: int
    """Its tokens."""
    n_kept: int
    """Tokens from the first on whose keys and values are in the store now."""


@dataclass(frozen=True)
class Forgotten:
    """What was deleted."""

    n_answers: int
    n_summaries: int
    n_prefix_blocks: int
    """Blocks of computed prompts."""
    is_notes_pending: bool
    """Another process writes the index: it deletes the notes there. Until then, searches of assistants leave them out."""


@dataclass(frozen=True)
class UpdateReport:
    """What an update of an index, or a deletion, did. Counts are of files, except ``n_passages``."""

    n_added: int
    n_changed: int
    n_unchanged: int
    n_removed: int
    n_passages: int
    """Passages written."""
    skipped: tuple[tuple[Path, str], ...]
    """Files and folders that were skipped, and why."""
    skipped_by_ending: tuple[tuple[str, int], ...]
    """The number of files that are no source, by the ending of their names, the most frequent first."""
    unknown: tuple[Path, ...]
    """Forgotten paths of which the index had nothing."""
    is_incomplete: bool
    """Whether it ended before all files were read."""


@dataclass(frozen=True)
class Hit:
    """A passage that a search found."""

    path: Path
    """The file."""
    kind: Literal["note", "mail", "chat", "screen", "event", "document", "data", "code"]
    """The kind of its source."""
    title: str
    """The title of the note, message, chat, screen or event, with the heading above the passage."""
    text: str
    """The text."""
    place: Place
    """The bytes of the file from which it was read."""
    is_verbatim: bool
    """Whether these bytes are the text itself."""
    locator: str | None
    """The line or page on which it begins, such as ``line 12`` or ``page 3``."""
    date: int
    """Seconds since 1970."""
    tags: tuple[str, ...]
    """Tags, in lower case."""
    score: float
    """How well it matches; comparable within one search."""
    coverage: float
    """The share of the request's words that it has, weighed by their rarity, 0 to 1."""
    similarity: float | None
    """The dot product of the vectors of request and passage; ``None`` without an embedder."""
    snippet: str
    """The part of the text with the most words of the request."""
    matched: tuple[Place, ...]
    """These words in the snippet."""


@dataclass(frozen=True)
class Document:
    """A text without a file, for :meth:`Notes.put`."""

    id: bytes
    """Any bytes, at most 512."""
    text: str
    """The text, read as Markdown; at most 8 MiB."""
    title: str | None = None
    """``None``: that in the front matter, else the first heading, else the id."""
    date: int | None = None
    """Seconds since 1970. ``None``: the date in the front matter, else the time at which it is put."""
    tags: Sequence[str] = ()
    """Tags, beside those in the text."""
    kind: Literal["note", "mail", "chat", "screen", "event", "document", "data", "code"] = "note"
    """The kind, for searches."""


@dataclass(frozen=True)
class NoteDocument:
    """A document of an index. The index has its passages, not its whole text."""

    id: bytes
    """The id."""
    n_bytes: int
    """Length of its text."""
    n_passages: int
    """Number of its passages."""
    change: int
    """The number of the change that has put it."""


@dataclass(frozen=True)
class DocumentChanges:
    """The documents that were put and removed since a change."""

    change: int
    """The last change: the next call continues behind it."""
    put: tuple[NoteDocument, ...]
    """The documents that were put and are there."""
    removed: tuple[bytes, ...]
    """The ids of documents that were removed and are not there."""
    is_complete: bool
    """Whether these are the changes since the given number. Otherwise ``put`` has every document, and a copy begins anew."""


@dataclass(frozen=True)
class NoteFile:
    """A file of an index, or a document without a file."""

    path: Path
    """The file, or the path that stands for the document's id."""
    bytes: int
    """Its length when it was read."""
    modified: int
    """Its last change before it was read, or the time at which it was put, in seconds since 1970."""
    n_passages: int
    """Number of its passages."""
