// Calls one kernel of a peer once, on zeros, so that `tools/mca/mca` can trace it. Compiled with
//   -DGGML=ggml_gemm_q4_0_4x4_q8_0        or
//   -DKAI=kai_run_matmul_clamp_f32_...    (activations and weights in blocks of 32)
// Arguments: activation rows, columns. There are 16 outputs.
#include <stddef.h>
#include <stdlib.h>

#define OUTPUTS 16

static _Alignas(64) unsigned char weights[1 << 20], activations[1 << 20];
static float out[64 * OUTPUTS];

#ifdef GGML
void GGML(int n, float *s, size_t bs, const void *vx, const void *vy, int nr, int nc);
#else
void KAI(size_t m, size_t n, size_t k, size_t bl, const void *lhs, const void *rhs, float *dst, size_t dst_stride_row,
         size_t dst_stride_col, float min, float max);
#endif

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int rows = atoi(argv[1]), columns = atoi(argv[2]);
#ifdef GGML
    GGML(columns, out, OUTPUTS, weights, activations, rows, OUTPUTS);
#else
    KAI(rows, OUTPUTS, columns, 32, activations, weights, out, OUTPUTS * sizeof(float), sizeof(float), -1e30f, 1e30f);
#endif
    return 0;
}
