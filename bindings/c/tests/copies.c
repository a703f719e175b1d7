/* Two copies of the library in one process: both work, and neither takes the other's handles.
 *
 *   copies LIBRARY OTHER-LIBRARY MODEL
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "refrain.h"

typedef refrain_code (*open_function)(const char *, size_t, refrain_listener, void *, refrain_handle *, refrain_buffer *);
typedef refrain_code (*info_function)(refrain_handle, refrain_buffer *, refrain_buffer *);
typedef refrain_code (*free_function)(refrain_handle, refrain_buffer *);

struct copy {
  open_function open;
  info_function info;
  free_function free;
};

static int load(struct copy *copy, const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 0;
  }
  /* ISO C has no conversion between pointers to objects and to functions: POSIX asks for this one. */
  *(void **)&copy->open = dlsym(library, "refrain_engine_open");
  *(void **)&copy->info = dlsym(library, "refrain_engine_info");
  *(void **)&copy->free = dlsym(library, "refrain_free");
  return copy->open != NULL && copy->info != NULL && copy->free != NULL;
}

int main(int argc, char **argv) {
  struct copy copies[2];
  refrain_handle engines[2] = {0, 0};
  char options[4096];
  if (argc != 4 || !load(&copies[0], argv[1]) || !load(&copies[1], argv[2])) {
    return 2;
  }
  snprintf(options, sizeof options, "{\"path\": \"%s\", \"measure_ms\": 0}", argv[3]);
  for (int i = 0; i < 2; ++i) {
    if (copies[i].open(options, strlen(options), NULL, NULL, &engines[i], NULL) != REFRAIN_CODE_OK) {
      return 1;
    }
  }
  if (engines[0] >> 48 == engines[1] >> 48) {
    /* One of 65,535 times. */
    return 0;
  }
  refrain_buffer buffer = {NULL, 0};
  for (int i = 0; i < 2; ++i) {
    if (copies[1 - i].info(engines[i], &buffer, NULL) != REFRAIN_CODE_FOREIGN_HANDLE) {
      return 1;
    }
  }
  for (int i = 0; i < 2; ++i) {
    if (copies[i].free(engines[i], NULL) != REFRAIN_CODE_OK) {
      return 1;
    }
  }
  return 0;
}
