"""Exceptions of Refrain.

All derive from :class:`RefrainError`. Where a standard exception says the same, a class derives from that one too, so that
``except ValueError`` or ``except MemoryError`` works. If the system refused a file, ``__cause__`` is its :class:`OSError`.

Arguments of another type raise :class:`TypeError`, and integers that no such number has, as a negative count, :class:`OverflowError`; notes of the
exception name the argument.
"""

from __future__ import annotations

__all__ = [
    "AllocationError",
    "AssistantError",
    "ChatTemplateError",
    "ContextOverflowError",
    "EmptyPromptError",
    "FingerprintError",
    "ForkedError",
    "GenerateError",
    "InternalError",
    "JobCancelledError",
    "LoadError",
    "LogitsError",
    "MixedSessionError",
    "NoDraftModelError",
    "NoRoomError",
    "NotesError",
    "NothingError",
    "OptionError",
    "RefrainError",
    "SequenceEndedError",
    "SessionBusyError",
    "SessionError",
    "SourceError",
    "StoreError",
    "TokenOutOfRangeError",
    "TokenizerError",
]


class RefrainError(Exception):
    """An error of Refrain."""


class LoadError(RefrainError):
    """A model could not be loaded. The message also says what was found and what was expected.

    Each attribute is ``None`` where the error has no such thing.
    """

    file: str | None = None
    """The file or folder."""
    field: str | None = None
    """The field of its header or configuration, the tensor, or the missing part."""
    offset: int | None = None
    """Where, in bytes from the start of the file; of a tensor's bytes, from the start of the data."""
    limit: int | None = None
    """The limit that the field exceeds."""


class InternalError(RefrainError):
    """The engine has panicked, which is a bug of Refrain. The object can still be used, or dropped. Please report the message."""


class ForkedError(RefrainError):
    """The object belongs to the parent of this process.

    A fork copies memory but no threads, so an engine in a forked child would wait forever. Start the child with
    ``multiprocessing.get_context("spawn")``, or make an engine in it.
    """

    process: int
    """The process that made the object."""


class OptionError(RefrainError, ValueError):
    """An argument is outside its range. Nothing has changed."""

    option: str
    """The argument."""
    given: float | str
    """Its value."""


class AllocationError(RefrainError, MemoryError):
    """Memory could not be allocated. Ask for a shorter context."""

    bytes: int
    """Bytes that were asked for."""


class TokenizerError(RefrainError):
    """A tokenizer could not be read, or a text could not be encoded."""


class ChatTemplateError(TokenizerError):
    """The model has no chat template, or the template refuses the turns."""


class TokenOutOfRangeError(RefrainError, ValueError):
    """A token id is not in the vocabulary. Nothing has changed."""

    token: int
    """The id."""
    vocab_size: int
    """Tokens of the vocabulary."""


class SessionError(RefrainError):
    """A session could not be started or changed."""


class SessionBusyError(SessionError):
    """A generation of the session is running. Take all its events, or close it.

    In ``propose`` of a draft source: the generation or sequence waits for the proposal.
    """


class MixedSessionError(SessionError):
    """A session holds either turns of a conversation or plain text."""


class NoDraftModelError(SessionError):
    """The session asks for a draft model, and the engine has none."""


class ContextOverflowError(SessionError, ValueError):
    """The tokens do not fit the session's context."""

    n_tokens: int
    """Tokens that the session would have."""
    context_len: int
    """The session's limit."""


class GenerateError(RefrainError):
    """A generation could not start or continue. The session keeps its committed tokens and can be used again."""


class EmptyPromptError(GenerateError, ValueError):
    """There is nothing to continue."""


class StoreError(RefrainError):
    """A store of outputs could not be opened, read or written."""


class FingerprintError(StoreError):
    """A store has outputs of other tokenizers only: its tokens would mean other texts."""

    expected: int
    """The fingerprint of the given tokenizer."""
    found: int
    """The fingerprint of a tokenizer of the store."""


class SourceError(RefrainError):
    """A draft source written in Python has failed, and its session or sequence asks it no more. Its ``__cause__`` is what went wrong.

    It is reported through :func:`sys.unraisablehook` and never raised: drafts change the speed only, so the generation goes on without
    the source.
    """

    source: str
    """The name of the source."""


class SequenceEndedError(RefrainError):
    """The sequence has ended. Start another one."""


class LogitsError(RefrainError, ValueError):
    """Rows of logits that cannot be used: of a wrong shape, or with values that are none. Nothing has changed."""

    row: int | None
    """The first row that is wrong; ``None`` if all are."""


class NotesError(RefrainError):
    """An index of notes could not be opened, read or written, or another process writes it."""


class AssistantError(RefrainError):
    """A task of the assistant could not start or go on. The assistant is as before, and other jobs go on."""


class JobCancelledError(AssistantError):
    """The job was cancelled. The text of its events is all that there is, and nothing was kept."""


class NothingError(AssistantError, LookupError):
    """There is nothing to work on: no text, or no passage of the notes covers enough of the question."""

    nearest: tuple[str, ...] = ()
    """The titles of the nearest passages of the notes."""


class NoRoomError(AssistantError, ValueError):
    """Request, text or passages do not fit the context."""

    n_tokens: int | None = None
    """Tokens of what must be whole; ``None``: not even the start of one passage fits."""
    room: int
    """Tokens of the context beside the output and what else is in the prompt."""
