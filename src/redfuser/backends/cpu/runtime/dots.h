// Dots of tiles: C[m][n] = (add) C + sum over k of A[m, k] * B[k, n], with n in the lanes of C.
#pragma once
#include "loops.h"
#if defined(__AVX512F__)
enum { MR = 8, NV = 3 };              // vectors of C that a block of the micro-kernel keeps: MR x NV
#elif defined(__AVX2__)
enum { MR = 6, NV = 2 };
#else
enum { MR = 6, NV = 3 };
#endif

// M rows of A are broadcast, N vectors of B are loaded; the last of them has `last` lanes where TAIL
template <int M, int N, bool TAIL, class T> AI void block(i64 K, const T *A, i64 am, i64 ak, const T *B, i64 bk, T *C, i64 cm, bool add, i64 last) {
  typedef typename Vec<T>::type V; V c[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) c[i][j] = V{};
  }
  for (i64 k = 0; k < K; k++) {
    V b[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) b[j] = TAIL && j == N - 1 ? ldn(B + k * bk + j * W, last) : ld(B + k * bk + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
      V a = bc(A[i * am + k * ak]);
#pragma GCC unroll 16
      for (int j = 0; j < N; j++) c[i][j] += a * b[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) st(C + i * cm + j * W, add ? ld(C + i * cm + j * W) + c[i][j] : c[i][j]);   // a tile's own sum, then the total
  }
}
template <int M, int N, class T> static __attribute__((noinline)) void columns(i64 n, i64 K, const T *A, i64 am, i64 ak, const T *B, i64 bk, T *C, i64 cm, bool add) {
  i64 j = 0;
  for (; j + N * W <= n; j += N * W) block<M, N, false>(K, A, am, ak, B + j, bk, C + j, cm, add, 0);
  for (; j + W <= n; j += W) block<M, 1, false>(K, A, am, ak, B + j, bk, C + j, cm, add, 0);
  if (j < n) block<M, 1, true>(K, A, am, ak, B + j, bk, C + j, cm, add, n - j);
}
template <class T> AI void rows(i64 m, i64 n, i64 K, const T *A, i64 am, i64 ak, const T *B, i64 bk, T *C, i64 cm, bool add) {
  i64 i = 0;
  for (; i + MR <= m; i += MR) columns<MR, NV>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
  if (MR > 4 && i + 4 <= m) { columns<4, NV>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add); i += 4; }
  for (; i + 2 <= m; i += 2) columns<2, 4>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
  if (i < m) columns<1, 8>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
}
// k is contiguous in both: sums along lanes, turned into lanes of n by a transpose
template <class T> static __attribute__((noinline)) void inner(i64 m, i64 n, i64 K, const T *A, i64 am, const T *B, i64 bn, T *C, i64 cm, bool add) {
  typedef typename Vec<T>::type V;
  i64 full = K / W * W;
  for (i64 j = 0; j < n; j += W) for (i64 i = 0; i < m; i++) {
    V s[W]; const T *a = A + i * am, *b = B + j * bn;
    if (j + W <= n) {
#pragma GCC unroll 16
      for (int t = 0; t < W; t++) s[t] = V{};
      for (i64 k = 0; k < full; k += W) {
        V x = ld(a + k);
#pragma GCC unroll 16
        for (int t = 0; t < W; t++) s[t] += x * ld(b + t * bn + k);
      }
      if (full < K) { V x = ldn(a + full, K - full); for (int t = 0; t < W; t++) s[t] += x * ldn(b + t * bn + full, K - full); }
    } else for (int t = 0; t < W; t++) {
      s[t] = V{};
      if (j + t < n) {
        for (i64 k = 0; k < full; k += W) s[t] += ld(a + k) * ld(b + t * bn + k);
        if (full < K) s[t] += ldn(a + full, K - full) * ldn(b + t * bn + full, K - full);
      }
    }
    transpose(s);
#pragma GCC unroll 16
    for (int o = W / 2; o; o /= 2) for (int t = 0; t < o; t++) s[t] += s[t + o];
    st(C + i * cm + j, add ? ld(C + i * cm + j) + s[0] : s[0]);
  }
}
// any strides. What is far apart in memory is packed, a panel at a time
template <class T> static __attribute__((noinline)) void dot(i64 m, i64 n, i64 K, const T *A, i64 am, i64 ak, const T *B, i64 bk, i64 bn, T *C, i64 cm, bool add) {
  if (K <= 0) { if (!add) for (i64 i = 0; i < m; i++) for (i64 j = 0; j < n; j += W) st(C + i * cm + j, typename Vec<T>::type{}); return; }
  if (bn == 1 && (bk < 1024 || m < 4 * MR)) return rows(m, n, K, A, am, ak, B, bk, C, cm, add);
  if (bk == 1 && ak == 1 && m <= 8) return inner(m, n, K, A, am, B, bn, C, cm, add);
  enum { P = NV * W, D = 256 };
  alignas(64) T panel[D * P];
  for (i64 j = 0; j < n; j += P) for (i64 k = 0; k < K; k += D) {
    i64 w = imin(P, n - j), d = imin(D, K - k);
    pack(panel, P, B + k * bk + j * bn, bk, bn, d, w);
    rows(m, padded(w), d, A + k * ak, am, ak, (const T *)panel, P, C + j, cm, add || k > 0);
  }
}
