// A conversation that streams, an answer that is JSON, and the errors of wrong calls.
//
//   answer MODEL
#include <atomic>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include "refrain.hpp"

namespace {

// Whether a call throws this code.
template <typename Call>
bool throws(refrain_code code, Call&& call) {
  try {
    call();
  } catch (const refrain::Error& error) {
    return error.code() == code;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: answer MODEL\n";
    return 2;
  }
  std::string path;
  for (const char* at = argv[1]; *at != '\0'; ++at) {
    path += (*at == '"' || *at == '\\') ? std::string{'\\', *at} : std::string{*at};
  }
  const std::string options = R"({"measure_ms": 0, "path": ")" + path + R"("})";
  try {
    refrain::Engine engine(options);
    refrain::Session session = engine.session(R"({"context_len": 1024})");
    session.append("user", "The tap drips. Who repairs it?");
    refrain::Job answer = session.generate(R"({"max_tokens": 24})");
    answer.each_text([](std::string_view piece) { std::cout << piece << std::flush; });
    std::cout << '\n';

    // The same by a listener, which stops a long answer at its first text.
    const std::string_view count = R"({"max_tokens": 450, "json_schema": "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 400}"})";
    session.append("user", "Count.");
    std::atomic<int> batches = 0;
    refrain::Job listened = session.generate(count);
    const bool is_cancelled = throws(REFRAIN_CODE_CANCELLED, [&] {
      listened.listen([&](std::string_view events) {
        ++batches;
        return events.find(R"("type":"text")") == std::string_view::npos;
      });
    });
    std::cout << batches << " batches, cancelled: " << std::boolalpha << is_cancelled << '\n';

    // JSON by a schema.
    refrain::Session plain = engine.session(R"({"context_len": 1024})");
    plain.append("user", "Name a city.");
    std::cout << plain.generate(R"({"max_tokens": 40, "json_schema":
        "{\"type\": \"object\", \"properties\": {\"ok\": {\"type\": \"boolean\"}}, \"required\": [\"ok\"], \"additionalProperties\": false}"})")
                     .wait()
              << '\n';

    // Wrong uses are exceptions.
    refrain::Job busy = plain.generate(count);
    const bool is_busy = throws(REFRAIN_CODE_BUSY, [&] { plain.append("user", "Too early."); });
    busy.cancel();
    std::thread([&] { throws(REFRAIN_CODE_CANCELLED, [&] { busy.wait(); }); }).join();
    const bool is_closed = throws(REFRAIN_CODE_CLOSED, [&] {
      plain.close();
      plain.append("user", "Too late.");
    });
    const bool is_refused = throws(REFRAIN_CODE_NOT_JSON, [&] { (void)engine.session(R"({"no_such": 1})"); });
    const bool is_short = throws(REFRAIN_CODE_OUT_OF_MEMORY, [&] {
      const std::string small = options.substr(0, options.size() - 1) + R"(, "memory_limit_bytes": 1})";
      refrain::Engine refused(small);
    });
    std::cout << is_busy << is_closed << is_refused << is_short << '\n';
    return is_cancelled && is_busy && is_closed && is_refused && is_short ? 0 : 1;
  } catch (const refrain::Error& error) {
    std::cerr << "code " << error.code() << ": " << error.what() << '\n';
    return 1;
  }
}
