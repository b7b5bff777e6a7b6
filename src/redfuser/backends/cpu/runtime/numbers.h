// Narrow floats: they are computed as float, and rounded where the program says so.
#pragma once
#include "lanes.h"
AI u32 bits_of(float x) { union { float f; u32 u; } b = {x}; return b.u; }
AI float float_of(u32 x) { union { u32 u; float f; } b = {x}; return b.f; }

AI vf as_bf16(vf x) { vi b = (vi)x, r = b + 0x7fff + ((b >> 16) & 1); return (vf)(((vi)(x != x) ? b | 0x400000 : r) & (i32)0xffff0000); }
AI float as_bf16(float x) { u32 b = bits_of(x); return float_of((x != x ? b | 0x400000 : b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000u); }
AI vf widen(vh x) { return (vf)(__builtin_convertvector(x, vi) << 16); }
AI vh narrow_bf16(vf x) { return __builtin_convertvector((Vec<u32>::type)(vi)as_bf16(x) >> 16, vh); }

AI float half(u16 h) {   // exact
  u32 sign = (u32)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return float_of(sign | ((rest + 0x1c000) << 13));
  float f = (float)rest * 0x1p-24f; return float_of(sign | bits_of(f));
}
AI u16 to_half(float x) {   // to nearest, ties to even
  u32 b = bits_of(x), sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
  if (rest > 0x7f800000) return (u16)(sign | 0x7e00);
  if (rest >= 0x477ff000) return (u16)(sign | 0x7c00);
  if (rest < 0x38800000) { float f = float_of(rest) + 0.5f; return (u16)(sign | (bits_of(f) - 0x3f000000)); }
  return (u16)(sign | ((rest + 0xc8000fff + (rest >> 13 & 1)) >> 13));
}
#if defined(__clang__) && (defined(__F16C__) || defined(__aarch64__))
typedef _Float16 halfs __attribute__((vector_size(2 * W)));
AI vf halves(vh x) { return __builtin_convertvector((halfs)x, vf); }
AI vh to_halves(vf x) { return (vh)__builtin_convertvector(x, halfs); }
#elif defined(__F16C__) && W == 8
typedef short half8 __attribute__((vector_size(16)));
AI vf halves(vh x) { return __builtin_ia32_vcvtph2ps256((half8)x); }
AI vh to_halves(vf x) { return (vh)__builtin_ia32_vcvtps2ph256(x, 0); }
#elif defined(__AVX512F__) && W == 16 && !defined(__clang__)
typedef short half16 __attribute__((vector_size(32)));
AI vf halves(vh x) { return __builtin_ia32_vcvtph2ps512_mask((half16)x, (vf){}, (u16)-1, 4); }
AI vh to_halves(vf x) { return (vh)__builtin_ia32_vcvtps2ph512_mask(x, 0, (half16){}, (u16)-1); }
#else
AI vf halves(vh x) { vf v; for (int i = 0; i < W; i++) v[i] = half(x[i]); return v; }
AI vh to_halves(vf x) { vh v; for (int i = 0; i < W; i++) v[i] = to_half(x[i]); return v; }
#endif
AI vf as_f16(vf x) { return halves(to_halves(x)); }
AI float as_f16(float x) { return half(to_half(x)); }

AI float of_e5m2(u8 b) { return half((u16)(b << 8)); }
AI float of_e4m3(u8 b) {
  u32 sign = (u32)(b & 0x80) << 24, rest = b & 0x7f;
  if (rest == 0x7f) return float_of(sign | 0x7fc00000);
  if (rest >= 8) return float_of(sign | ((rest << 20) + 0x3c000000));
  return float_of(sign | bits_of((float)rest * 0x1p-9f));
}
AI u8 to_e4m3(float x) {   // what is too large becomes the largest number, as in PyTorch
  u32 b = bits_of(x), sign = b >> 24 & 0x80, rest = b & 0x7fffffff;
  if (rest > 0x7f800000) return (u8)(sign | 0x7f);
  if (rest >= 0x43e00000) return (u8)(sign | 0x7e);
  if (rest < 0x3c800000) return (u8)(sign | (bits_of(float_of(rest) + 0x1p14f) - bits_of(0x1p14f)));
  return (u8)(sign | ((rest - 0x3c000000 + 0x7ffff + (rest >> 20 & 1)) >> 20));
}
AI u8 to_e5m2(float x) {
  u32 b = bits_of(x), sign = b >> 24 & 0x80, rest = b & 0x7fffffff;
  if (rest > 0x7f800000) return (u8)(sign | 0x7f);
  if (rest >= 0x47800000) return (u8)(sign | 0x7c);
  if (rest < 0x38800000) return (u8)(sign | (bits_of(float_of(rest) + 0x1p7f) - bits_of(0x1p7f)));
  return (u8)(sign | ((rest - 0x38000000 + 0xfffff + (rest >> 21 & 1)) >> 21));
}
AI float as_e4m3(float x) { return of_e4m3(to_e4m3(x)); }
AI float as_e5m2(float x) { return of_e5m2(to_e5m2(x)); }
AI vf as_e4m3(vf x) { vf v; for (int i = 0; i < W; i++) v[i] = as_e4m3(x[i]); return v; }
AI vf as_e5m2(vf x) { vf v; for (int i = 0; i < W; i++) v[i] = as_e5m2(x[i]); return v; }

// -- memory: one element, and W of them side by side ---------------------------------------------------------------------
AI float get(const float *p) { return *p; } AI double get(const double *p) { return *p; }
AI i32 get(const i32 *p) { return *p; } AI i64 get(const i64 *p) { return *p; }
AI i32 get(const i8 *p) { return *p; } AI i32 get(const u8 *p) { return *p; } AI i32 get(const i16 *p) { return *p; }
AI bool get(const b8 *p) { return p->bits != 0; }
AI float get(const bf16 *p) { return float_of((u32)p->bits << 16); } AI float get(const f16 *p) { return half(p->bits); }
AI float get(const e4m3 *p) { return of_e4m3(p->bits); } AI float get(const e5m2 *p) { return of_e5m2(p->bits); }
AI u16 get(const u16 *p) { return *p; }
AI void put(float *p, float x) { *p = x; } AI void put(double *p, double x) { *p = x; }
AI void put(i32 *p, i32 x) { *p = x; } AI void put(i64 *p, i64 x) { *p = x; }
AI void put(i8 *p, i32 x) { *p = (i8)x; } AI void put(u8 *p, i32 x) { *p = (u8)x; } AI void put(i16 *p, i32 x) { *p = (i16)x; }
AI void put(b8 *p, bool x) { p->bits = x; }
AI void put(bf16 *p, float x) { p->bits = (u16)(bits_of(as_bf16(x)) >> 16); } AI void put(f16 *p, float x) { p->bits = to_half(x); }
AI void put(e4m3 *p, float x) { p->bits = to_e4m3(x); } AI void put(e5m2 *p, float x) { p->bits = to_e5m2(x); }

AI vf ld(const float *p) { return *(const Vec<float>::raw *)p; }
AI vd ld(const double *p) { return *(const Vec<double>::raw *)p; }
AI vi ld(const i32 *p) { return *(const Vec<i32>::raw *)p; }
AI vl ld(const i64 *p) { return *(const Vec<i64>::raw *)p; }
AI vi ld(const i8 *p) { return __builtin_convertvector(*(const Vec<i8>::raw *)p, vi); }
AI vi ld(const u8 *p) { return __builtin_convertvector(*(const Vec<u8>::raw *)p, vi); }
AI vi ld(const i16 *p) { return __builtin_convertvector(*(const Vec<i16>::raw *)p, vi); }
AI vm ld(const b8 *p) { return mk(__builtin_convertvector(*(const Vec<u8>::raw *)p, vi) != 0); }
AI vh ld(const u16 *p) { return *(const Vec<u16>::raw *)p; }
AI vf ld(const bf16 *p) { return widen(*(const Vec<u16>::raw *)p); }
AI vf ld(const f16 *p) { return halves(*(const Vec<u16>::raw *)p); }
AI vf ld(const e4m3 *p) { vf v; for (int i = 0; i < W; i++) v[i] = get(p + i); return v; }
AI vf ld(const e5m2 *p) { vf v; for (int i = 0; i < W; i++) v[i] = get(p + i); return v; }
AI void st(float *p, vf v) { *(Vec<float>::raw *)p = v; }
AI void st(double *p, vd v) { *(Vec<double>::raw *)p = v; }
AI void st(i32 *p, vi v) { *(Vec<i32>::raw *)p = v; }
AI void st(i64 *p, vl v) { *(Vec<i64>::raw *)p = v; }
AI void st(i8 *p, vi v) { *(Vec<i8>::raw *)p = __builtin_convertvector(v, Vec<i8>::type); }
AI void st(u8 *p, vi v) { *(Vec<u8>::raw *)p = __builtin_convertvector(v, Vec<u8>::type); }
AI void st(i16 *p, vi v) { *(Vec<i16>::raw *)p = __builtin_convertvector(v, Vec<i16>::type); }
AI void st(b8 *p, vm v) { *(Vec<u8>::raw *)p = __builtin_convertvector(from_m_i(v), Vec<u8>::type); }
AI void st(u16 *p, vh v) { *(Vec<u16>::raw *)p = v; }
AI void st(bf16 *p, vf v) { *(Vec<u16>::raw *)p = narrow_bf16(v); }
AI void st(f16 *p, vf v) { *(Vec<u16>::raw *)p = to_halves(v); }
AI void st(e4m3 *p, vf v) { for (int i = 0; i < W; i++) put(p + i, v[i]); }
AI void st(e5m2 *p, vf v) { for (int i = 0; i < W; i++) put(p + i, v[i]); }
// tiles keep masks as numbers, 0 or -1
AI void keep(mask *p, vm v) { *(Vec<mask>::raw *)p = v; }
AI vm kept(const mask *p) { return *(const Vec<mask>::raw *)p; }

// a tile keeps bfloat16 numbers that are multiplied as they are, where the machine sums their products in pairs, and widened elsewhere
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && W == 16 && LANE_BYTES == 4 && (!defined(__clang__) || __clang_major__ >= 16)
#define PAIRS
typedef bf16 tile_bf16;
struct pair { u32 bits; }; struct two { u16 bits; };   // two numbers; one of them, with the next behind it
typedef Vec<u32>::type vpair;
#if defined(__clang__) || __GNUC__ >= 13
typedef __bf16 vtwo __attribute__((vector_size(64)));
#else
typedef short vtwo __attribute__((vector_size(64)));
#endif
AI vpair ld(const pair *p) { return *(const Vec<u32>::raw *)p; }
AI void st(pair *p, vpair v) { *(Vec<u32>::raw *)p = v; }
AI pair get(const two *p) { pair x; __builtin_memcpy(&x, p, 4); return x; }
AI vpair bc(pair x) { return x.bits + (vpair){}; }
AI void keep(bf16 *p, vf v) { *(Vec<u16>::raw *)p = __builtin_convertvector((vpair)v >> 16, vh); }   // of what is rounded
#else
typedef float tile_bf16;
#endif
AI void keep(float *p, vf v) { st(p, v); }

template <class T> AI auto ld(const T *p, i64 s) { auto v = ld((const T *)p); typedef decltype(v) V; typedef lane<V> L; for (int i = 0; i < W; i++) v[i] = (L)get(p + i * s); return v; }   // any stride
AI vm ld(const b8 *p, i64 s) { vm v; for (int i = 0; i < W; i++) v[i] = -(mask)get(p + i * s); return v; }
// n lanes of a vector to memory of any stride
template <class T, class V> AI void st(T *p, i64 s, V v, i64 n) {
  if (s == 1 && n >= W) st(p, v);
  else for (int i = 0; i < W; i++) if (i < n) put(p + i * s, v[i]);
}
AI void st(b8 *p, i64 s, vm v, i64 n) { for (int i = 0; i < W; i++) if (i < n) put(p + i * s, v[i] != 0); }
template <class T> AI auto ldn(const T *p, i64 n) { T t[W] = {}; for (int i = 0; i < W; i++) if (i < n) t[i] = p[i]; return ld((const T *)t); }   // n elements, then 0

// dst[r][c] <- src[r * rows + c * columns], W-padded with zeros along c
template <class D, class S> static __attribute__((noinline)) void pack(D *dst, i64 step, const S *src, i64 rows, i64 columns, i64 nr, i64 nc) {
  i64 full = nc / W * W;
  if (columns == 1) {
    for (i64 r = 0; r < nr; r++) {
      for (i64 c = 0; c < full; c += W) st(dst + r * step + c, ld(src + r * rows + c));
      if (full < nc) st(dst + r * step + full, ldn(src + r * rows + full, nc - full));
    }
    return;
  }
  if (rows == 1 && nr >= W) {
    i64 r = 0;
    for (; r + W <= nr; r += W) for (i64 c = 0; c < nc; c += W) {
      decltype(ld(src)) a[W];
      for (int i = 0; i < W; i++) a[i] = c + i < nc ? ld(src + r + (c + i) * columns) : decltype(ld(src)){};
      transpose(a);
      for (int i = 0; i < W; i++) st(dst + (r + i) * step + c, a[i]);
    }
    if (r < nr) pack(dst + r * step, step, src + r, rows, columns, nr - r, nc);
    return;
  }
  for (i64 r = 0; r < nr; r++) for (i64 c = 0; c < nc; c += W) {
    decltype(ld(src)) v{};
    for (int i = 0; i < W; i++) if (c + i < nc) v[i] = (decltype(v[0] + 0))get(src + r * rows + (c + i) * columns);
    st(dst + r * step + c, v);
  }
}
static __attribute__((noinline, unused)) void pack(b8 *dst, i64 step, const b8 *src, i64 rows, i64 columns, i64 nr, i64 nc) {
  for (i64 r = 0; r < nr; r++) for (i64 c = 0; c < padded(nc); c++) dst[r * step + c].bits = c < nc ? src[r * rows + c * columns].bits : 0;
}
static __attribute__((noinline, unused)) void pack(bf16 *dst, i64 step, const bf16 *src, i64 rows, i64 columns, i64 nr, i64 nc) { pack((u16 *)dst, step, (const u16 *)src, rows, columns, nr, nc); }
