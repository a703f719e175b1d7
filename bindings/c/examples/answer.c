/* Answers a question from notes, as text that streams, with its sources.
 *
 *   answer MODEL NOTES QUESTION
 *
 * NOTES is a file or folder. The index is made in the folder that the variable INDEX names, or in ./refrain-index.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "refrain.h"

/* The running job, for Ctrl-C. */
static volatile sig_atomic_t has_job;
static refrain_handle running;

static void interrupt(int signal_number) {
  (void)signal_number;
  if (has_job) {
    refrain_job_cancel(running);
  }
}

/* Ends the program if a call has failed. */
static void check(const char *what, refrain_code code, refrain_buffer *error) {
  if (code != REFRAIN_CODE_OK) {
    fprintf(stderr, "%s: code %" PRIu32 ": %s\n", what, (uint32_t)code, error->len > 0 ? error->data : "");
    refrain_buffer_free(error);
    exit(1);
  }
}

/* Shows how much of the model is read. */
static bool show_progress(void *user, const char *events_json, size_t len) {
  (void)events_json;
  (void)len;
  ++*(int *)user;
  fputc('.', stderr);
  return true;
}

/* A JSON string of a text. The caller frees it. */
static char *quoted(const char *text) {
  char *json = malloc(6 * strlen(text) + 3);
  if (json == NULL) {
    exit(1);
  }
  char *at = json;
  *at++ = '"';
  for (; *text != '\0'; ++text) {
    const unsigned char byte = (unsigned char)*text;
    if (byte == '"' || byte == '\\') {
      *at++ = '\\';
      *at++ = *text;
    } else if (byte < 0x20) {
      at += sprintf(at, "\\u%04x", byte);
    } else {
      *at++ = *text;
    }
  }
  *at++ = '"';
  *at = '\0';
  return json;
}

/* A JSON text from a pattern with one or two texts. The caller frees it. */
static char *json_of(const char *pattern, const char *first, const char *second) {
  char *one = quoted(first);
  char *two = quoted(second);
  const size_t len = strlen(pattern) + strlen(one) + strlen(two) + 1;
  char *json = malloc(len);
  if (json == NULL) {
    exit(1);
  }
  snprintf(json, len, pattern, one, two);
  free(one);
  free(two);
  return json;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: answer MODEL NOTES QUESTION\n");
    return 2;
  }
  if (refrain_abi_version() != REFRAIN_ABI_VERSION) {
    fprintf(stderr, "the library has another interface than the header\n");
    return 2;
  }
  const char *index = getenv("INDEX") != NULL ? getenv("INDEX") : "refrain-index";
  refrain_buffer error = {NULL, 0};
  refrain_buffer text = {NULL, 0};

  /* The index of the notes: it needs no model. */
  refrain_handle notes = 0;
  refrain_handle job = 0;
  char *json = json_of("{\"folder\": %s}", index, "");
  check("notes", refrain_notes_open(json, strlen(json), &notes, &error), &error);
  free(json);
  json = json_of("{\"write\": \"add\", \"paths\": [%s]}", argv[2], "");
  check("index", refrain_notes_write(notes, json, strlen(json), &job, &error), &error);
  free(json);
  check("index", refrain_job_wait(job, &text, &error), &error);
  check("index", refrain_buffer_free(&text), &error);
  check("index", refrain_free(job, &error), &error);

  /* The model, on a device that is warm and has 4 GB for it. */
  refrain_handle engine = 0;
  int n_progress = 0;
  json = json_of("{\"path\": %s, \"memory_limit_bytes\": 4000000000}", argv[1], "");
  check("model", refrain_engine_open(json, strlen(json), show_progress, &n_progress, &engine, &error), &error);
  free(json);
  fputc('\n', stderr);
  const char *state = "{\"thermal\": \"fair\", \"memory\": \"normal\", \"power\": \"battery\"}";
  check("device", refrain_engine_set_device_state(engine, state, strlen(state), &error), &error);

  /* The answer. */
  refrain_handle assistant = 0;
  json = json_of("{\"notes\": %s, \"session\": {\"context_len\": 1024}}", index, "");
  check("assistant", refrain_engine_assistant(engine, json, strlen(json), &assistant, &error), &error);
  free(json);
  json = json_of("{\"task\": \"ask\", \"question\": %s}", argv[3], "");
  check("ask", refrain_assistant_start(assistant, json, strlen(json), NULL, 0, &job, &error), &error);
  free(json);
  running = job;
  has_job = 1;
  signal(SIGINT, interrupt);
  bool is_over = false;
  while (!is_over) {
    check("answer", refrain_job_next_text(job, 1000, &text, &is_over, &error), &error);
    if (text.len > 0) {
      fwrite(text.data, 1, text.len, stdout);
      fflush(stdout);
    }
    check("answer", refrain_buffer_free(&text), &error);
  }
  has_job = 0;

  /* Its sources, as JSON: an app reads them with its own reader. */
  check("result", refrain_job_wait(job, &text, &error), &error);
  printf("\n%s\n", text.data);
  check("result", refrain_buffer_free(&text), &error);

  /* Before the app goes to the background. */
  check("suspend", refrain_engine_prepare_to_suspend(engine, 1000, &text, &error), &error);
  check("suspend", refrain_buffer_free(&text), &error);

  const refrain_handle objects[] = {job, assistant, notes, engine};
  for (size_t i = 0; i < sizeof objects / sizeof objects[0]; ++i) {
    check("free", refrain_free(objects[i], &error), &error);
    if (refrain_free(objects[i], NULL) != REFRAIN_CODE_STALE_HANDLE) {
      fprintf(stderr, "a handle was freed twice\n");
      return 1;
    }
  }
  return 0;
}
