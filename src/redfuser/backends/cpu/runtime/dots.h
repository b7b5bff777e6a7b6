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

template <class V> AI V added(V c, V a, V b) { return c + a * b; }
#ifdef PAIRS
AI vf added(vf c, vpair a, vpair b) {
#if defined(__clang__)
  return __builtin_ia32_dpbf16ps_512(c, (vtwo)a, (vtwo)b);
#else
  return __builtin_ia32_dpbf16ps_v16sf(c, (vtwo)a, (vtwo)b);
#endif
}
#endif

// M rows of A are broadcast, N vectors of B are loaded; the last of them has `last` lanes where TAIL
template <int M, int N, bool TAIL, class S, class R, class T> AI void block(i64 K, const S *A, i64 am, i64 ak, const R *B, i64 bk, T *C, i64 cm, bool add, i64 last) {
  typedef typename Vec<T>::type V; V c[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) c[i][j] = V{};
  }
  for (i64 k = 0; k < K; k++) {
    decltype(ld(B)) b[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) b[j] = TAIL && j == N - 1 ? ldn(B + k * bk + j * W, last) : ld(B + k * bk + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < M; i++) {
      auto a = bc(get(A + i * am + k * ak));
#pragma GCC unroll 16
      for (int j = 0; j < N; j++) c[i][j] = added(c[i][j], a, b[j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < N; j++) st(C + i * cm + j * W, add ? ld(C + i * cm + j * W) + c[i][j] : c[i][j]);   // a tile's own sum, then the total
  }
}
template <int M, int N, class S, class R, class T> static __attribute__((noinline)) void columns(i64 n, i64 K, const S *A, i64 am, i64 ak, const R *B, i64 bk, T *C, i64 cm, bool add) {
  i64 j = 0;
  for (; j + N * W <= n; j += N * W) block<M, N, false>(K, A, am, ak, B + j, bk, C + j, cm, add, 0);
  for (; j + W <= n; j += W) block<M, 1, false>(K, A, am, ak, B + j, bk, C + j, cm, add, 0);
  if (j < n) block<M, 1, true>(K, A, am, ak, B + j, bk, C + j, cm, add, n - j);
}
template <class S, class R, class T> AI void rows(i64 m, i64 n, i64 K, const S *A, i64 am, i64 ak, const R *B, i64 bk, T *C, i64 cm, bool add) {
  i64 i = 0;
  for (; i + MR <= m; i += MR) columns<MR, NV>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
  if (MR > 4 && i + 4 <= m) { columns<4, NV>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add); i += 4; }
  for (; i + 2 <= m; i += 2) columns<2, 4>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
  if (i < m) columns<1, 8>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
}
// k is contiguous in both: sums along lanes, turned into lanes of n by a transpose
template <class S, class R, class T> static __attribute__((noinline)) void inner(i64 m, i64 n, i64 K, const S *A, i64 am, const R *B, i64 bn, T *C, i64 cm, bool add) {
  typedef typename Vec<T>::type V;
  i64 full = K / W * W;
  for (i64 j = 0; j < n; j += W) for (i64 i = 0; i < m; i++) {
    V s[W]; const S *a = A + i * am; const R *b = B + j * bn;
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
template <class S, class R, class T> static __attribute__((noinline)) void dot(i64 m, i64 n, i64 K, const S *A, i64 am, i64 ak, const R *B, i64 bk, i64 bn, T *C, i64 cm, bool add) {
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
#ifdef PAIRS
// dst[k / 2][c] <- the pair of src[k * rows + c * columns] and what follows it along k, or 0; W-padded with zeros along c
static __attribute__((noinline, unused)) void pair_up(pair *dst, i64 step, const bf16 *src, i64 rows, i64 columns, i64 nk, i64 nc) {
  typedef Vec<u32>::type V;
  for (i64 k = 0; k < nk; k += 2, dst += step) {
    const u16 *low = (const u16 *)src + k * rows, *high = k + 1 < nk ? low + rows : 0;
    i64 c = 0;
    if (columns == 1) for (; c + W <= nc; c += W) {
      V x = __builtin_convertvector(ld(low + c), V);
      st(dst + c, high ? x | __builtin_convertvector(ld(high + c), V) << 16 : x);
    }
    for (; c < nc; c += W) {
      V x{};
      for (int i = 0; i < W; i++) if (c + i < nc) x[i] = low[(c + i) * columns] | (high ? (u32)high[(c + i) * columns] << 16 : 0);
      st(dst + c, x);
    }
  }
}
// whether one of nr x nc numbers is subnormal
static __attribute__((noinline, unused)) bool has_subnormal(const bf16 *src, i64 rows, i64 columns, i64 nr, i64 nc) {
  if (columns != 1 && rows == 1) return has_subnormal(src, columns, rows, nc, nr);
  vh least = ~(vh){}; u16 rest = 0xffff;   // of the bits but the sign, less one: 0 is the greatest
  for (i64 r = 0; r < nr; r++) {
    const u16 *p = (const u16 *)src + r * rows; i64 c = 0;
    if (columns == 1) for (; c + W <= nc; c += W) { vh x = ld(p + c); x = x + x - 1; least = x < least ? x : least; }
    for (; c < nc; c++) { u16 x = (u16)(2 * p[c * columns] - 1); rest = x < rest ? x : rest; }
  }
  for (int i = 0; i < W; i++) rest = least[i] < rest ? least[i] : rest;
  return rest < 0xff;
}
// numbers that are widened as they are multiplied
static __attribute__((noinline, unused)) void widened(i64 m, i64 n, i64 K, const bf16 *A, i64 am, i64 ak, const bf16 *B, i64 bk, i64 bn, float *C, i64 cm, bool add) {
  if (bn != 1) {
    enum { P = NV * W, D = 256 };
    alignas(64) bf16 panel[D * P];
    for (i64 j = 0; j < n; j += P) for (i64 k = 0; k < K; k += D) {
      i64 w = imin(P, n - j), d = imin(D, K - k);
      pack(panel, P, B + k * bk + j * bn, bk, bn, d, w);
      widened(m, padded(w), d, A + k * ak, am, ak, panel, P, 1, C + j, cm, add || k > 0);
    }
    return;
  }
  i64 i = 0;
  for (; i + 4 <= m; i += 4) columns<4, NV>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
  for (; i < m; i++) columns<1, 8>(n, K, A + i * am, am, ak, B, bk, C + i * cm, cm, add);
}
// sums of products of pairs. They take a subnormal number for 0, so where there is one, numbers are widened; as they are for
// few rows, which would not pay for the pairs
static __attribute__((noinline, unused)) void dot(i64 m, i64 n, i64 K, const bf16 *A, i64 am, i64 ak, const bf16 *B, i64 bk, i64 bn, float *C, i64 cm, bool add) {
  if (m < 2 || K < 2 || has_subnormal(A, am, ak, m, K) || has_subnormal(B, bk, bn, K, n)) return widened(m, n, K, A, am, ak, B, bk, bn, C, cm, add);
  enum { D = 256, M = 64, P = 128 };
  alignas(64) pair left[D / 2 * M], right[D / 2 * P];
  for (i64 k = 0; k < K; k += D) for (i64 j = 0; j < n; j += P) {
    i64 w = imin(P, n - j), d = imin(D, K - k);
    const bf16 *a = A + k * ak;
    pair_up(right, P, B + k * bk + j * bn, bk, bn, d, w);
    if (ak == 1 && d % 2 == 0) { rows(m, padded(w), d / 2, (const two *)a, am, 2, (const pair *)right, P, C + j, cm, add || k > 0); continue; }
    for (i64 i = 0; i < m; i += M) {
      i64 h = imin(M, m - i);
      pair_up(left, M, a + i * am, ak, am, d, h);
      rows(h, padded(w), (d + 1) / 2, (const two *)left, 2, 2 * M, (const pair *)right, P, C + i * cm + j, cm, add || k > 0);
    }
  }
}
#endif
