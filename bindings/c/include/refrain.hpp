/*
 * Refrain for C++20: owners of the objects of refrain.h, and exceptions in place of codes.
 *
 * Texts are UTF-8. Options and results are the JSON texts of refrain.h, for the app's own reader of JSON. An object is moved, not copied, and freed
 * by its destructor. All methods may be called from all threads, as refrain.h says.
 */
#ifndef REFRAIN_HPP
#define REFRAIN_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "refrain.h"

namespace refrain {

/* A call has failed. what() is the JSON of the error: code, kind, message, file, field, offset, value, limit. */
class Error : public std::runtime_error {
 public:
  Error(refrain_code code, const std::string& json) : std::runtime_error(json), code_(code) {}

  [[nodiscard]] refrain_code code() const noexcept { return code_; }

 private:
  refrain_code code_;
};

namespace detail {

/* A buffer that is freed. */
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { refrain_buffer_free(&buffer_); }

  refrain_buffer* get() noexcept { return &buffer_; }
  [[nodiscard]] std::string text() const { return buffer_.len == 0 ? std::string() : std::string(buffer_.data, buffer_.len); }

 private:
  refrain_buffer buffer_ = {nullptr, 0};
};

/* Calls a function with a place for its error, and throws it. */
template <typename Call>
void run(Call&& call) {
  Owned error;
  if (const refrain_code code = call(error.get()); code != REFRAIN_CODE_OK) {
    throw Error(code, error.text());
  }
}

/* Calls a function that gives a text. */
template <typename Call>
std::string text(Call&& call) {
  Owned text;
  run([&](refrain_buffer* error) { return call(text.get(), error); });
  return text.text();
}

/* Calls a function that gives a handle. */
template <typename Call>
refrain_handle make(Call&& call) {
  refrain_handle made = 0;
  run([&](refrain_buffer* error) { return call(&made, error); });
  return made;
}

/* The owner of a handle. */
class Object {
 public:
  explicit Object(refrain_handle handle) noexcept : handle_(handle) {}
  Object(Object&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() {
    if (handle_ != 0) {
      refrain_free(handle_, nullptr);
    }
  }

  /* Closes the object: later calls throw REFRAIN_CODE_CLOSED. */
  void close() {
    run([&](refrain_buffer* error) { return refrain_close(handle_, error); });
  }

  [[nodiscard]] refrain_handle handle() const noexcept { return handle_; }

 private:
  refrain_handle handle_;
};

}  // namespace detail

/* A running answer, task or update. */
class Job : public detail::Object {
 public:
  using Object::Object;

  /* The events since the last call, as a JSON array; waits for the first one so long. */
  std::string next_events(std::chrono::milliseconds max_wait) {
    return detail::text([&](refrain_buffer* events, refrain_buffer* error) {
      return refrain_job_next_events(handle(), static_cast<std::uint32_t>(max_wait.count()), events, error);
    });
  }

  /* Gives the answer's text piece by piece to a function, until its end. */
  template <typename Show>
  void each_text(Show&& show) {
    for (bool is_over = false; !is_over;) {
      const std::string piece = detail::text([&](refrain_buffer* answer, refrain_buffer* error) {
        return refrain_job_next_text(handle(), 1000, answer, &is_over, error);
      });
      if (!piece.empty()) {
        show(std::string_view(piece));
      }
    }
  }

  /* Gives all events to a function on a thread of the library, as JSON arrays, and returns the result at the end. If the function returns
   * false, the job is cancelled; if it throws, too, and the exception is thrown here. */
  std::string listen(std::function<bool(std::string_view)> on_events) {
    struct Listening {
      std::function<bool(std::string_view)> call;
      std::exception_ptr thrown;
    } listening{std::move(on_events), nullptr};
    const refrain_listener call = [](void* user, const char* events, std::size_t len) -> bool {
      auto& self = *static_cast<Listening*>(user);
      if (self.thrown) {
        return false;
      }
      try {
        return self.call(std::string_view(events, len));
      } catch (...) {
        self.thrown = std::current_exception();
        return false;
      }
    };
    detail::run([&](refrain_buffer* error) { return refrain_job_listen(handle(), call, &listening, error); });
    // The listener is on this stack: it must have had the last event.
    wait_for_listener();
    if (listening.thrown) {
      std::rethrow_exception(listening.thrown);
    }
    return wait();
  }

  /* Waits for the end, and returns the result. */
  std::string wait() {
    return detail::text([&](refrain_buffer* result, refrain_buffer* error) { return refrain_job_wait(handle(), result, error); });
  }

  /* Cancels the job, from any thread. */
  void cancel() noexcept { refrain_job_cancel(handle()); }

  [[nodiscard]] bool is_ended() const {
    bool is_ended = false;
    detail::run([&](refrain_buffer* error) { return refrain_job_is_ended(handle(), &is_ended, error); });
    return is_ended;
  }

 private:
  void wait_for_listener() {
    for (;;) {
      detail::Owned events;
      const refrain_code code = refrain_job_next_events(handle(), 0, events.get(), nullptr);
      if (code != REFRAIN_CODE_BUSY) {
        return;
      }
      detail::Owned result;
      refrain_job_wait(handle(), result.get(), nullptr);
      std::this_thread::yield();
    }
  }
};

/* One conversation, or one plain text. */
class Session : public detail::Object {
 public:
  using Object::Object;

  void append(std::string_view role, std::string_view content) {
    detail::run([&](refrain_buffer* error) {
      return refrain_session_append(handle(), role.data(), role.size(), content.data(), content.size(), error);
    });
  }

  void append_text(std::string_view content) {
    detail::run([&](refrain_buffer* error) { return refrain_session_append_text(handle(), content.data(), content.size(), error); });
  }

  std::string pop() {
    return detail::text([&](refrain_buffer* message, refrain_buffer* error) { return refrain_session_pop(handle(), message, error); });
  }

  [[nodiscard]] std::string messages() const {
    return detail::text([&](refrain_buffer* messages, refrain_buffer* error) { return refrain_session_messages(handle(), messages, error); });
  }

  [[nodiscard]] std::string info() const {
    return detail::text([&](refrain_buffer* info, refrain_buffer* error) { return refrain_session_info(handle(), info, error); });
  }

  [[nodiscard]] Job generate(std::string_view options_json = {}) {
    return Job(detail::make([&](refrain_handle* job, refrain_buffer* error) {
      return refrain_session_generate(handle(), options_json.data(), options_json.size(), job, error);
    }));
  }

  [[nodiscard]] Job prefill() {
    return Job(detail::make([&](refrain_handle* job, refrain_buffer* error) { return refrain_session_prefill(handle(), job, error); }));
  }
};

/* Outputs on disk, from which later sessions draft. */
class History : public detail::Object {
 public:
  using Object::Object;

  void forget() {
    detail::run([&](refrain_buffer* error) { return refrain_history_forget(handle(), error); });
  }

  void maintain() {
    detail::run([&](refrain_buffer* error) { return refrain_history_maintain(handle(), error); });
  }
};

/* A conversation of an assistant. */
class Conversation : public detail::Object {
 public:
  using Object::Object;

  [[nodiscard]] Job say(std::string_view request_json, std::string_view options_json = {}) {
    return Job(detail::make([&](refrain_handle* job, refrain_buffer* error) {
      return refrain_conversation_say(handle(), request_json.data(), request_json.size(), options_json.data(), options_json.size(), job,
                                      error);
    }));
  }

  [[nodiscard]] std::string info() const {
    return detail::text([&](refrain_buffer* info, refrain_buffer* error) { return refrain_conversation_info(handle(), info, error); });
  }
};

/* The tasks of a notes or assistant app. */
class Assistant : public detail::Object {
 public:
  using Object::Object;

  [[nodiscard]] Job start(std::string_view request_json, std::string_view options_json = {}) {
    return Job(detail::make([&](refrain_handle* job, refrain_buffer* error) {
      return refrain_assistant_start(handle(), request_json.data(), request_json.size(), options_json.data(), options_json.size(), job,
                                     error);
    }));
  }

  [[nodiscard]] Conversation conversation(std::string_view conversation_json = {}) {
    return Conversation(detail::make([&](refrain_handle* conversation, refrain_buffer* error) {
      return refrain_assistant_conversation(handle(), conversation_json.data(), conversation_json.size(), conversation, error);
    }));
  }

  std::string forget(std::string_view what_json) {
    return detail::text([&](refrain_buffer* forgotten, refrain_buffer* error) {
      return refrain_assistant_forget(handle(), what_json.data(), what_json.size(), forgotten, error);
    });
  }

  void refresh_notes() {
    detail::run([&](refrain_buffer* error) { return refrain_assistant_refresh_notes(handle(), error); });
  }
};

/* An index of notes. */
class Notes : public detail::Object {
 public:
  explicit Notes(std::string_view options_json)
      : Object(detail::make([&](refrain_handle* notes, refrain_buffer* error) {
          return refrain_notes_open(options_json.data(), options_json.size(), notes, error);
        })) {}

  [[nodiscard]] Job write(std::string_view write_json) {
    return Job(detail::make([&](refrain_handle* job, refrain_buffer* error) {
      return refrain_notes_write(handle(), write_json.data(), write_json.size(), job, error);
    }));
  }

  std::uint64_t put(std::string_view request_json) {
    std::uint64_t change = 0;
    detail::run([&](refrain_buffer* error) { return refrain_notes_put(handle(), request_json.data(), request_json.size(), &change, error); });
    return change;
  }

  [[nodiscard]] std::string search(std::string_view request_json) const {
    return detail::text([&](refrain_buffer* hits, refrain_buffer* error) {
      return refrain_notes_search(handle(), request_json.data(), request_json.size(), hits, error);
    });
  }

  [[nodiscard]] std::string documents_since(std::uint64_t change) const {
    return detail::text([&](refrain_buffer* changes, refrain_buffer* error) {
      return refrain_notes_documents_since(handle(), change, changes, error);
    });
  }

  [[nodiscard]] std::string cursor() const {
    return detail::text([&](refrain_buffer* cursor, refrain_buffer* error) { return refrain_notes_cursor(handle(), cursor, error); });
  }

  [[nodiscard]] std::string files() const {
    return detail::text([&](refrain_buffer* files, refrain_buffer* error) { return refrain_notes_files(handle(), files, error); });
  }

  void refresh() {
    detail::run([&](refrain_buffer* error) { return refrain_notes_refresh(handle(), error); });
  }
};

/* A loaded model. */
class Engine : public detail::Object {
 public:
  explicit Engine(std::string_view options_json)
      : Object(detail::make([&](refrain_handle* engine, refrain_buffer* error) {
          return refrain_engine_open(options_json.data(), options_json.size(), nullptr, nullptr, engine, error);
        })) {
    if (refrain_abi_version() != REFRAIN_ABI_VERSION) {
      throw std::runtime_error("the library has another interface than the header");
    }
  }

  [[nodiscard]] std::string info() const {
    return detail::text([&](refrain_buffer* info, refrain_buffer* error) { return refrain_engine_info(handle(), info, error); });
  }

  [[nodiscard]] Session session(std::string_view options_json = {}, const History* history = nullptr) {
    return Session(detail::make([&](refrain_handle* session, refrain_buffer* error) {
      return refrain_engine_session(handle(), options_json.data(), options_json.size(), history == nullptr ? 0 : history->handle(), session,
                                    error);
    }));
  }

  [[nodiscard]] History history(std::string_view options_json) {
    return History(detail::make([&](refrain_handle* history, refrain_buffer* error) {
      return refrain_engine_history(handle(), options_json.data(), options_json.size(), history, error);
    }));
  }

  [[nodiscard]] Assistant assistant(std::string_view options_json = {}) {
    return Assistant(detail::make([&](refrain_handle* assistant, refrain_buffer* error) {
      return refrain_engine_assistant(handle(), options_json.data(), options_json.size(), assistant, error);
    }));
  }

  void set_device_state(std::string_view state_json) {
    detail::run([&](refrain_buffer* error) {
      return refrain_engine_set_device_state(handle(), state_json.data(), state_json.size(), error);
    });
  }

  std::string prepare_to_suspend(std::chrono::milliseconds max_wait) {
    return detail::text([&](refrain_buffer* report, refrain_buffer* error) {
      return refrain_engine_prepare_to_suspend(handle(), static_cast<std::uint32_t>(max_wait.count()), report, error);
    });
  }
};

}  // namespace refrain

#endif  // REFRAIN_HPP
