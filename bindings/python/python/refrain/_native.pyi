# Types of the native half; its documentation is in the docstrings of the classes themselves.
import os
import pathlib
from collections.abc import AsyncIterator, Iterator, Mapping
from collections.abc import Sequence as Items
from types import TracebackType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final

import numpy.typing as npt
from typing_extensions import Unpack

from refrain._events import Completion, Event, MemoryEstimate, Segment, Stats
from refrain._sources import DraftSource
from refrain.assistant import (
    Answer,
    Bubble,
    ChatAnswer,
    Document,
    DocumentChanges,
    Edit,
    FileTexts,
    Forgotten,
    Hit,
    JobEvent,
    JobOptions,
    NoteFile,
    Passage,
    Prefetched,
    Reply,
    SamplingOptions,
    Summary,
    Turn,
    UiCommand,
    UpdateReport,
)

_E_co = TypeVar("_E_co", covariant=True)
_R = TypeVar("_R")
Path: TypeAlias = str | os.PathLike[str]

Role = Literal["system", "developer", "user", "assistant", "tool"]
BlockFormat = Literal["keep", "f32", "q8_0", "q4_0"]
KvType = Literal["f16", "f32", "q8_0", "q4_0"]
Drafting = Literal["auto", "draft_model", "off"]
Task = Literal["answer", "cited_answer", "summarize", "ui", "reply", "edit"]
Kind = Literal["note", "mail", "chat", "screen", "event", "document", "data", "code"]
LogitsKind = Literal["logits", "log_probabilities", "probabilities"]

@final
class CancelToken:
    def __new__(cls) -> CancelToken: ...
    def cancel(self) -> None: ...
    @property
    def is_cancelled(self) -> bool: ...

@final
class Token:
    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def origin(self) -> str | None: ...

@final
class Tokenizer:
    @staticmethod
    def from_file(path: str | os.PathLike[str]) -> Tokenizer: ...
    def encode(self, text: str, *, special: bool = False) -> list[int]: ...
    def encode_infill(self, before: str, after: str) -> list[int]: ...
    @property
    def infill_ends(self) -> list[int]: ...
    def decode(self, ids: Items[int]) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos(self) -> list[int]: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def fingerprint(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Engine:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        quantize: BlockFormat = "keep",
        draft_model: str | os.PathLike[str] | None = None,
        measure_time: float | None = None,
        history_tokens_max: int | None = None,
    ) -> Engine: ...
    @staticmethod
    def estimate_memory(
        path: str | os.PathLike[str],
        *,
        quantize: BlockFormat = "keep",
        draft_model: str | os.PathLike[str] | None = None,
        context_len: int | None = None,
        kv_type: KvType = "f16",
        n_sessions: int = 1,
    ) -> MemoryEstimate: ...
    def session(
        self,
        *,
        context_len: int | None = None,
        kv_type: KvType = "f16",
        drafting: Drafting = "auto",
        history: bool | History = True,
        namespace: str = "default",
        draft_rows: int | None = None,
        verify_rows_max: int = 32,
        prefill_chunk: int = 256,
        sources: Items[DraftSource] = ...,
    ) -> Session: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def architecture(self) -> str: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def forget_history(self, namespace: str | None = None) -> None: ...

@final
class History:
    def __new__(cls, engine: Engine, folder: Path, *, namespace: str = "default", key: bytes | None = None) -> History: ...
    def append(self, output: Completion | Items[int]) -> None: ...
    def maintain(self) -> None: ...
    def forget(self) -> None: ...
    @property
    def namespace(self) -> str: ...

@final
class Session:
    def append_turn(self, role: Role, content: str) -> None: ...
    def pop_turn(self) -> tuple[Role, str] | None: ...
    @property
    def turns(self) -> tuple[tuple[Role, str], ...]: ...
    def append_text(self, text: str, *, special: bool = False) -> None: ...
    def append_tokens(self, tokens: Items[int]) -> None: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def n_cached_tokens(self) -> int: ...
    @property
    def context_len(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def truncate(self, n_tokens: int) -> None: ...
    def fork(self) -> Session: ...
    def prefill(self) -> None: ...
    def generate(
        self,
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: str | Items[str] | None = None,
        stop_tokens: Items[int] | None = None,
        ignore_eos: bool = False,
        cancel: CancelToken | None = None,
    ) -> Generation: ...
    def _score(self, wants_logits: bool) -> tuple[list[float], float, bytearray]: ...
    def _last_hidden_state(self) -> bytearray: ...

@final
class Generation:
    def __iter__(self) -> Iterator[Event]: ...
    def __next__(self) -> Event: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...
    def run(self) -> Completion: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Generation: ...
    def __exit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    @property
    def text(self) -> str: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def is_ended(self) -> bool: ...
    def _steps(self, in_loop_us: int, turn_us: int) -> _Steps[Event]: ...

@final
class _Steps(Generic[_E_co]):
    def fileno(self) -> int: ...
    def take(self) -> _E_co | None: ...
    def turn(self) -> bool: ...
    def woken(self) -> None: ...

@final
class Job(Generic[_R]):
    def __iter__(self) -> Iterator[JobEvent | _R]: ...
    def __next__(self) -> JobEvent | _R: ...
    def __aiter__(self) -> AsyncIterator[JobEvent | _R]: ...
    def run(self) -> _R: ...
    def announce_sentences(self) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Job[_R]: ...
    def __exit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    @property
    def is_ended(self) -> bool: ...
    def _steps(self, in_loop_us: int, turn_us: int) -> _Steps[JobEvent | _R]: ...

@final
class Assistant:
    def __new__(
        cls,
        engine: Engine,
        *,
        notes: Path | None = None,
        embedder: Engine | Path | None = None,
        store: Path | None = None,
        namespace: str = "default",
        prompts: Mapping[Task, str] | None = None,
        system: str | None = None,
        max_tokens: int | None = None,
        n_passages: int = 4,
        n_draft_passages: int = 8,
        n_parts_max: int = 32,
        history: bool = True,
        key: bytes | None = None,
        keeps_prompts: Literal["repeated", "all", "none"] = "repeated",
        prefix_bytes_max: int = ...,
        context_len: int | None = None,
        kv_type: KvType = "f16",
        drafting: Drafting = "auto",
        **options: Unpack[SamplingOptions],
    ) -> Assistant: ...
    def answer(
        self,
        question: str,
        *,
        folders: Items[Path] = ...,
        kinds: Items[Kind] = ...,
        since: int | None = None,
        until: int | None = None,
        tags: Items[str] = ...,
        n_passages: int | None = None,
        passages: Items[Passage] | None = None,
        earlier: Items[str] = ...,
        coverage_min: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Answer]: ...
    def ask(
        self,
        question: str,
        *,
        folders: Items[Path] = ...,
        n_passages: int | None = None,
        passages: Items[Passage] | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Bubble]: ...
    def summarize(
        self,
        texts: Items[Passage] | None = None,
        *,
        notes: Items[Path] | None = None,
        query: str | None = None,
        request: str = "",
        id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Summary]: ...
    @staticmethod
    def read_texts(path: Path, contents: bytes) -> FileTexts: ...
    def reply(
        self,
        message: Passage,
        request: str = "",
        *,
        earlier: Items[Passage] = ...,
        tone: str | None = None,
        length: Literal["short", "medium", "long"] | None = None,
        passages: Items[Passage] = ...,
        n_passages: int = 0,
        **options: Unpack[JobOptions],
    ) -> Job[Reply]: ...
    def edit(
        self,
        text: str,
        instruction: str,
        *,
        selection: tuple[int, int] | None = None,
        lines: tuple[int, int] | None = None,
        section: str | None = None,
        note: Path | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Edit]: ...
    def ui_command(
        self,
        screen: str,
        goal: str,
        *,
        steps: Items[tuple[str | None, str]] = ...,
        actions: str | None = None,
        n_screens: int = 2,
        lists_actions: bool = True,
        **options: Unpack[JobOptions],
    ) -> Job[UiCommand]: ...
    def prefetch_answer(
        self,
        question: str = "",
        *,
        folders: Items[Path] = ...,
        kinds: Items[Kind] = ...,
        since: int | None = None,
        until: int | None = None,
        tags: Items[str] = ...,
        n_passages: int | None = None,
        passages: Items[Passage] | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Prefetched]: ...
    def prefetch_summary(
        self,
        texts: Items[Passage] | None = None,
        *,
        notes: Items[Path] | None = None,
        query: str | None = None,
        request: str = "",
        id: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Prefetched]: ...
    def conversation(self, id: int | None = None, turns: Items[Turn] = ...) -> Conversation: ...
    def in_namespace(self, name: str) -> Assistant: ...
    def refresh_notes(self) -> None: ...
    def forget(
        self,
        *,
        note: Path | None = None,
        conversation: int | None = None,
        before: float | None = None,
        everything: bool = False,
    ) -> Forgotten: ...
    @property
    def namespace(self) -> str: ...

@final
class Conversation:
    def say(self, text: str, *, n_passages: int = 0, **options: Unpack[JobOptions]) -> Job[ChatAnswer]: ...
    @property
    def id(self) -> int: ...
    @property
    def turns(self) -> list[Turn]: ...

@final
class Notes:
    def __new__(
        cls,
        folder: Path,
        *,
        languages: Items[str] | None = None,
        embedder: Engine | Path | None = None,
        key: bytes | None = None,
    ) -> Notes: ...
    def add(self, paths: Items[Path]) -> UpdateReport: ...
    def update(self) -> UpdateReport: ...
    def forget(self, paths: Items[Path]) -> UpdateReport: ...
    def search(
        self,
        text: str,
        *,
        limit: int = 5,
        kinds: Items[Kind] = ...,
        folders: Items[Path] = ...,
        since: int | None = None,
        until: int | None = None,
        tags: Items[str] = ...,
        earlier: Items[str] = ...,
    ) -> list[Hit]: ...
    def put(
        self, documents: Items[Document], *, remove: Items[bytes] = ..., cursor: bytes | None = None
    ) -> int: ...
    def documents_since(self, change: int = 0) -> DocumentChanges: ...
    def cursor(self) -> bytes | None: ...
    def files(self) -> list[NoteFile]: ...
    def refresh(self) -> None: ...
    @property
    def folder(self) -> pathlib.Path: ...

@final
class Drafter:
    def __new__(
        cls,
        tokenizer: Tokenizer | int,
        *,
        store: str | os.PathLike[str] | None = None,
        namespace: str = "default",
        model: int = 0,
        fingerprint: int | None = None,
        tree: bool = True,
        row_us: Mapping[int, float] | None = None,
        sources: Items[DraftSource] = ...,
    ) -> Drafter: ...
    def sequence(self, tokens: Items[int] = ...) -> Sequence: ...
    def propose(self, sequences: Items[Sequence], max_rows: int) -> list[Proposal]: ...
    def maintain(self) -> None: ...
    def forget(self) -> None: ...
    @property
    def tree(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...

@final
class Sequence:
    def propose(self, max_rows: int) -> Proposal: ...
    def observe(self, tokens: Items[int]) -> int: ...
    def observe_logits(
        self,
        tokens: Items[Items[int]] | npt.NDArray[Any],
        values: Items[Items[float]] | npt.NDArray[Any],
        *,
        kind: LogitsKind = "logits",
        position: int | None = None,
    ) -> None: ...
    def follow(self, tokens: Items[int]) -> int: ...
    def finish(self) -> None: ...
    @property
    def tokens(self) -> list[int]: ...
    def __len__(self) -> int: ...

@final
class Proposal:
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def parents(self) -> tuple[int, ...]: ...
    @property
    def probabilities(self) -> tuple[float, ...]: ...
    @property
    def origins(self) -> tuple[str, ...]: ...
    @property
    def is_chain(self) -> bool: ...
    def __len__(self) -> int: ...

def document_path(id: bytes) -> pathlib.Path: ...
def document_id(path: Path) -> bytes | None: ...
def _panic(message: str) -> None: ...

__version__: str
