// Loops over lanes, and what their accumulators are joined by.
#pragma once
#include "functions.h"
// begins to bring a line into the cache; the address may lie behind the tensor
AI void fetch(const void *p) { __builtin_prefetch(p); }
template <int N> struct Num { static constexpr int value = N; constexpr operator int() const { return N; } };

// f(number of vectors, position) along n lanes, U vectors at a time where there are as many
template <int U, class F> AI void over(i64 n, F f) {
  i64 c = 0;
  for (; c + U * W <= n; c += U * W) f(Num<U>{}, c);
  if (U > 1) for (; c < n; c += W) f(Num<1>{}, c);
  else if (c < n) f(Num<1>{}, c);
}
// f(position, u): u is the accumulator that takes the vector, one of U that do not wait for each other
template <int U, class F> AI void each(i64 n, F f) {
  i64 c = 0;
  for (; c + U * W <= n; c += U * W) {
#pragma GCC unroll 8
    for (int u = 0; u < U; u++) f(c + u * W, u);
  }
  for (; c < n; c += W) f(c, 0);
}
template <int U, class V, class F> AI V join(V (&a)[U], F f) {
#pragma GCC unroll 8
  for (int o = U / 2; o; o /= 2) for (int u = 0; u < o; u++) a[u] = f(a[u], a[u + o]);
  return a[0];
}
template <class V, class F> AI lane<V> along(V v, F f) {
  lane<V> t[W]; for (int i = 0; i < W; i++) t[i] = v[i];
  for (int o = W / 2; o; o /= 2) for (int i = 0; i < o; i++) t[i] = f(t[i], t[i + o]);
  return t[0];
}
struct Sum { template <class V> INLINE V operator()(V a, V b) const { return a + b; } };
struct Prod { template <class V> INLINE V operator()(V a, V b) const { return a * b; } };
struct Max { template <class V> INLINE V operator()(V a, V b) const { return larger(a, b); } };
struct Min { template <class V> INLINE V operator()(V a, V b) const { return smaller(a, b); } };
struct Any { template <class V> INLINE V operator()(V a, V b) const { return a | b; } };
struct All { template <class V> INLINE V operator()(V a, V b) const { return a & b; } };
struct LogSumExp { template <class V> INLINE V operator()(V a, V b) const { return logaddexp(a, b); } };
