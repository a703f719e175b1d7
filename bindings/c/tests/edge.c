/* Wrong uses of the library from C: every one is a code. The last part exits while jobs run.
 *
 *   edge MODEL
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "refrain.h"

#define EXPECT(code, call)                                                                      \
  do {                                                                                          \
    const refrain_code given = (call);                                                          \
    if (given != (code)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is %u, not %u\n", __FILE__, __LINE__, #call, (unsigned)given, (unsigned)(code)); \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

#define OK REFRAIN_CODE_OK

/* An output of at least 400 tokens. */
#define LONG "{\"max_tokens\": 900, \"json_schema\": \"{\\\"type\\\": \\\"array\\\", \\\"items\\\": {\\\"type\\\": \\\"integer\\\"}, \\\"minItems\\\": 400}\"}"

static refrain_handle engine;
static refrain_handle running;

static refrain_handle new_session(void) {
  static const char options[] = "{\"context_len\": 1024}";
  refrain_handle session = 0;
  EXPECT(OK, refrain_engine_session(engine, options, strlen(options), 0, &session, NULL));
  EXPECT(OK, refrain_session_append_text(session, "The train leaves at", 19, NULL));
  return session;
}

static refrain_handle generate(refrain_handle session, const char *options) {
  refrain_handle job = 0;
  EXPECT(OK, refrain_session_generate(session, options, strlen(options), &job, NULL));
  return job;
}

/* A listener that calls what it may not, and stops at once. */
static bool reenter(void *user, const char *events, size_t len) {
  (void)len;
  const refrain_handle *job = user;
  refrain_buffer buffer = {NULL, 0};
  EXPECT(REFRAIN_CODE_REENTRANT, refrain_job_next_events(*job, 0, &buffer, NULL));
  EXPECT(REFRAIN_CODE_REENTRANT, refrain_free(*job, NULL));
  EXPECT(REFRAIN_CODE_REENTRANT, refrain_engine_info(engine, &buffer, NULL));
  EXPECT(OK, refrain_job_cancel(*job));
  EXPECT(OK, refrain_buffer_free(&buffer));
  return strstr(events, "\"failed\"") != NULL;
}

static void on_alarm(int number) {
  (void)number;
  refrain_job_cancel(running);
}

/* Answers on a thread of its own, of which the first events are taken, the job cancelled or waited for. */
static void *work(void *seed) {
  unsigned state = *(unsigned *)seed;
  const int rounds = getenv("REFRAIN_EDGE_ROUNDS") != NULL ? atoi(getenv("REFRAIN_EDGE_ROUNDS")) : 50;
  for (int round = 0; round < rounds; ++round) {
    state = state * 1103515245u + 12345u;
    refrain_handle session = new_session();
    refrain_handle job = generate(session, "{\"max_tokens\": 8}");
    refrain_buffer buffer = {NULL, 0};
    if (state & (1u << 20)) {
      EXPECT(OK, refrain_job_next_events(job, 1000, &buffer, NULL));
      EXPECT(OK, refrain_buffer_free(&buffer));
    }
    if (state & (1u << 21)) {
      EXPECT(OK, refrain_job_cancel(job));
    }
    if (state & (1u << 22)) {
      const refrain_code code = refrain_job_wait(job, &buffer, NULL);
      if (code != OK && code != REFRAIN_CODE_CANCELLED) {
        fprintf(stderr, "a job ended with %u\n", (unsigned)code);
        exit(1);
      }
      EXPECT(OK, refrain_buffer_free(&buffer));
    }
    const bool session_first = (state & (1u << 23)) != 0;
    EXPECT(OK, refrain_free(session_first ? session : job, NULL));
    EXPECT(OK, refrain_free(session_first ? job : session, NULL));
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    return 2;
  }
  refrain_buffer buffer = {NULL, 0};
  refrain_buffer error = {NULL, 0};
  char options[4096];
  snprintf(options, sizeof options, "{\"path\": \"%s\", \"measure_ms\": 0, \"threads\": 1}", argv[1]);

  /* Pointers, texts, JSON. */
  EXPECT(REFRAIN_CODE_NULL_POINTER, refrain_engine_open(options, strlen(options), NULL, NULL, NULL, NULL));
  EXPECT(REFRAIN_CODE_NULL_POINTER, refrain_engine_open(NULL, 3, NULL, NULL, &engine, NULL));
  EXPECT(REFRAIN_CODE_NOT_JSON, refrain_engine_open(NULL, 0, NULL, NULL, &engine, NULL));
  EXPECT(REFRAIN_CODE_NOT_JSON, refrain_engine_open("{\"path\": 3}", 11, NULL, NULL, &engine, &error));
  EXPECT(OK, refrain_buffer_free(&error));
  EXPECT(REFRAIN_CODE_NOT_UTF8, refrain_engine_open("\xff", 1, NULL, NULL, &engine, &error));
  if (strstr(error.data, "\"offset\":0") == NULL || error.data[error.len] != '\0') {
    fprintf(stderr, "%s\n", error.data);
    return 1;
  }
  EXPECT(OK, refrain_buffer_free(&error));
  EXPECT(OK, refrain_buffer_free(&error));
  EXPECT(REFRAIN_CODE_NULL_POINTER, refrain_buffer_free(NULL));
  refrain_buffer forged = {options, 3};
  EXPECT(REFRAIN_CODE_STALE_HANDLE, refrain_buffer_free(&forged));
  EXPECT(REFRAIN_CODE_NOT_FOUND, refrain_engine_open("{\"path\": \"/no/such\"}", 20, NULL, NULL, &engine, NULL));
  EXPECT(OK, refrain_engine_open(options, strlen(options), NULL, NULL, &engine, NULL));

  /* Handles. */
  EXPECT(REFRAIN_CODE_NULL_HANDLE, refrain_free(0, NULL));
  EXPECT(REFRAIN_CODE_NULL_HANDLE, refrain_engine_info(0, &buffer, NULL));
  EXPECT(REFRAIN_CODE_FOREIGN_HANDLE, refrain_engine_info(engine ^ (1ull << 63), &buffer, NULL));
  EXPECT(REFRAIN_CODE_FOREIGN_HANDLE, refrain_job_cancel(engine + 1000));
  EXPECT(REFRAIN_CODE_WRONG_HANDLE, refrain_session_info(engine, &buffer, NULL));
  EXPECT(REFRAIN_CODE_WRONG_HANDLE, refrain_job_cancel(engine));
  refrain_handle session = new_session();
  EXPECT(OK, refrain_close(session, NULL));
  EXPECT(OK, refrain_close(session, NULL));
  EXPECT(REFRAIN_CODE_CLOSED, refrain_session_info(session, &buffer, NULL));
  EXPECT(OK, refrain_free(session, NULL));
  EXPECT(REFRAIN_CODE_STALE_HANDLE, refrain_free(session, NULL));
  EXPECT(REFRAIN_CODE_STALE_HANDLE, refrain_close(session, NULL));

  /* A listener that re-enters. */
  session = new_session();
  refrain_handle job = generate(session, LONG);
  EXPECT(OK, refrain_job_listen(job, reenter, &job, NULL));
  EXPECT(REFRAIN_CODE_CANCELLED, refrain_job_wait(job, &buffer, NULL));
  refrain_code code = REFRAIN_CODE_BUSY;
  while (code == REFRAIN_CODE_BUSY) {
    code = refrain_job_next_events(job, 0, &buffer, NULL);
  }
  EXPECT(OK, code);
  EXPECT(OK, refrain_buffer_free(&buffer));
  EXPECT(REFRAIN_CODE_NULL_POINTER, refrain_job_listen(job, NULL, NULL, NULL));
  EXPECT(OK, refrain_free(job, NULL));

  /* A signal handler that cancels. */
  running = generate(session, LONG);
  signal(SIGALRM, on_alarm);
  raise(SIGALRM);
  EXPECT(REFRAIN_CODE_CANCELLED, refrain_job_wait(running, &buffer, NULL));
  EXPECT(OK, refrain_free(running, NULL));

  /* A fork during a generation: the child is refused, and opens an engine of its own. */
  running = generate(session, LONG);
  const pid_t child = fork();
  if (child == 0) {
    refrain_handle own = 0;
    EXPECT(REFRAIN_CODE_FORKED, refrain_engine_info(engine, &buffer, NULL));
    EXPECT(REFRAIN_CODE_FORKED, refrain_job_cancel(running));
    EXPECT(REFRAIN_CODE_FORKED, refrain_free(session, NULL));
    EXPECT(OK, refrain_engine_open(options, strlen(options), NULL, NULL, &own, NULL));
    EXPECT(OK, refrain_engine_info(own, &buffer, NULL));
    EXPECT(OK, refrain_buffer_free(&buffer));
    EXPECT(OK, refrain_free(own, NULL));
    _exit(0);
  }
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    fprintf(stderr, "the forked child ended with %d\n", status);
    return 1;
  }
  EXPECT(OK, refrain_free(running, NULL));
  EXPECT(OK, refrain_free(session, NULL));

  /* Eight threads. */
  pthread_t threads[8];
  unsigned seeds[8];
  for (unsigned i = 0; i < 8; ++i) {
    seeds[i] = i + 1;
    if (pthread_create(&threads[i], NULL, work, &seeds[i]) != 0) {
      return 1;
    }
  }
  for (unsigned i = 0; i < 8; ++i) {
    pthread_join(threads[i], NULL);
  }

  /* The process exits while a job runs, and its engine is not freed. */
  session = new_session();
  generate(session, LONG);
  return 0;
}
