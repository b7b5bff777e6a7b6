// The best of many with their positions. NaN is the best of all, or the last where it counts as the largest of the
// smallest; among equals the lowest position comes first.
#pragma once
#include "loops.h"
#ifdef WIDE
typedef i64 pos;
#else
typedef i32 pos;   // within one axis
#endif
static const i64 NOWHERE = 0x7fffffffffffffffLL;   // the position of a slot that is left over
enum Order { SMALLEST, LARGEST, SMALLEST_NAN_LAST };
// without positions; where NaN is the last only an empty slot, b, may hold it
template <Order O, class V> AI auto beats(V a, V b) {
  return O == LARGEST ? mk(a > b) : O == SMALLEST ? mk(a < b) : no(mk(a >= b));
}
template <Order O, class V, class P> AI auto before(V a, P i, V b, P j) {
  auto x = mk(a != a), y = mk(b != b);
  auto by_value = O == LARGEST ? mk(a > b) : mk(a < b);
  auto by_nan = O == SMALLEST_NAN_LAST ? y & no(x) : x & no(y);
  return by_value | by_nan | ((mk(a == b) | (x & y)) & mk(i < j));
}
template <class M, class V> AI void swap_where(M c, V &a, V &b) { V t = sel(c, b, a); b = sel(c, a, b); a = t; }
template <int K, Order O, bool PLAIN, class V, class P> AI void insert(V c, P q, V *v, P *p) {
#pragma GCC unroll 32
  for (int k = 0; k < K; k++) { auto g = PLAIN ? beats<O>(c, v[k]) : before<O>(c, q, v[k], p[k]); swap_where(g, v[k], c); swap_where(g, p[k], q); }
}
template <class P> AI P nowhere() { return (P)((u64)-1 >> (65 - 8 * sizeof(P))); }

// every lane is a row of its own: the K best of x[0], x[step], ... (n of them, at positions from `first`)
template <int K, Order O, bool PLAIN, class T> static __attribute__((noinline)) void rows_best(const T *x, i64 step, i64 n, i64 first, T worst, T *values, i64 *at, i64 slot) {
  typedef typename Vec<T>::type V; typedef typename Vec<pos>::type P;
  V v[K]; P p[K];
  for (int k = 0; k < K; k++) v[k] = bc(worst), p[k] = bc(nowhere<pos>());
  for (i64 i = 0; i < n; i++) insert<K, O, PLAIN>(ld(x + i * step), bc((pos)(first + i)), v, p);
  for (int k = 0; k < K; k++) {
    st(values + k * slot, v[k]);
    st(at + k * slot, sel(mk(p[k] == nowhere<pos>()), bc(NOWHERE), as_l(p[k])));
  }
}
template <int K, Order O, class T> AI void best_of_rows(i64 lanes, const T *x, i64 step, i64 n, i64 first, T worst, T *values, i64 *at, i64 slot) {
  for (i64 c = 0; c < lanes; c += W) {
    vm odd = vm{};   // NaN, or as bad as an empty slot: then positions count too
    for (i64 i = 0; i < n; i++) { auto y = ld(x + c + i * step); odd |= mk(y != y) | mk(y == worst); }
    if (any(odd) || n < K) rows_best<K, O, false>(x + c, step, n, first, worst, values + c, at + c, slot);
    else rows_best<K, O, true>(x + c, step, n, first, worst, values + c, at + c, slot);
  }
}
// the K best of n numbers side by side
template <int K, Order O, class T> static __attribute__((noinline)) void best_of_lanes(const T *x, i64 n, i64 first, T worst, T *values, i64 value_step, i64 *at, i64 at_step) {
  T v[K]; i64 p[K];
  for (int k = 0; k < K; k++) v[k] = worst, p[k] = NOWHERE;
  for (i64 c = 0; c < n; c += W) {
    if (c + W <= n && p[K - 1] != NOWHERE) {
      auto y = ld(x + c);
      if (!any(mk(y != y) | beats<O>(y, bc(v[K - 1])))) continue;
    }
    for (i64 i = c; i < imin(n, c + W); i++) if (before<O>(x[i], first + i, v[K - 1], p[K - 1])) {
      int k = K - 1;
      for (; k > 0 && before<O>(x[i], first + i, v[k - 1], p[k - 1]); k--) v[k] = v[k - 1], p[k] = p[k - 1];
      v[k] = x[i], p[k] = first + i;
    }
  }
  for (int k = 0; k < K; k++) values[k * value_step] = v[k], at[k * at_step] = p[k];
}
// two sorted lists into one, for lanes (V and P are vectors) or for one row
template <int K, Order O, class V, class P> AI void merge(V *v, P *p, const V *w, const P *q) {
  for (int k = 0; k < K; k++) {
    if (!any(before<O>(w[k], q[k], v[K - 1], p[K - 1]))) break;
    insert<K, O, false>(w[k], q[k], v, p);
  }
}
// a list lies at a pointer, its slots a step apart; each is followed by its positions
template <int K, Order O, class T> static __attribute__((noinline)) void merge_rows(i64 lanes, const T *a, i64 as, const i64 *i, i64 is, const T *b, i64 bs, const i64 *j, i64 js, T *out, i64 os, i64 *at, i64 ts) {
  for (i64 c = 0; c < lanes; c += W) {
    typename Vec<T>::type v[K], w[K]; vl p[K], q[K];
    for (int k = 0; k < K; k++) v[k] = ld(a + c + k * as), p[k] = ld(i + c + k * is), w[k] = ld(b + c + k * bs), q[k] = ld(j + c + k * js);
    merge<K, O>(v, p, w, q);
    for (int k = 0; k < K; k++) st(out + c + k * os, v[k]), st(at + c + k * ts, p[k]);
  }
}
template <int K, Order O, class A, class B, class T> static __attribute__((noinline)) void merge_lists(const A *a, i64 as, const i64 *i, i64 is, const B *b, i64 bs, const i64 *j, i64 js, T *out, i64 os, i64 *at, i64 ts) {
  T v[K], w[K]; i64 p[K], q[K];
  for (int k = 0; k < K; k++) v[k] = get(a + k * as), p[k] = i[k * is], w[k] = get(b + k * bs), q[k] = j[k * js];
  merge<K, O>(v, p, w, q);
  for (int k = 0; k < K; k++) out[k * os] = v[k], at[k * ts] = p[k];
}
