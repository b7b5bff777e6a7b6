// Threads: the OpenMP that PyTorch has loaded, by the addresses of its functions. Without them everything is serial.
#pragma once
#include "loops.h"
extern "C" { void *malloc(__SIZE_TYPE__); void free(void *); }
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);   // GOMP_parallel
typedef int (*Threads)();                                                 // omp_get_max_threads
typedef void (*Body)(const i64 *a, i64 first, i64 last, char *memory);
struct Work { Body body; const i64 *a; i64 points, grain, bytes, next; };
static void worker(void *p) {
  Work *w = (Work *)p; char *m = w->bytes ? (char *)malloc((__SIZE_TYPE__)w->bytes + 64) : 0, *memory = m + (64 - (u64)m % 64) % 64;
  for (;;) {
    i64 i = __atomic_fetch_add(&w->next, w->grain, 5);
    if (i >= w->points) break;
    w->body(w->a, i, imin(w->points, i + w->grain), memory);
  }
  free(m);
}
// a[0]: Parallel, a[1]: Threads, a[2]: 1 where the work is too small for more than one thread
static __attribute__((unused)) void run(Body body, const i64 *a, i64 points, i64 bytes) {
  if (points <= 0) return;
  i64 t = a[2] == 1 || !a[0] ? 1 : imin(points, ((Threads)a[1])());
  Work w = {body, a, points, imax(1, points / (t * 16)), bytes, 0};
  if (t <= 1) { w.grain = points; worker(&w); }
  else ((Parallel)a[0])(worker, &w, (unsigned)t, 0);
}
template <class T> AI T *take(char *&m, i64 n) { T *p = (T *)m; m += (n * (i64)sizeof(T) + 63) / 64 * 64; return p; }
