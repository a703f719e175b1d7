/*
 * Refrain: language models on a device's CPU.
 *
 * RULES OF EVERY FUNCTION
 *
 * Result. A function returns a refrain_code: REFRAIN_CODE_OK is 0. If its last parameter `error` is not NULL, a failure stores JSON
 * there: {"code", "kind", "message", "file", "field", "offset", "value", "limit"}; what is unknown is null. Free it with
 * refrain_buffer_free. On success, `error` becomes empty.
 *
 * Texts. A text is a pointer and a length in bytes, UTF-8, without a NUL at its end. NULL with length 0 is the empty text. A parameter
 * `*_json` is a JSON text; the empty text is an object without fields, that is, with all defaults. Unknown names are
 * REFRAIN_CODE_NOT_JSON. The records are those of bindings/core, whose documentation has all fields; each function names its own.
 *
 * Buffers. A refrain_buffer that a function fills belongs to the caller, who frees it once with refrain_buffer_free. `data` has a NUL
 * behind its `len` bytes. What a buffer held before is overwritten, not freed.
 *
 * Handles. An object is a refrain_handle, never 0. refrain_free frees it, and makes the handle stale. A handle that is
 * 0, stale, of another object's type, of another copy of the library or made up is an error code, never undefined behaviour.
 *
 * Threads. All functions may be called from all threads. A session, and the events of a job, serve one call at a time: a second one is
 * REFRAIN_CODE_BUSY. refrain_job_cancel may be called from a signal handler.
 *
 * Listeners are called on a thread of the library. Within one, every function but refrain_job_cancel, refrain_buffer_free and the
 * constant ones is REFRAIN_CODE_REENTRANT. A listener must not throw, and must not leave by longjmp.
 *
 * Processes. In a forked child, handles of the parent are REFRAIN_CODE_FORKED. A process may exit while jobs run.
 */

#ifndef REFRAIN_H
#define REFRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The version of the binary interface: of names, parameters and codes. It rises when a program must be compiled again; new functions and
 * fields do not raise it.
 */
#define REFRAIN_ABI_VERSION 1

/**
 * What a function returns. The numbers never change, and none is used again.
 */
enum refrain_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * It has worked.
   */
  REFRAIN_CODE_OK = 0,
  /**
   * The system failed: a disk, a permission, a thread.
   */
  REFRAIN_CODE_IO = 1,
  /**
   * A file, or a part of a model, does not exist.
   */
  REFRAIN_CODE_NOT_FOUND = 2,
  /**
   * A file has another format than its name or place says, or contradicts its format.
   */
  REFRAIN_CODE_DAMAGED = 3,
  /**
   * Valid, but not implemented, or not in this combination.
   */
  REFRAIN_CODE_UNSUPPORTED = 4,
  /**
   * A number exceeds a limit of Refrain, of the model or of a given budget.
   */
  REFRAIN_CODE_OVER_LIMIT = 5,
  /**
   * The system or the engine's memory limit gives too little memory.
   */
  REFRAIN_CODE_OUT_OF_MEMORY = 6,
  /**
   * Two things do not belong together, such as a model and a draft model with another vocabulary.
   */
  REFRAIN_CODE_MISMATCH = 7,
  /**
   * An argument or an option is outside its range. Nothing has changed.
   */
  REFRAIN_CODE_INVALID_ARGUMENT = 8,
  /**
   * The tokens do not fit the context.
   */
  REFRAIN_CODE_CONTEXT_FULL = 9,
  /**
   * The job was cancelled.
   */
  REFRAIN_CODE_CANCELLED = 10,
  /**
   * The call is not possible in this state, such as a task about notes without notes.
   */
  REFRAIN_CODE_WRONG_STATE = 11,
  /**
   * The mask of a grammar, or an embedding model, failed.
   */
  REFRAIN_CODE_PROCESSOR = 12,
  /**
   * No token can be chosen: options and grammar forbid every one.
   */
  REFRAIN_CODE_NO_TOKEN = 13,
  /**
   * The object was closed.
   */
  REFRAIN_CODE_CLOSED = 32,
  /**
   * Another thread or job uses the object.
   */
  REFRAIN_CODE_BUSY = 33,
  /**
   * A listener calls the library from within a call of it.
   */
  REFRAIN_CODE_REENTRANT = 34,
  /**
   * The object belongs to another process, of which this one is a fork.
   */
  REFRAIN_CODE_FORKED = 35,
  /**
   * A bug of Refrain. The object is closed.
   */
  REFRAIN_CODE_PANICKED = 36,
  /**
   * An earlier call has panicked, and has closed the object.
   */
  REFRAIN_CODE_POISONED = 37,
  /**
   * A listener has thrown. The job is cancelled.
   */
  REFRAIN_CODE_LISTENER = 38,
  /**
   * The handle is 0.
   */
  REFRAIN_CODE_NULL_HANDLE = 40,
  /**
   * The handle was freed.
   */
  REFRAIN_CODE_STALE_HANDLE = 41,
  /**
   * The handle was made by another copy of the library, or by nobody.
   */
  REFRAIN_CODE_FOREIGN_HANDLE = 42,
  /**
   * The handle is of an object of another type.
   */
  REFRAIN_CODE_WRONG_HANDLE = 43,
  /**
   * A pointer is NULL that must not be.
   */
  REFRAIN_CODE_NULL_POINTER = 44,
  /**
   * A text is not UTF-8.
   */
  REFRAIN_CODE_NOT_UTF8 = 45,
  /**
   * A text is not the JSON that the call takes.
   */
  REFRAIN_CODE_NOT_JSON = 46,
  /**
   * No passage of the notes covers enough of the question.
   */
  REFRAIN_CODE_NOT_IN_NOTES = 64,
  /**
   * There is nothing to work on: no text, or no passage.
   */
  REFRAIN_CODE_NOTHING = 65,
  /**
   * Another process or object uses the folder.
   */
  REFRAIN_CODE_IN_USE = 66,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum refrain_code refrain_code;
#else
typedef uint32_t refrain_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Bytes of the library, which the caller frees with refrain_buffer_free.
 */
typedef struct refrain_buffer {
  /**
   * The bytes, with a NUL behind them. NULL of an empty buffer.
   */
  char *data;
  /**
   * Their number, without the NUL.
   */
  size_t len;
} refrain_buffer;

/**
 * An object of the library. 0 is none.
 */
typedef uint64_t refrain_handle;

/**
 * Receives the events of a job: a JSON array of `len` bytes with a NUL behind them, valid during the call, with `user` as it was given.
 * Returns whether the job goes on.
 */
typedef bool (*refrain_listener)(void *user, const char *events_json, size_t len);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the binary interface: REFRAIN_ABI_VERSION of the header with which the library was built.
 */
uint32_t refrain_abi_version(void);

/**
 * The version of the library, such as "0.2.0": a text with a NUL, which is never freed.
 */
const char *refrain_version(void);

/**
 * Frees what a function has stored in a buffer, and makes it empty. An empty buffer is left alone.
 *
 * Errors: STALE_HANDLE: the bytes are not of the library, or were freed; NULL_POINTER.
 *
 * Pointers:
 * `buffer` is null or points to an initialised buffer.
 */
refrain_code refrain_buffer_free(struct refrain_buffer *buffer);

/**
 * Closes an object. Its handle stays valid, and later calls are CLOSED. Of an engine, everything that was made from it is closed too, and
 * jobs are cancelled. Allowed twice.
 *
 * Pointers:
 * `error` is null, or valid for writes.
 */
refrain_code refrain_close(refrain_handle object,
                           struct refrain_buffer *error);

/**
 * Frees a handle. A job is cancelled; what was made from the object stays. The handle is STALE_HANDLE from now on.
 *
 * Pointers:
 * `error` is null, or valid for writes.
 */
refrain_code refrain_free(refrain_handle object, struct refrain_buffer *error);

/**
 * The memory of a model with one session, from the header of its file: {"model_bytes", "session_bytes", "total_bytes", "fits"}.
 *
 * `engine_json`: EngineOptions, see refrain_engine_open. `session_json`: SessionOptions, see refrain_engine_session.
 *
 * Errors: as refrain_engine_open.
 *
 * Pointers:
 * The texts are valid, `estimate` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_estimate_memory(const char *engine_json,
                                     size_t engine_json_len,
                                     const char *session_json,
                                     size_t session_json_len,
                                     struct refrain_buffer *estimate,
                                     struct refrain_buffer *error);

/**
 * Loads a model. It takes seconds. `listener` may be NULL; else it receives {"type": "progress", "stage": "load", "done", "total"} events,
 * in bytes, on this thread. A load cannot be stopped.
 *
 * `options_json`: EngineOptions: {"path": GGUF or packed file, or folder of Hugging Face; "threads"; "memory_limit_bytes": of the model
 * and its sessions together; "quantize": "keep", "f32", "q8_0" or "q4_0"; "draft_model": path or "mtp"; "measure_ms": 300; "units": of
 * places in texts, "utf8" or "utf16"}.
 *
 * Errors: NOT_FOUND, DAMAGED, UNSUPPORTED, OVER_LIMIT, IO of the file; OUT_OF_MEMORY; MISMATCH of the draft model; INVALID_ARGUMENT.
 *
 * Pointers:
 * The text is valid, `engine` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_open(const char *options_json,
                                 size_t options_json_len,
                                 refrain_listener listener,
                                 void *user,
                                 refrain_handle *engine,
                                 struct refrain_buffer *error);

/**
 * What was loaded: {"architecture", "layers", "context_len", "vocab_size", "threads", "memory_bytes", "has_chat_template",
 * "instruction_set"}.
 *
 * Pointers:
 * `info` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_info(refrain_handle engine,
                                 struct refrain_buffer *info,
                                 struct refrain_buffer *error);

/**
 * Starts a session: one conversation, or one plain text. `history` is 0, or a history of this engine, from which the session drafts and
 * to which it adds its outputs.
 *
 * `options_json`: SessionOptions: {"context_len": tokens of prompt and output; "kv_type": "f16", "f32", "q8_0" or "q4_0"; "drafting":
 * "auto", "draft_model" or "off"; "namespace"; "system": a turn before all others; "history": true}.
 *
 * Errors: INVALID_ARGUMENT; OUT_OF_MEMORY; WRONG_STATE: "draft_model" without one.
 *
 * Pointers:
 * The text is valid, `session` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_session(refrain_handle engine,
                                    const char *options_json,
                                    size_t options_json_len,
                                    refrain_handle history,
                                    refrain_handle *session,
                                    struct refrain_buffer *error);

/**
 * Opens the outputs of this model in a folder.
 *
 * `options_json`: HistoryOptions: {"folder"; "namespace"; "key": 32 bytes as a list of numbers, which encrypt the outputs}.
 *
 * Errors: IO, DAMAGED, MISMATCH of the key.
 *
 * Pointers:
 * The text is valid, `history` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_history(refrain_handle engine,
                                    const char *options_json,
                                    size_t options_json_len,
                                    refrain_handle *history,
                                    struct refrain_buffer *error);

/**
 * Makes an assistant: the tasks of a notes or assistant app.
 *
 * `options_json`: AssistantOptions: {"notes": folder of an index; "embedder": path; "store": folder that keeps answers; "key"; "session":
 * SessionOptions; "max_tokens"; "n_passages": 4; "coverage_min": 0.3}.
 *
 * Errors: IN_USE: another process has the store; NOT_FOUND: there is no index; MISMATCH of the key; OUT_OF_MEMORY; INVALID_ARGUMENT.
 *
 * Pointers:
 * The text is valid, `assistant` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_assistant(refrain_handle engine,
                                      const char *options_json,
                                      size_t options_json_len,
                                      refrain_handle *assistant,
                                      struct refrain_buffer *error);

/**
 * Forgets the outputs that the engine keeps in memory: of a namespace, or all, if `namespace` is NULL.
 *
 * Pointers:
 * The text is valid, `error` is null or valid for writes.
 */
refrain_code refrain_engine_forget_outputs(refrain_handle engine,
                                           const char *namespace_,
                                           size_t namespace_len,
                                           struct refrain_buffer *error);

/**
 * Tells the engine what the device reports. With heat, memory pressure and saved power it drafts less, and gives back memory. Never
 * changes a text.
 *
 * `state_json`: DeviceState: {"thermal": "nominal", "fair", "serious" or "critical"; "memory": "normal", "warning" or "critical"; "power":
 * "mains", "battery" or "saver"}. What is left out stays as it was.
 *
 * Pointers:
 * The text is valid, `error` is null or valid for writes.
 */
refrain_code refrain_engine_set_device_state(refrain_handle engine,
                                             const char *state_json,
                                             size_t state_json_len,
                                             struct refrain_buffer *error);

/**
 * What a process does before the system suspends it: cancels the engine's jobs, waits for them for at most `max_wait_ms` milliseconds, and
 * makes histories durable: {"cancelled", "running"}, of which the second did not end in time.
 *
 * Pointers:
 * `report` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_engine_prepare_to_suspend(refrain_handle engine,
                                               uint32_t max_wait_ms,
                                               struct refrain_buffer *report,
                                               struct refrain_buffer *error);

/**
 * Adds a turn. `role` is "system", "developer", "user", "assistant" or "tool". The content cannot forge control tokens.
 *
 * Errors: INVALID_ARGUMENT: the role; WRONG_STATE: the session holds plain text; BUSY.
 *
 * Pointers:
 * The texts are valid, `error` is null or valid for writes.
 */
refrain_code refrain_session_append(refrain_handle session,
                                    const char *role,
                                    size_t role_len,
                                    const char *content,
                                    size_t content_len,
                                    struct refrain_buffer *error);

/**
 * Adds plain text, without a chat template.
 *
 * Errors: CONTEXT_FULL: it does not fit, and the session is unchanged; WRONG_STATE: the session holds turns; BUSY.
 *
 * Pointers:
 * The text is valid, `error` is null or valid for writes.
 */
refrain_code refrain_session_append_text(refrain_handle session,
                                         const char *content,
                                         size_t content_len,
                                         struct refrain_buffer *error);

/**
 * Takes back the newest turn: {"role", "content"}, or null if there is none.
 *
 * Pointers:
 * `message` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_session_pop(refrain_handle session, struct refrain_buffer *message, struct refrain_buffer *error);

/**
 * The turns: a list of {"role", "content"}.
 *
 * Pointers:
 * `messages` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_session_messages(refrain_handle session,
                                      struct refrain_buffer *messages,
                                      struct refrain_buffer *error);

/**
 * Counts and sizes: {"tokens", "cached_tokens", "context_len", "memory_bytes"}.
 *
 * Pointers:
 * `info` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_session_info(refrain_handle session, struct refrain_buffer *info, struct refrain_buffer *error);

/**
 * Starts an answer to the turns, or the continuation of the text. When the job has ended, the session has the output.
 *
 * `options_json`: GenerateOptions: {"max_tokens": 512; "temperature": 0; "top_p": 1; "top_k": 0; "min_p": 0; "repetition_penalty": 1;
 * "seed": below 2^53; "stop": list of texts; "json_schema": a text with a JSON Schema under which the output is valid; "sentences": false;
 * of tasks also "priority": "foreground", "interactive" or "background", and "keep": true}.
 *
 * Errors: INVALID_ARGUMENT; CONTEXT_FULL: the newest turn is removed, so that a shorter one can take its place; BUSY.
 *
 * Pointers:
 * The text is valid, `job` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_session_generate(refrain_handle session,
                                      const char *options_json,
                                      size_t options_json_len,
                                      refrain_handle *job,
                                      struct refrain_buffer *error);

/**
 * Computes the prompt now, while the user types. Its job has progress and an empty result.
 *
 * Pointers:
 * `job` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_session_prefill(refrain_handle session, refrain_handle *job, struct refrain_buffer *error);

/**
 * Forgets the outputs of the history's namespace, in every file.
 *
 * Pointers:
 * `error` is null or valid for writes.
 */
refrain_code refrain_history_forget(refrain_handle history, struct refrain_buffer *error);

/**
 * Reads the outputs of other processes, and makes all durable.
 *
 * Pointers:
 * `error` is null or valid for writes.
 */
refrain_code refrain_history_maintain(refrain_handle history, struct refrain_buffer *error);

/**
 * The events since the last call, as a JSON array. Waits for the first one for at most `max_wait_ms` milliseconds. The array is empty if
 * none came in time, and after the last event.
 *
 * An event is an object with a "type": "progress" {"stage", "done", "total"}; "searched" {"words", "coverage", "nearest"}; "text" {"text",
 * "kind": "answer" or "reasoning", "drafted_by": name or null}; "sentence" {"index", "place", "text"}; "edit" {"change": {"kind": "keep",
 * "insert" or "delete"; "old", "new"}}; "window" {"index", "count", "old", "new"}; "part" {"index", "count", "text"}; "estimate" {"ms",
 * "prompts"}; and as the last one "done" {"result"} or "failed" {"error"}. A place is {"start", "end"}.
 *
 * A result is {"text", "reasoning", "finish": "end_token", "stop", "max_tokens" or "context_full"; "is_cut", "seed", "stats", "sources",
 * "copied", "sentences", "left_out", "changes", "doubts", "parts", "previous", "command", "dropped", "update", "kept_tokens", "not_kept"}.
 *
 * Errors: BUSY: another thread or a listener takes the events.
 *
 * Pointers:
 * `events` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_job_next_events(refrain_handle job,
                                     uint32_t max_wait_ms,
                                     struct refrain_buffer *events,
                                     struct refrain_buffer *error);

/**
 * Gives all further events to a listener, in batches as refrain_job_next_events has them, on a thread of the library. `user` must be valid
 * until the listener has got the last event. If the listener returns false, the job is cancelled, and its last event still comes.
 *
 * After an error, the listener is never called.
 *
 * Errors: BUSY; NULL_POINTER; WRONG_STATE: the last event was taken.
 *
 * Pointers:
 * The listener may be called on another thread, with `user`; `error` is null or valid for writes.
 */
refrain_code refrain_job_listen(refrain_handle job,
                                refrain_listener listener,
                                void *user,
                                struct refrain_buffer *error);

/**
 * The answer's text since the last call, without other events: whole characters. Waits for the first piece for at most `max_wait_ms`
 * milliseconds. `is_over` becomes true with the last piece: refrain_job_wait then has the result. `is_over` may be NULL.
 *
 * Errors: those of the job, such as CANCELLED; BUSY: another thread or a listener takes the events.
 *
 * Pointers:
 * `answer` is valid for writes, `is_over` and `error` are null or valid for writes.
 */
refrain_code refrain_job_next_text(refrain_handle job,
                                   uint32_t max_wait_ms,
                                   struct refrain_buffer *answer,
                                   bool *is_over,
                                   struct refrain_buffer *error);

/**
 * Waits for the end of the job, and gives its result; again, if it is called again. See refrain_job_next_events. It takes no events.
 *
 * Errors: those of the job, such as CANCELLED.
 *
 * Pointers:
 * `result` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_job_wait(refrain_handle job,
                              struct refrain_buffer *result,
                              struct refrain_buffer *error);

/**
 * Cancels a job, from any thread, a listener or a signal handler. It ends before the model's next layer, with the event "failed" of
 * CANCELLED. Allowed twice, and after its end.
 *
 * Errors: those of handles; BUSY: in a signal handler that has interrupted a call which makes or frees a handle.
 */
refrain_code refrain_job_cancel(refrain_handle job);

/**
 * Whether the job's last event was taken, or the job was closed.
 *
 * Pointers:
 * `is_ended` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_job_is_ended(refrain_handle job, bool *is_ended, struct refrain_buffer *error);

/**
 * Starts a task. It searches and lays out its prompt on this thread.
 *
 * `request_json`: TaskRequest, by "task": "ask" {"question", "filter", "n_passages", "passages", "earlier", "coverage_min"}; "summarize" one
 * of {"texts", "notes", "query"} with {"request", "id", "filter"}; "reply" {"message", "earlier", "request", "tone", "length": "short",
 * "medium" or "long"; "passages", "n_passages", "filter"}; "edit" {"text", "instruction", "note"} with one or none of {"selection": place;
 * "lines": [first, last]; "section": words of a heading}; "ui" {"screen", "goal", "steps", "actions", "n_screens"}; and "prefetch_ask",
 * "prefetch_summarize", "prefetch_reply", which compute a prompt before it is asked. A passage is {"title", "text", "note"}. A filter is
 * {"kinds", "folders", "since", "until", "tags"}. `options_json`: GenerateOptions, see refrain_session_generate.
 *
 * Errors: NOT_IN_NOTES, NOTHING, CONTEXT_FULL, WRONG_STATE: there are no notes or no store; INVALID_ARGUMENT.
 *
 * Pointers:
 * The texts are valid, `job` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_assistant_start(refrain_handle assistant,
                                     const char *request_json,
                                     size_t request_json_len,
                                     const char *options_json,
                                     size_t options_json_len,
                                     refrain_handle *job,
                                     struct refrain_buffer *error);

/**
 * A conversation, new or continued.
 *
 * `conversation_json`: {"id": as refrain_conversation_info gave it, "turns": list of {"role", "content", "notes", "asked", "keep"}}, or empty.
 *
 * Pointers:
 * The text is valid, `conversation` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_assistant_conversation(refrain_handle assistant,
                                            const char *conversation_json,
                                            size_t conversation_json_len,
                                            refrain_handle *conversation,
                                            struct refrain_buffer *error);

/**
 * Deletes what was kept, and gives {"answers", "summaries", "prompt_blocks", "is_notes_pending"}. When it returns, no file has a byte of it.
 *
 * `what_json`: by "what": "note" {"path"}, "conversation" {"id"}, "before" {"time": seconds since 1970}, "everything".
 *
 * Pointers:
 * The text is valid, `forgotten` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_assistant_forget(refrain_handle assistant,
                                      const char *what_json,
                                      size_t what_json_len,
                                      struct refrain_buffer *forgotten,
                                      struct refrain_buffer *error);

/**
 * Reads the index of notes again, as writers have left it.
 *
 * Pointers:
 * `error` is null or valid for writes.
 */
refrain_code refrain_assistant_refresh_notes(refrain_handle assistant, struct refrain_buffer *error);

/**
 * Answers a turn of the user. The conversation has both turns when the job is done.
 *
 * `request_json`: ChatRequest: {"text", "n_passages": 0, "filter", "passages"}. `options_json`: GenerateOptions, see
 * refrain_session_generate.
 *
 * Errors: BUSY: another job of it runs; CONTEXT_FULL: the turn alone does not fit.
 *
 * Pointers:
 * The texts are valid, `job` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_conversation_say(refrain_handle conversation,
                                      const char *request_json,
                                      size_t request_json_len,
                                      const char *options_json,
                                      size_t options_json_len,
                                      refrain_handle *job,
                                      struct refrain_buffer *error);

/**
 * The id and the turns of finished jobs, as refrain_assistant_conversation takes them.
 *
 * Pointers:
 * `info` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_conversation_info(refrain_handle conversation,
                                       struct refrain_buffer *info,
                                       struct refrain_buffer *error);

/**
 * An index of notes in a folder. It needs no engine. The folder is made by the first write.
 *
 * `options_json`: NotesOptions: {"folder"; "languages": codes such as "en"; "embedder": path; "key": 32 bytes as a list of numbers;
 * "units": "utf8" or "utf16"}.
 *
 * Errors: INVALID_ARGUMENT, or those of the embedding model.
 *
 * Pointers:
 * The text is valid, `notes` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_open(const char *options_json,
                                size_t options_json_len,
                                refrain_handle *notes,
                                struct refrain_buffer *error);

/**
 * Starts a job that writes the index. Its result has "update": {"added", "changed", "unchanged", "removed", "passages", "skipped": list of
 * {"path", "reason"}, "is_incomplete"}. Another process that writes is IN_USE, as the job's error.
 *
 * `write_json`: by "write": "add" {"paths"}: files and folders, and reads what has changed of all; "update": reads what has changed;
 * "forget" {"paths"}: no file of the index has a byte of their text when the job has ended.
 *
 * Pointers:
 * The text is valid, `job` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_write(refrain_handle notes,
                                 const char *write_json,
                                 size_t write_json_len,
                                 refrain_handle *job,
                                 struct refrain_buffer *error);

/**
 * Puts documents without files, and removes some, in one step. Gives the number of the last change, for refrain_notes_documents_since.
 *
 * `request_json`: PutRequest: {"documents": list of {"id", "text", "title", "date", "tags", "kind"}; "remove": ids; "cursor": a text of the
 * app that is stored in the same step}.
 *
 * Pointers:
 * The text is valid, `change` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_put(refrain_handle notes,
                               const char *request_json,
                               size_t request_json_len,
                               uint64_t *change,
                               struct refrain_buffer *error);

/**
 * The passages that match a text best, best first: a list of {"path", "document", "kind", "title", "text", "file_start", "file_end",
 * "locator", "date", "tags", "score", "coverage", "snippet", "matched"}.
 *
 * `request_json`: SearchRequest: {"text", "limit": 5, "filter", "earlier"}.
 *
 * Errors: NOT_FOUND: there is no index.
 *
 * Pointers:
 * The text is valid, `hits` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_search(refrain_handle notes,
                                  const char *request_json,
                                  size_t request_json_len,
                                  struct refrain_buffer *hits,
                                  struct refrain_buffer *error);

/**
 * What changed among the documents since a number; 0: all of them. {"change", "put": list of {"id", "bytes", "passages", "change"};
 * "removed": ids; "is_complete"}.
 *
 * Pointers:
 * `changes` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_documents_since(refrain_handle notes,
                                           uint64_t change,
                                           struct refrain_buffer *changes,
                                           struct refrain_buffer *error);

/**
 * What the app stored with the last refrain_notes_put: a JSON string or null.
 *
 * Pointers:
 * `cursor` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_cursor(refrain_handle notes, struct refrain_buffer *cursor, struct refrain_buffer *error);

/**
 * The files and documents with passages, by path: a list of {"path", "document", "bytes", "modified", "passages"}.
 *
 * Pointers:
 * `files` is valid for writes, `error` is null or valid for writes.
 */
refrain_code refrain_notes_files(refrain_handle notes, struct refrain_buffer *files, struct refrain_buffer *error);

/**
 * Reads the index as the last writer of any process has left it.
 *
 * Pointers:
 * `error` is null or valid for writes.
 */
refrain_code refrain_notes_refresh(refrain_handle notes, struct refrain_buffer *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* REFRAIN_H */
